"""``groundup eval`` and ``groundup compare``."""

import json as json_format
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

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
    from groundup.cli.over_ranks import joined, layout_of, open_over_ranks, start_ranks
    from groundup.core.files import require_writable
    from groundup.eval.measure import measure
    from groundup.eval.results_file import write_results
    from groundup.eval.tasks import configured_tasks
    from groundup.parallel.device import choose_precision

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
    layout, settings = layout_of(settings)
    chosen = configured_tasks(kinds, settings)
    if out:
        require_writable(out.parent, where="--out")
    start_ranks(layout)
    with joined(layout, model.device) as mesh:
        loaded = open_over_ranks(path, model, mesh, precision)
        trees = []
        for found in measure(loaded, chosen, files, choose_precision(precision, mesh.device)):
            if not mesh.is_first:
                continue
            trees.append(found.tree)
            if json:
                print(json_format.dumps(found.in_one_line(loaded.source, ema=model.ema)))
            else:
                print(f"{found.kind} of {loaded.source} on {', '.join(map(str, found.data))}")
                _print_table(found.task, found.results, found.seconds)
                _print_items(found.results, show)
        if out and mesh.is_first:
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

    print(f"{'task':<14}{'figure':<26}{'items':>7}{'first':>10}{'second':>10}{'difference':>20}{'p':>8}")
    for found in compare_results(first, second):
        change = f"{found.second - found.first:+.4f} ± {found.standard_error:.4f}"
        print(
            f"{found.task:<14}{found.figure.replace('_', ' '):<26}{found.num_items:>7,}{found.first:>10.4f}"
            f"{found.second:>10.4f}{change:>20}{found.p_value:>8.3f}"
        )


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
        print(f"  {results.num_truncated:,} items were too long for the model: their beginnings were cut off")
    rate = f", {len(results.items) / seconds:,.1f} items/s" if results.items else ""
    print(f"  {seconds:,.1f} s{rate}")


def _print_items(results: "Results", count: int) -> None:
    for item in results.items[:count]:
        verdict = "right" if item.values["accuracy"] else "wrong"
        predicted, target = item.prediction.strip(), item.target.strip()
        print(f"  {item.where}: {verdict}; predicted {predicted!r}, the target is {target!r}")
        print_excerpt(item.prompt[-240:], 240)
