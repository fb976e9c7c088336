"""Does an engine write what the model says? Its tokens and log-probabilities against plain forward passes.

The reference has no cache and no batch: one forward pass over a whole text, in which each token that was
generated must be the most probable one. By induction the text is then the one of greedy generation without
a cache.
"""

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from groundup.checkpoint.lazy import LoadedModel
from groundup.core.errors import ConfigError, DataError
from groundup.inference.device_model import text_vocab_size
from groundup.inference.engine import BLOCK_SIZE, Engine
from groundup.inference.sampler import Sampling
from groundup.inference.sequence import Generation, Request
from groundup.models import lm_head
from groundup.parallel.layout import Layout
from groundup.verify.parallel import parse_layout

ALLOWED = 1e-4
"""Largest difference of a log-probability, in nats, in fp32; tokens so close together count as equal."""

_GREEDY = Sampling(temperature=0)
_TEXT = (
    "The old harbour lay quiet in the morning light, and the boats that had come in at night were tied along"
    " the wall. A girl with a red scarf walked past the nets, counted the gulls on the roof and asked her"
    " brother when the ferry would leave. Nobody knew; the captain had gone to buy bread, 12 loaves of it."
)
_LENGTHS = (1, 2, 3, 5, 8, 13, 14, 21, 34, 55)
_CHUNK = 16
_SPARE_BLOCKS = 3
_NUM_BEAMS = 4

Generate = Callable[[Layout, Path], Sequence[dict[str, Any]]]
"""Completes a file of prompts over a layout, greedily; returns the lines of `groundup generate --file`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Agreement:
    """How one way of generating agrees with the reference.

    Attributes:
        path: Its name.
        num_texts: That were compared.
        num_tokens: Of these.
        difference: Largest of a log-probability, in nats; None where only tokens were compared.
        num_ties: Tokens in whose place another is as probable, within ``ALLOWED``.
        error: What is wrong besides; empty when nothing is.
    """

    path: str
    num_texts: int
    num_tokens: int = 0
    difference: float | None = None
    num_ties: int = 0
    error: str = ""

    @property
    def is_right(self) -> bool:
        """Whether all is equal, within ``ALLOWED``."""
        return not self.error and (self.difference is None or self.difference <= ALLOWED)


def layouts_to_serve(names: Sequence[str]) -> dict[str, Layout]:
    """Parses names of layouts such as "tp2-pp2".

    Raises:
        ConfigError: A name is no layout, or one of training.
    """
    chosen = {name: parse_layout(name) for name in names}
    for name, layout in chosen.items():
        if layout != Layout(dp=1, tp=layout.tp, pp=layout.pp):
            raise ConfigError(f"{name} is of training", where="layouts", fix="Generation knows tp and pp.")
    return chosen


def verify_serve(
    loaded: LoadedModel,
    layouts: Mapping[str, Layout],
    folder: Path,
    *,
    max_new_tokens: int,
    generate: Generate,
) -> Iterator[Agreement]:
    """Generates in every way and compares.

    Args:
        loaded: The model, in fp32.
        layouts: As ``layouts_to_serve`` gives them.
        folder: For a file of prompts.
        max_new_tokens: Of each text.
        generate: Runs the ranks of a layout.

    Raises:
        DataError: The model's context does not hold a prompt of a word and one new token.
    """
    reference = _Reference(loaded)
    texts, requests = _requests(loaded, max_new_tokens)
    engine = Engine(loaded, max_batch_size=1)
    alone = list(engine.complete(requests))
    yield reference.agreement("one by one", requests, alone)
    drawn = _drawn(requests)
    expected = list(engine.complete(drawn))
    longest = max(len(one.prompt) for one in requests) + max_new_tokens + 1
    num_blocks = -(-longest // BLOCK_SIZE) + _SPARE_BLOCKS
    small = num_blocks * BLOCK_SIZE * engine.runner.model.bytes_per_token
    engine = Engine(loaded, max_step_tokens=_CHUNK, max_batch_size=_NUM_BEAMS * 2, cache_bytes=small)
    yield reference.agreement(
        "together, prompts in chunks, cache short", requests, list(engine.complete(requests))
    )
    engine = Engine(loaded)
    yield reference.agreement("together", requests, list(engine.complete(requests)))
    yield reference.agreement("again, beginnings in the cache", requests, list(engine.complete(requests)))
    yield _same("drawn, alone and together", expected, list(engine.complete(drawn)))
    yield reference.agreement_of_beams(engine, requests)
    del engine
    file = folder / "prompts.jsonl"
    file.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts), encoding="utf-8")
    for name, layout in layouts.items():
        yield _agreement_of_lines(name, loaded, alone, generate(layout, file))


def _requests(loaded: LoadedModel, max_new_tokens: int) -> tuple[list[str], list[Request]]:
    """Returns prompts that fit into the context, and what is asked of them."""
    words = _TEXT.split(" ")
    texts = [" ".join(words[:length]) for length in _LENGTHS]
    texts += [" ".join(words[7 : 7 + length]) for length in _LENGTHS[:4]]
    found: list[tuple[str, Request]] = []
    for text in texts:
        ids = [*loaded.bos_ids, *loaded.tokenizer.encode(text)]
        if len(ids) + max_new_tokens <= loaded.config.max_sequence_length:
            request = Request(
                prompt=ids,
                sampling=_GREEDY,
                max_new_tokens=max_new_tokens,
                stop_ids=loaded.stop_ids,
                num_logprobs=2,
                num_prompt_logprobs=0 if len(found) % 2 else None,
            )
            found.append((text, request))
    if not found:
        raise DataError(
            f"the model's context of {loaded.config.max_sequence_length} holds no prompt and"
            f" {max_new_tokens} new tokens",
            fix="Ask for fewer: --max-new-tokens 4.",
        )
    return [text for text, _ in found], [request for _, request in found]


def _drawn(requests: Sequence[Request]) -> list[Request]:
    """Returns the same requests, each drawn with a seed of its own."""
    return [
        dataclasses.replace(one, sampling=Sampling(temperature=0.9, top_p=0.95), seed=seed)
        for seed, one in enumerate(requests)
    ]


class _Reference:
    """Forward passes over whole texts, without a cache."""

    def __init__(self, loaded: LoadedModel) -> None:
        self._model: Any = loaded.model
        self._vocab_size = text_vocab_size(loaded)
        self._device = next(loaded.model.parameters()).device

    def agreement(
        self, path: str, requests: Sequence[Request], generations: Sequence[Generation]
    ) -> Agreement:
        """Compares greedy texts and log-probabilities with the model's."""
        difference, num_ties, num_tokens = 0.0, 0, 0
        errors: list[str] = []
        for number, (request, found) in enumerate(zip(requests, generations, strict=True), 1):
            logprobs_TV = self._logprobs([*request.prompt, *found.ids])
            first = len(request.prompt) - 1
            for at, (token, told) in enumerate(zip(found.ids, found.logprobs, strict=True)):
                row_V = logprobs_TV[first + at]
                difference = max(difference, abs(float(row_V[token]) - told.chosen))
                num_ties += bool(row_V.argmax() != token)
                if (gap := float(row_V.max() - row_V[token])) > ALLOWED:
                    errors.append(f"text {number}, token {at + 1}: another one is {gap:.1e} nats above it")
            ends = int(logprobs_TV[first + len(found.ids)].argmax())
            if found.finished == "stop" and ends not in request.stop_ids:
                errors.append(f"text {number} stopped where the model goes on")
            for at, told in enumerate(found.prompt_logprobs):
                expected = float(logprobs_TV[at, request.prompt[at + 1]])
                difference = max(difference, abs(expected - told.chosen))
            num_tokens += len(found.ids) + len(found.prompt_logprobs)
        return Agreement(
            path=path,
            num_texts=len(requests),
            num_tokens=num_tokens,
            difference=difference,
            num_ties=num_ties,
            error=errors[0] if errors else "",
        )

    def agreement_of_beams(self, engine: Engine, requests: Sequence[Request]) -> Agreement:
        """Compares the scores of beams with the sums of their log-probabilities."""
        plain = [
            dataclasses.replace(
                one, num_logprobs=None, num_prompt_logprobs=None, num_beams=_NUM_BEAMS, stop_ids=()
            )
            for one in requests
        ]
        difference, num_tokens = 0.0, 0
        for request, found in zip(plain, engine.complete(plain), strict=True):
            for beam in found.beams:
                logprobs_TV = self._logprobs([*request.prompt, *beam.ids])[len(request.prompt) - 1 : -1]
                mean = float(logprobs_TV[range(len(beam.ids)), list(beam.ids)].double().mean())
                difference = max(difference, abs(mean - beam.score))
                num_tokens += len(beam.ids)
        return Agreement(
            path=f"{_NUM_BEAMS} beams",
            num_texts=_NUM_BEAMS * len(plain),
            num_tokens=num_tokens,
            difference=difference,
        )

    @torch.inference_mode()
    def _logprobs(self, ids: Sequence[int]) -> Tensor:
        hidden_TD = self._model(torch.tensor([ids], device=self._device))[0]
        return lm_head(self._model, hidden_TD, self._vocab_size).log_softmax(-1).cpu()


def _same(path: str, expected: Sequence[Generation], found: Sequence[Generation]) -> Agreement:
    """Compares tokens."""
    different = [
        number
        for number, (one, other) in enumerate(zip(expected, found, strict=True), 1)
        if one.ids != other.ids
    ]
    return Agreement(
        path=path,
        num_texts=len(found),
        num_tokens=sum(len(one.ids) for one in found),
        error=f"text {different[0]} is another one" if different else "",
    )


def _agreement_of_lines(
    path: str, loaded: LoadedModel, expected: Sequence[Generation], lines: Sequence[dict[str, Any]]
) -> Agreement:
    """Compares what ``groundup generate`` printed with what one process generated."""
    if len(lines) != len(expected):
        return Agreement(path=path, num_texts=len(lines), error="did not generate to the end")
    difference, num_ties, num_tokens = 0.0, 0, 0
    error = ""
    for number, (one, line) in enumerate(zip(expected, lines, strict=True), 1):
        told = line["logprobs"]
        num_tokens += len(told)
        for at, (token, logprob) in enumerate(zip(one.ids, one.logprobs, strict=True)):
            text = loaded.tokenizer.token_bytes(token).decode("utf-8", errors="replace")
            if at < len(told) and told[at]["token"] == text:
                difference = max(difference, abs(told[at]["logprob"] - logprob.chosen))
                continue
            (_, best), (_, second) = logprob.top
            num_ties += 1
            if best - second > ALLOWED:
                error = error or f"text {number}, token {at + 1} is another one"
            break  # what follows is another text
        else:
            if len(told) != len(one.ids):
                error = error or f"text {number} does not end where it should"
    return Agreement(
        path=path,
        num_texts=len(lines),
        num_tokens=num_tokens,
        difference=difference,
        num_ties=num_ties,
        error=error,
    )
