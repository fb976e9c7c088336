"""``groundup generate``."""

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from groundup.cli.options import MODEL_AS_IT_IS, ModelOptions
from groundup.core.errors import ConfigError, DataError
from groundup.core.log import logger

if TYPE_CHECKING:
    from groundup.checkpoint.lazy import LoadedModel
    from groundup.inference.engine import Engine, FinishReason
    from groundup.inference.sampler import Sampling


def generate(
    path: Path,
    *,
    prompt: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    prompt_file: Path | None = None,
    max_new_tokens: int = 128,
    temperature: float = 0.8,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int = 0,
    num_samples: int = 1,
    model: ModelOptions = MODEL_AS_IT_IS,
) -> None:
    """Complete a prompt; the prompt and its completion go to stdout as they come.

    A text ends where the model ends the document, after --max-new-tokens, or where the model's context
    is full (it does not slide). Without a prompt, it is read from stdin; on a terminal, groundup asks
    for one prompt after another until `stop` or end-of-file. The same seed gives the same text.

    For example:

        groundup generate runs/quickstart/model --prompt 'def hello_world():'
        groundup generate gpt2 --prompt-file story.txt --temperature 0.9 --top-p 0.95 --num-samples 3
        groundup generate runs/a --prompt 'Once upon a time' --temperature 0

    Args:
        path: A run folder, one of its checkpoints, a Hugging Face folder or a checkpoint of
            Megatron-LM.
        prompt: The text to go on from; '' begins a new document.
        prompt_file: A file whose whole content is the prompt.
        max_new_tokens: The most that is added.
        temperature: Above 1 wilder, below 1 safer, 0 always the most probable token.
        top_k: Draw among the k most probable tokens; 0: among all.
        top_p: Draw among the most probable tokens that together have this probability; 1: among all.
        seed: Of the draws; sample i draws with seed + i.
        num_samples: How many completions of the prompt.
    """
    from groundup.core.config import from_dict
    from groundup.inference.engine import Engine
    from groundup.inference.sampler import Sampling

    if prompt is not None and prompt_file is not None:
        raise ConfigError("--prompt and --prompt-file are both given", fix="Give one of them.")
    if max_new_tokens < 1 or num_samples < 1:
        raise ConfigError("--max-new-tokens and --num-samples are 1 or more")
    settings = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    flags = {"temperature": "--temperature", "top_k": "--top-k", "top_p": "--top-p"}
    sampling = from_dict(Sampling, settings, where="command line", names=flags)
    if num_samples > 1 and temperature == 0:
        raise ConfigError(
            f"at temperature 0 all {num_samples} samples are the same text",
            fix="Leave out --num-samples, or raise --temperature.",
        )
    if prompt_file is not None:
        prompt = _read_prompt(prompt_file)
    if prompt is None and not sys.stdin.isatty():
        prompt = sys.stdin.read().removesuffix("\n")  # the one that `echo` adds
        if not prompt:
            raise ConfigError("there is no prompt: stdin is empty", fix="Give --prompt TEXT.")
    loaded = model.open(path)
    completion = _Completion(loaded, Engine(loaded), sampling, max_new_tokens, num_samples)
    if prompt is None:
        _converse(completion, seed)
    else:
        completion.print(prompt, seed)


def _read_prompt(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"cannot read the prompt ({error})", where=path, fix="Give a UTF-8 text file."
        ) from None


@dataclasses.dataclass(frozen=True)
class _Completion:
    """Completes prompts with the settings of a command line."""

    loaded: "LoadedModel"
    engine: "Engine"
    sampling: "Sampling"
    max_new_tokens: int
    num_samples: int

    def print(self, prompt: str, seed: int) -> None:
        """Prints the prompt with each of its completions; a single one as it comes."""
        ids = prompt_ids(self.loaded, prompt)
        settings: dict[str, Any] = {
            "sampling": self.sampling,
            "max_new_tokens": self.max_new_tokens,
            "seed": seed,
            "stop_ids": self.loaded.stop_ids,
        }
        reasons: list[FinishReason] = []
        if self.num_samples == 1:
            deltas = self.engine.stream(ids, **settings)
            print(prompt, end="", flush=True)
            for delta in deltas:
                print(delta.text, end="" if delta.finished is None else "\n", flush=True)
                reasons += [delta.finished] if delta.finished else []
        else:
            for number, generation in enumerate(
                self.engine.generate([ids] * self.num_samples, **settings), 1
            ):
                print(f"--- sample {number} of {self.num_samples}\n{prompt}{generation.text}")
                reasons.append(generation.finished)
        if "context" in reasons:
            longest = self.loaded.config.max_sequence_length
            logger.info("ended: the model's context of %d tokens is full", longest)


def _converse(completion: _Completion, seed: int) -> None:
    """Completes prompts from the terminal, each by itself, until `stop` or end-of-file."""
    import readline  # noqa: F401  # gives `input` its line editing

    print("Type a prompt; `stop` or Ctrl-D ends.", file=sys.stderr)
    while True:
        try:
            prompt = input("prompt> ")
        except EOFError:
            print()
            return
        if prompt.strip() == "stop":
            return
        if not prompt:
            continue
        try:
            completion.print(prompt, seed)
        except DataError as error:
            print(error, file=sys.stderr)
        seed += completion.num_samples  # the same prompt again gives another text


def prompt_ids(loaded: "LoadedModel", prompt: str) -> list[int]:
    """Encodes a prompt as the model saw texts in training; an empty one begins a document."""
    return [*loaded.bos_ids, *loaded.tokenizer.encode(prompt)] or [loaded.bos_id]
