"""``groundup eval`` and ``groundup compare``."""

import dataclasses
import json as json_format
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from groundup.cli.options import MODEL_AS_IT_IS, ModelOptions, Switch
from groundup.cli.printing import print_excerpt
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
    show: int = 0,
    out: Path | None = None,
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

    `lambada` predicts the last word of each passage, in every published way: strict (each of its tokens is
    the most probable one), its last token alone, and strict without stop words. Its options: text_key,
    detokenize (none or wikitext).

    `wikitext` gives WikiText's perplexity a word, as Megatron-LM. Its options: stride (tokens by which
    windows advance; 32 by default, 0 is quickest), detokenize (true or false), max_tokens.

    `hellaswag` (prompt: lm-eval or plain), `storycloze`, `piqa`, `arc_easy`, `arc_challenge`, `openbookqa`,
    `boolq`, `sciq`, `winogrande` and `mmlu` ask questions with choices, as EleutherAI's harness does, from
    the authors' files. Their options: num_fewshot, fewshot_data (the file whose first items are shown
    before each question; the folder of *_dev.csv for mmlu).

    `groundup eval fetch` downloads the official files. An item that the model cannot score, since an answer
    exceeds its context, is left out and counted.

    All of these take batch_size (by default what is fast and fits into memory; changes no result), and those
    with items limit (read only the first so many).

    For example:

        groundup eval runs/a --tasks perplexity --data data/tokens perplexity.split_name=test

        groundup eval exported --tasks perplexity --data wiki.test.raw --json

        groundup eval exported --tasks lambada --data lambada_test.jsonl lambada.limit=200

        groundup eval exported --tasks lambada,hellaswag,wikitext --data evaluation --show 5 --out a.json

    Args:
        path: A run folder, one of its checkpoints, a Hugging Face folder or a checkpoint of
            Megatron-LM.
        options: Options of the tasks, as task.option=value.
        data: Token files, as `groundup train` takes them: a prefix of .bin and .idx, a shard, a folder or
            quoted glob of these. Or texts: files, folders, globs (.txt, .jsonl, .gz, .zst). Or a folder in
            which each task finds its file by name.
        tasks: What to measure, e.g. perplexity,lambada.
        precision: Format of the matrix products.
        show: Print so many items of each task, with prediction and target.
        out: Write all results to this JSON file, with every item's log-likelihoods.
        json: Print one JSON object a task instead of a table.
    """
    from groundup.core.config import to_dict
    from groundup.core.files import require_writable
    from groundup.eval.results_file import results_tree, write_results
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
    if out:
        require_writable(out.parent, where="--out")
    loaded = model.open(path)
    trees = []
    for task in (task.for_model(loaded) for task in chosen):
        mine = _files_of(task, files) if len(chosen) > 1 else files
        began = time.monotonic()
        with choose_precision(precision, choose_device(model.device)).autocast():
            results = task.measure(loaded, mine)
        seconds = time.monotonic() - began
        trees.append(results_tree(task, results, data=mine, seconds=seconds))
        plain = to_dict(task)
        kind = plain.pop("kind")
        if json:
            about = {"task": kind, "model": str(loaded.source), "data": [str(item) for item in mine]}
            print(
                json_format.dumps(
                    {**about, "ema": model.ema, **plain, **results.figures, **_counted(results)}
                )
            )
        else:
            print(f"{kind} of {loaded.source} on {', '.join(map(str, mine))}")
            _print_table(task, results, seconds)
            _print_items(results, show)
    _print_average(trees, loaded.source, json=json)
    if out:
        write_results(out, str(loaded.source), trees)


def compare(first: Path, second: Path) -> None:
    """Compare two models item by item: does the second differ from the first by more than chance?

    Prints the mean of each model's items (nats, where the figure is a perplexity), the difference with its
    standard error, and the p-value of a paired test: exact for right or wrong (McNemar), normal elsewhere.

    For example:

        groundup compare a.json b.json

    Args:
        first: What `groundup eval --out` wrote of one model.
        second: The same of another.
    """
    from groundup.eval.results_file import compare_results

    rows = list(compare_results(first, second))  # so that nothing is printed of what cannot be compared
    print(f"{'task':<14}{'figure':<26}{'items':>7}{'first':>10}{'second':>10}{'difference':>20}{'p':>8}")
    for found in rows:
        change = f"{found.second - found.first:+.4f} ± {found.standard_error:.4f}"
        chance = f"{found.p_value:.3f}" if found.p_value >= 0.001 else "<0.001"
        print(
            f"{found.task:<14}{found.figure.replace('_', ' '):<26}{found.num_items:>7,}{found.first:>10.4f}"
            f"{found.second:>10.4f}{change:>20}{chance:>8}"
        )


def _files_of(task: "EvaluationTask", files: Sequence[Path]) -> list[Path]:
    """Returns the files that are the task's by their names, and folders with such, where there are some."""
    named = [
        path
        for path in files
        if any(path.match(glob) or next(path.rglob(glob), None) for glob in task.patterns)
    ]
    return named or list(files)


def _print_table(task: "EvaluationTask", results: "Results", seconds: float) -> None:
    from groundup.eval.results_file import published

    others = published(task)
    sources: list[str] = []
    for name, value in results.figures.items():
        shown = f"{value:,}" if isinstance(value, int) else f"{value:,.4f}"
        error = f"± {results.standard_errors[name]:,.4f}" if name in results.standard_errors else ""
        about = task.figures[name].describe()
        print(f"  {name.replace('_', ' '):<24}{shown:>14}{error and ' '}{error:<10}  {about}".rstrip())
        for row in others.get(name, ()):
            if row["source"] not in sources:
                sources.append(row["source"])
            number = sources.index(row["source"]) + 1
            print(f"    {row['model']:<22}{row['value']:>14,.4f}  published [{number}]")
    for number, source in enumerate(sources, start=1):
        print(f"  [{number}] {source}")
    if results.num_truncated:
        print(f"  too long for the model, their beginnings were cut off: {results.num_truncated:,} items")
    if results.skipped:
        where, why = next(iter(results.skipped.items()))
        print(f"  left out, as the model cannot score them: {len(results.skipped):,} items; {where}: {why}")
    rate = f", {len(results.items) / seconds:,.1f} items/s" if results.items else ""
    print(f"  {seconds:,.1f} s{rate}")


def _counted(results: "Results") -> dict[str, object]:
    """Returns what JSON says beside the figures."""
    return {
        "standard_errors": dict(results.standard_errors),
        "num_truncated": results.num_truncated,
        "num_skipped": len(results.skipped),
    }


def _print_average(trees: Sequence[Mapping[str, Any]], model: Path, *, json: bool) -> None:
    """Prints the centred average of the tasks, where all of its parts were measured."""
    from groundup.eval.centred_average import centred_average

    if average := centred_average(trees):
        about = {"task": "centred_average", "model": str(model), **dataclasses.asdict(average)}
        print(json_format.dumps(about) if json else average.describe())


def _print_items(results: "Results", count: int) -> None:
    for item in results.items[:count]:
        verdict = "right" if item.values["accuracy"] else "wrong"
        predicted, target = item.prediction.strip(), item.target.strip()
        print(f"  {item.where}: {verdict}; predicted {predicted!r}, the target is {target!r}")
        print_excerpt(item.prompt[-240:], 240)
