"""``groundup generate``."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from groundup.cli.completion import AS_USUAL, Completer, CompletionOptions
from groundup.cli.options import MODEL_AS_IT_IS, GenerationDtype, ModelOptions, Override
from groundup.core.errors import ConfigError, DataError
from groundup.core.progress import Progress

if TYPE_CHECKING:
    from groundup.inference.sequence import Request


def generate(
    path: Path,
    *overrides: Override,
    prompt: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    prompt_file: Path | None = None,
    file: Path | None = None,
    logprobs: int | None = None,
    dtype: GenerationDtype = "float32",
    completion: CompletionOptions = AS_USUAL,
    model: ModelOptions = MODEL_AS_IT_IS,
) -> None:
    """Complete prompts; a prompt and its completion go to stdout as they come.

    A text ends where the model ends the document, at a --stop string, after --max-new-tokens, or where
    the model's context is full (see --overflow). Without a prompt, it is read from stdin; on a terminal,
    groundup asks for one prompt after another until `stop` or end-of-file. The same seed gives the same
    text.

    With --file, many prompts are completed at once. Each line of it is a JSON object with the field
    "prompt"; stdout gets the same objects, in their order, with "completion" and "finished" (the reason:
    stop, length or context) added, with "sample" where there are several, and with "score" where there are
    beams.

    A layout of several ranks, layout.tp or layout.pp, spreads the model over GPUs or processes of this
    machine.

    For example:

        groundup generate runs/quickstart/model --prompt 'def hello_world():'
        groundup generate gpt2 --prompt-file story.txt --temperature 0.9 --top-p 0.95 --num-samples 3
        groundup generate runs/a --prompt 'Once upon a time' --temperature 0 --stop '.'
        groundup generate gpt2 layout.tp=2 --prompt 'Once upon a time' --num-beams 4
        groundup generate gpt2 --file prompts.jsonl --dtype bfloat16 --max-new-tokens 64 > completed.jsonl

    Args:
        path: A run folder, one of its checkpoints, a Hugging Face folder or a checkpoint of
            Megatron-LM.
        prompt: The text to go on from; '' begins a new document.
        prompt_file: A file whose whole content is the prompt.
        file: JSONL file of prompts.
        logprobs: With --file, adds "logprobs": of each token its text, its log-probability and those of
            so many of the most probable tokens.
    """
    from groundup.cli.over_ranks import (
        generation_dtypes,
        joined,
        open_over_ranks,
        start_ranks,
        undivided_layout,
    )
    from groundup.inference.rank_model import engine_on
    from groundup.launch.env import own_rank

    given = [name for name, value in (("--prompt", prompt), ("--prompt-file", prompt_file), ("--file", file))
             if value is not None]  # fmt: skip
    if len(given) > 1:
        raise ConfigError(f"{' and '.join(given)} are both given", fix="Give one of them.")
    if logprobs is not None and (file is None or logprobs < 0):
        raise ConfigError("--logprobs is a number from 0 on, and for --file only")
    sampling = completion.sampling()
    layout = undivided_layout(overrides)
    engine_dtype, dtypes = generation_dtypes(dtype, layout, model.device)
    if prompt_file is not None:
        prompt = _read_prompt(prompt_file)
    records = _read_records(file) if file is not None else []
    is_asked = prompt is None and file is None
    start_ranks(layout, with_stdin=is_asked)
    if is_asked and own_rank() == 0 and not sys.stdin.isatty():
        prompt = sys.stdin.read().removesuffix("\n")  # the one that `echo` adds
        if not prompt:
            raise ConfigError("there is no prompt: stdin is empty", fix="Give --prompt TEXT.")
    with joined(layout, model.device) as mesh:
        loaded = open_over_ranks(path, model, mesh, dtypes)
        with engine_on(loaded, mesh, dtype=engine_dtype) as engine:
            if engine is None:
                return
            completer = Completer(loaded, engine, completion, sampling, logprobs)
            if file is not None:
                _complete_file(completer, file, records)
            elif prompt is None:
                _converse(completer)
            else:
                completer.print(prompt, completion.seed)


def _read_prompt(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"cannot read the prompt ({error})", where=path, fix="Give a UTF-8 text file."
        ) from None


def _read_records(path: Path) -> list[dict[str, Any]]:
    """Reads the objects of a file of prompts."""
    records = []
    for number, line in enumerate(_read_prompt(path).splitlines(), 1):
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise DataError(f"not JSON ({error})", where=f"{path}:{number}") from None
        if not isinstance(record, dict) or not isinstance(record.get("prompt"), str):
            raise DataError(
                'not an object with a text "prompt"',
                where=f"{path}:{number}",
                fix='Write lines like {"prompt": "Once upon a time"}.',
            )
        records.append(record)
    if not records:
        raise DataError("has no prompts", where=path, fix='Write lines like {"prompt": "Once upon a time"}.')
    return records


def _complete_file(completer: Completer, path: Path, records: list[dict[str, Any]]) -> None:
    """Prints every record with its completions, in order, as soon as the ones before are printed."""
    per_prompt = completer.num_requests
    requests: list[Request] = []
    for number, record in enumerate(records, 1):
        new = completer.requests(record["prompt"], completer.options.seed + (number - 1) * per_prompt)
        try:
            completer.engine.check(new[0])
        except DataError as error:  # before hours of work
            raise DataError(error.what, where=f"{path}:{number}", fix=error.fix) from None
        requests += new
    with Progress("generate", len(requests), "texts") as progress:
        for index, generation in enumerate(completer.engine.complete(requests)):
            record = records[index // per_prompt]
            for fields in completer.fields(generation, index % per_prompt + 1):
                print(json.dumps({**record, **fields}, ensure_ascii=False), flush=True)
            progress.add(1)


def _converse(completer: Completer) -> None:
    """Completes prompts from the terminal, each by itself, until `stop` or end-of-file."""
    import readline  # noqa: F401  # gives `input` its line editing

    seed = completer.options.seed
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
            completer.print(prompt, seed)
        except DataError as error:
            print(error, file=sys.stderr)
        seed += completer.options.num_samples  # the same prompt again gives another text
