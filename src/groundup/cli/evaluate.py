"""``groundup eval``."""

import json as json_format
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from groundup.cli.options import MODEL_AS_IT_IS, ModelOptions, Switch
from groundup.core.errors import ConfigError

if TYPE_CHECKING:
    from groundup.eval.tasks import EvaluationTask, Results

_OPTION = re.compile(r"\w+(\.\w+)+=")


def evaluate(
    path: Path,
    *options: str,
    data: Annotated[tuple[Path, ...], Parameter(consume_multiple=True)],
    tasks: Annotated[tuple[str, ...], Parameter(consume_multiple=True)] = ("perplexity",),
    precision: Literal["fp32", "bf16", "fp16", "auto"] = "fp32",
    model: ModelOptions = MODEL_AS_IT_IS,
    json: Switch = False,
) -> None:
    """Measure a model.

    `perplexity` predicts every token of the data from those before it, in windows that do not overlap,
    and prints the loss (nats a token), perplexity = exp(loss), bits per byte (comparable between
    tokenizers), and the data's unigram entropy: the loss of a model that only knows how often each
    token occurs. Its options: split_name (train, validation, test or all, of token files), split (shares of
    these over the documents, unless the names of the files tell their split; by default those of the run),
    text_key (the JSON field that holds the text), sequence_length (tokens of a window; by default the
    model's context), batch_size (changes speed and memory, not the result), max_tokens (predict only the
    first so many).

    `lambada` predicts the last word of each passage, as LAMBADA asks; a word is right when each of its
    tokens is the most probable one. Its options: text_key, batch_size, limit (read only the first so
    many passages).

    For example:

        groundup eval runs/a --tasks perplexity --data data/tokens perplexity.split_name=test

        groundup eval exported --tasks perplexity --data wiki.test.raw --json

        groundup eval exported --tasks lambada --data lambada_test.jsonl lambada.limit=200

    Args:
        path: A run folder, one of its checkpoints, a Hugging Face folder or a checkpoint of
            Megatron-LM.
        options: Options of the tasks, as task.option=value.
        data: Token files, as `groundup train` takes them: a prefix of .bin and .idx, a shard, a folder or
            quoted glob of these. Or texts: files, folders, globs (.txt, .jsonl, .gz, .zst).
        tasks: What to measure, e.g. perplexity,lambada.
        precision: Format of the matrix products.
        json: Print one JSON object a task instead of a table.
    """
    from groundup.core.config import to_dict
    from groundup.eval.tasks import configured_tasks
    from groundup.parallel.device import choose_device, choose_precision

    if stray := [word for word in options if "=" not in word]:
        raise ConfigError(
            f"{' '.join(stray)} is no option of a task",
            where="command line",
            fix="Write e.g. lambada.limit=200, and files behind --data.",
        )
    # --data and --tasks take all words behind them, so that options may stand among theirs.
    settings = [*options, *filter(_OPTION.match, (*map(str, data), *tasks))]
    files = [item for item in data if not _OPTION.match(str(item))]
    if not files:
        raise ConfigError("names nothing to measure on", where="--data", fix="Name token files or texts.")
    kinds = [kind for word in tasks if not _OPTION.match(word) for kind in word.split(",")]
    chosen = configured_tasks(kinds, settings)
    loaded = model.open(path)
    for task in (task.for_model(loaded) for task in chosen):
        with choose_precision(precision, choose_device(model.device)).autocast():
            results = task.measure(loaded, files)
        plain = to_dict(task)
        kind = plain.pop("kind")
        if json:
            about = {"task": kind, "model": str(loaded.source), "data": [str(item) for item in files]}
            print(json_format.dumps({**about, "ema": model.ema, **plain, **results}))
        else:
            print(f"{kind} of {loaded.source} on {', '.join(map(str, files))}")
            _print_table(task, results)


def _print_table(task: "EvaluationTask", results: "Results") -> None:
    for name, value in results.items():
        shown = f"{value:,}" if isinstance(value, int) else f"{value:,.4f}"
        about = task.figures[name].describe()
        print(f"  {name.replace('_', ' '):<16}{shown:>16}  {about}".rstrip())
