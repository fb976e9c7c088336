"""``groundup eval``."""

import json as json_format
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

if TYPE_CHECKING:
    from groundup.eval.tasks import Results

_UNITS = {"loss": "  nats a token", "unigram_entropy": "  nats a token", "bits_per_byte": "  bits"}


def evaluate(
    path: Path,
    *,
    data: Annotated[tuple[Path, ...], Parameter(consume_multiple=True)],
    tasks: Annotated[tuple[Literal["perplexity", "lambada"], ...], Parameter(consume_multiple=True)] = (
        "perplexity",
    ),
    split_name: Literal["train", "validation", "test", "all"] | None = None,
    split: str | None = None,
    key: str | None = None,
    sequence_length: int | None = None,
    batch_size: int | None = None,
    max_tokens: int | None = None,
    precision: Literal["fp32", "bf16", "fp16", "auto"] = "fp32",
    device: Literal["auto", "cpu", "cuda"] = "auto",
    ema: Annotated[bool, Parameter(negative="")] = False,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Measure a model.

    `perplexity` predicts every token of the data from those before it, in windows that do not overlap,
    and prints the loss (nats a token), perplexity = exp(loss), bits per byte (comparable between
    tokenizers), and the data's unigram entropy: the loss of a model that only knows how often each
    token occurs.

    `lambada` predicts the last word of each passage, as LAMBADA asks; a word is right when each of its
    tokens is the most probable one.

    For example:

        groundup eval runs/a --tasks perplexity --data data/tokens --split-name test

        groundup eval exported --tasks perplexity --data wiki.test.raw --json

        groundup eval exported --tasks lambada --data lambada_test.jsonl

    Args:
        path: A run folder, one of its checkpoints, a Hugging Face folder or a checkpoint of
            Megatron-LM.
        data: Token files, as `groundup train` takes them: a prefix of .bin and .idx, a shard, a folder or
            quoted glob of these. Or texts: files, folders, globs (.txt, .jsonl, .gz, .zst).
        tasks: What to measure.
        split_name: Which split of token files; by default all of them.
        split: Shares of train, validation and test over their documents, unless the names of
            the files tell their split; by default those of the run.
        key: The JSON field that holds the text; by default "text".
        sequence_length: Tokens of a window; 0 (the default): the model's context.
        batch_size: Windows or passages at a time; changes speed and memory, not the result.
        max_tokens: Predict only the first so many tokens; 0 (the default): all.
        precision: Format of the matrix products.
        device: Where to compute; auto takes a GPU where there is one.
        ema: Measure the average of the weights that a run with ema.decay keeps.
        json: Print one JSON object a task instead of a table.
    """
    from groundup.checkpoint.formats import open_model
    from groundup.core.errors import ConfigError
    from groundup.parallel.device import choose_device, choose_precision

    if split is not None and split_name in (None, "all"):
        raise ConfigError(
            "--split has no effect on all documents", fix="Add --split-name train, validation or test."
        )
    where = choose_device(device)
    loaded = open_model(path, device=where, ema=ema)
    options = {
        "split_name": split_name,
        "split": split or (_split_of_run(loaded.source) if split_name not in (None, "all") else None),
        "text_key": key,
        "sequence_length": sequence_length,
        "batch_size": batch_size,
        "max_tokens": max_tokens,
    }
    for kind in tasks:
        task = _task(kind, {name: value for name, value in options.items() if value is not None})
        with choose_precision(precision, where).autocast():
            results = task.measure(loaded, data)
        if json:
            about = {"task": kind, "model": str(loaded.source), "data": [str(item) for item in data]}
            print(json_format.dumps({**about, "ema": ema, **_options_of(task), **results}))
        else:
            print(f"{kind} of {loaded.source} on {', '.join(map(str, data))}")
            _print_table(results)


def _task(kind: str, options: dict[str, Any]) -> Any:
    """The task of a kind; an option that it does not know is refused, by its flag."""
    from groundup.core.config import config, from_dict
    from groundup.core.errors import ConfigError
    from groundup.eval.tasks import TASKS, Task

    @config
    class _Chosen:
        task: Task

    flags = {name: "--key" if name == "text_key" else f"--{name.replace('_', '-')}" for name in options}
    known = TASKS[kind].__dataclass_fields__
    if without := [flag for name, flag in flags.items() if name not in known]:
        raise ConfigError(f"{', '.join(without)} has no effect on --tasks {kind}", fix="Leave it out.")
    names = {f"task.{name}": flag for name, flag in flags.items()}
    return from_dict(_Chosen, {"task": {"kind": kind, **options}}, where="command line", names=names).task


def _options_of(task: Any) -> dict[str, Any]:
    """A task's settings, as plain values."""
    from groundup.core.config import to_dict

    return {name: value for name, value in to_dict(task).items() if name != "kind"}


def _print_table(results: "Results") -> None:
    for name, value in results.items():
        shown = f"{value:,}" if isinstance(value, int) else f"{value:,.4f}"
        print(f"  {name.replace('_', ' '):<16}{shown:>16}{_UNITS.get(name, '')}")


def _split_of_run(source: Path) -> str:
    """The split that a run of ours was trained with; the usual one for other models."""
    from groundup.core.manifest import Manifest
    from groundup.tokens.sampling.data_config import DataConfig

    manifest = source / "manifest.json"
    if manifest.is_file():
        about = Manifest.read(manifest, "checkpoint").about
        return str(about["config"]["data"]["split"])
    return DataConfig.split
