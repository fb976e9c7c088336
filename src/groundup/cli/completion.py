"""Prompts and the texts that complete them, as a command line asks for them."""

import dataclasses
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from groundup.cli.options import Switch
from groundup.core.errors import ConfigError
from groundup.core.log import logger

if TYPE_CHECKING:
    from groundup.checkpoint.lazy import LoadedModel
    from groundup.inference.engine import Engine
    from groundup.inference.sampler import Sampling
    from groundup.inference.sequence import FinishReason, Generation, Request


@Parameter(name="*")
@dataclasses.dataclass(frozen=True, kw_only=True)
class CompletionOptions:
    """How texts are completed.

    Attributes:
        max_new_tokens: The most that is added.
        temperature: Above 1 wilder, below 1 safer, 0 always the most probable token.
        top_k: Draw among the k most probable tokens; 0: among all.
        top_p: Draw among the most probable tokens that together have this probability; 1: among all.
        min_p: Draw among tokens with this share of the most probable one's probability; 0: among all.
        repetition_penalty: Above 1 makes tokens less probable that the text has already.
        num_beams: More than 1 searches for the most probable texts with so many beams, and draws nothing;
            --num-samples are then the best ones.
        length_penalty: With --num-beams: above 1 for longer texts, below 1 for shorter ones.
        stop: A string that ends the text and is left out of it, or the name of a special token; may be given
            several times.
        overflow: When the context is full: end the text there (stop), refuse before the start what may get
            there (refuse), or go on with the last half of it (slide).
        seed: Of the draws; sample i draws with seed + i.
        num_samples: How many completions of each prompt.
        special_tokens: Take names of special tokens in prompts, such as <|endoftext|>, for these tokens, and
            not for text.
    """

    max_new_tokens: int = 128
    temperature: float = 0.8
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    num_beams: int = 1
    length_penalty: float = 1.0
    stop: Annotated[tuple[str, ...], Parameter(allow_leading_hyphen=True, negative=())] = ()
    overflow: Literal["stop", "refuse", "slide"] = "stop"
    seed: int = 0
    num_samples: int = 1
    special_tokens: Switch = False

    def sampling(self) -> "Sampling":
        """Returns how tokens are drawn.

        Raises:
            ConfigError: A flag is out of its range, or has no effect beside the others.
        """
        from groundup.core.config import from_dict
        from groundup.inference.sampler import Sampling

        if self.max_new_tokens < 1 or self.num_samples < 1:
            raise ConfigError("--max-new-tokens and --num-samples are 1 or more")
        if self.num_beams != 1:
            return self._sampling_of_beams()
        names = [field.name for field in dataclasses.fields(Sampling)]
        flags = {name: f"--{name.replace('_', '-')}" for name in names}
        settings = {name: getattr(self, name) for name in names}
        sampling = from_dict(Sampling, settings, where="command line", names=flags)
        if self.num_samples > 1 and self.temperature == 0:
            raise ConfigError(
                f"at temperature 0 all {self.num_samples} samples are the same text",
                fix="Leave out --num-samples, or raise --temperature.",
            )
        return sampling

    def _sampling_of_beams(self) -> "Sampling":
        from groundup.inference.sampler import Sampling

        drawing = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
        given = [name for name in drawing if getattr(self, name) not in (0, getattr(AS_USUAL, name))]
        if given:
            flags = " and ".join(f"--{name.replace('_', '-')}" for name in given)
            raise ConfigError(f"{flags} have no effect beside --num-beams, which draws nothing")
        if self.num_samples > self.num_beams:
            raise ConfigError(
                f"{self.num_beams} beams do not give {self.num_samples} samples",
                fix=f"Give --num-beams {self.num_samples}, or leave out --num-samples.",
            )
        return Sampling(temperature=0)


AS_USUAL = CompletionOptions()


@dataclasses.dataclass(frozen=True)
class Completer:
    """Completes prompts with the settings of a command line."""

    loaded: "LoadedModel"
    engine: "Engine"
    options: CompletionOptions
    sampling: "Sampling"
    num_logprobs: int | None

    def requests(self, prompt: str, seed: int) -> "list[Request]":
        """Returns a request for each sample of a prompt, or one for all beams."""
        from groundup.inference.sequence import Request

        ids = prompt_ids(self.loaded, prompt, special_tokens=self.options.special_tokens)
        return [
            Request(
                prompt=ids,
                sampling=self.sampling,
                max_new_tokens=self.options.max_new_tokens,
                seed=seed + sample,
                stop_ids=self.loaded.stop_ids,
                stop=self.options.stop,
                num_logprobs=self.num_logprobs,
                overflow=self.options.overflow,
                num_beams=self.options.num_beams,
                length_penalty=self.options.length_penalty,
            )
            for sample in range(self.num_requests)
        ]

    @property
    def num_requests(self) -> int:
        """Returns how many requests a prompt has."""
        return self.options.num_samples if self.options.num_beams == 1 else 1

    def print(self, prompt: str, seed: int) -> None:
        """Prints the prompt with each of its completions; a single one as it comes."""
        requests = self.requests(prompt, seed)
        reasons: list[FinishReason] = []
        count = self.options.num_samples
        if count == self.options.num_beams == 1:
            deltas = self.engine.stream(requests[0])
            print(prompt, end="", flush=True)
            for delta in deltas:
                print(delta.text, end="" if delta.finished is None else "\n", flush=True)
                reasons += [delta.finished] if delta.finished else []
        else:
            found = (one for each in self.engine.complete(requests) for one in each.beams[:count] or (each,))
            for number, one in enumerate(found, 1):
                title = f"--- sample {number} of {count}\n" if count > 1 else ""
                print(f"{title}{prompt}{one.text}")
                reasons.append(one.finished)
        if "context" in reasons:
            logger.info("ended: the model's context of %d tokens is full", self.engine.context)

    def fields(self, generation: "Generation", sample: int) -> Iterator[dict[str, Any]]:
        """Yields what a line of a file gets, for each text of a request that is the sample of this number."""
        several = self.options.num_samples > 1
        if generation.beams:
            for number, beam in enumerate(generation.beams[: self.options.num_samples], 1):
                told = {"completion": beam.text, "finished": beam.finished, "score": beam.score}
                yield {**({"sample": number} if several else {}), **told}
            return
        fields: dict[str, Any] = {"sample": sample} if several else {}
        fields |= {"completion": generation.text, "finished": generation.finished}
        if self.num_logprobs is not None:
            fields["logprobs"] = [
                {
                    "token": self._text(number),
                    "logprob": logprob.chosen,
                    "top": [[self._text(other), value] for other, value in logprob.top],
                }
                for number, logprob in zip(generation.ids, generation.logprobs, strict=True)
            ]
        yield fields

    def _text(self, number: int) -> str:
        return self.loaded.tokenizer.token_bytes(number).decode("utf-8", errors="replace")


def prompt_ids(loaded: "LoadedModel", prompt: str, *, special_tokens: bool = False) -> list[int]:
    """Encodes a prompt as the model saw texts in training; an empty one begins a document.

    Args:
        loaded: The model.
        prompt: Of a user.
        special_tokens: Whether names of special tokens are these; else they are text.
    """
    tokenizer = loaded.tokenizer
    names = tokenizer.special_tokens if special_tokens else {}
    longest_first = sorted(map(re.escape, names), key=len, reverse=True)
    parts = re.split(f"({'|'.join(longest_first)})", prompt) if names else [prompt]
    ids = [
        number for part in parts for number in ([names[part]] if part in names else tokenizer.encode(part))
    ]
    return [*loaded.bos_ids, *ids] or [loaded.bos_id]
