"""Prompts and the texts that complete them, as a command line asks for them."""

import dataclasses
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

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
        stop: A string that ends the text and is left out of it; may be given several times.
        overflow: When the context is full: end the text there (stop), refuse before the start what may get
            there (refuse), or go on with the last half of it (slide).
        seed: Of the draws; sample i draws with seed + i.
        num_samples: How many completions of each prompt.
    """

    max_new_tokens: int = 128
    temperature: float = 0.8
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    stop: Annotated[tuple[str, ...], Parameter(allow_leading_hyphen=True, negative=())] = ()
    overflow: Literal["stop", "refuse", "slide"] = "stop"
    seed: int = 0
    num_samples: int = 1

    def sampling(self) -> "Sampling":
        """Returns how tokens are drawn.

        Raises:
            ConfigError: A flag is out of its range, or has no effect beside the others.
        """
        from groundup.core.config import from_dict
        from groundup.inference.sampler import Sampling

        if self.max_new_tokens < 1 or self.num_samples < 1:
            raise ConfigError("--max-new-tokens and --num-samples are 1 or more")
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
        """Returns a request for each sample of a prompt."""
        from groundup.inference.sequence import Request

        ids = prompt_ids(self.loaded, prompt)
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
            )
            for sample in range(self.options.num_samples)
        ]

    def print(self, prompt: str, seed: int) -> None:
        """Prints the prompt with each of its completions; a single one as it comes."""
        requests = self.requests(prompt, seed)
        reasons: list[FinishReason] = []
        if len(requests) == 1:
            deltas = self.engine.stream(requests[0])
            print(prompt, end="", flush=True)
            for delta in deltas:
                print(delta.text, end="" if delta.finished is None else "\n", flush=True)
                reasons += [delta.finished] if delta.finished else []
        else:
            for number, generation in enumerate(self.engine.complete(requests), 1):
                print(f"--- sample {number} of {len(requests)}\n{prompt}{generation.text}")
                reasons.append(generation.finished)
        if "context" in reasons:
            logger.info("ended: the model's context of %d tokens is full", self.engine.context)

    def fields(self, generation: "Generation") -> dict[str, Any]:
        """Returns what a line of a file gets."""
        fields: dict[str, Any] = {"completion": generation.text, "finished": generation.finished}
        if self.num_logprobs is not None:
            fields["logprobs"] = [
                {
                    "token": self._text(number),
                    "logprob": logprob.chosen,
                    "top": [[self._text(other), value] for other, value in logprob.top],
                }
                for number, logprob in zip(generation.ids, generation.logprobs, strict=True)
            ]
        return fields

    def _text(self, number: int) -> str:
        return self.loaded.tokenizer.token_bytes(number).decode("utf-8", errors="replace")


def prompt_ids(loaded: "LoadedModel", prompt: str) -> list[int]:
    """Encodes a prompt as the model saw texts in training; an empty one begins a document."""
    return [*loaded.bos_ids, *loaded.tokenizer.encode(prompt)] or [loaded.bos_id]
