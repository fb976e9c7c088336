"""``groundup eval``."""

import json as json_format
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from groundup.cli.evaluation_tables import print_average, print_items, print_overlap, print_table
from groundup.cli.options import MODEL_AS_IT_IS, ModelOptions, Switch
from groundup.core.errors import ConfigError

if TYPE_CHECKING:
    from groundup.checkpoint.lazy import LoadedModel
    from groundup.eval.measure import Measured

_OPTION = re.compile(r"\w+(\.\w+)+=")


def evaluate(
    path: Path,
    *options: str,
    data: Annotated[tuple[Path, ...], Parameter(consume_multiple=True)],
    tasks: Annotated[tuple[str, ...], Parameter(consume_multiple=True)] = ("perplexity",),
    precision: Literal["fp32", "bf16", "fp16", "auto"] = "fp32",
    model: ModelOptions = MODEL_AS_IT_IS,
    trained_on: Annotated[tuple[Path, ...], Parameter(consume_multiple=True)] = (),
    show: int = 0,
    out: Path | None = None,
    json: Switch = False,
    tensorboard: Path | None = None,
    every_checkpoint: Switch = False,
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

    With layout.dp=2, layout.tp=2 or layout.pp=2, or several of these, ranks are started on this machine, as
    for `groundup train`: dp shares the items out, tp and pp share a model that is too large for one device.
    Scores are the same.

    All of these take batch_size (by default what is fast and fits into memory; changes no result), and those
    with items limit (read only the first so many).

    For example:

        groundup eval runs/a --tasks perplexity --data data/tokens perplexity.split_name=test

        groundup eval exported --tasks perplexity --data wiki.test.raw --json

        groundup eval exported --tasks lambada --data lambada_test.jsonl lambada.limit=200

        groundup eval exported --tasks lambada,hellaswag,wikitext --data evaluation --show 5 --out a.json

        groundup eval runs/a --tasks lambada,hellaswag --data evaluation layout.tp=2 layout.dp=2

        groundup eval runs/a --tasks lambada,hellaswag --data evaluation --every-checkpoint

    Args:
        path: A run folder, one of its checkpoints, a Hugging Face folder or a checkpoint of
            Megatron-LM.
        options: Options of the tasks, as task.option=value.
        data: Token files, as `groundup train` takes them: a prefix of .bin and .idx, a shard, a folder or
            quoted glob of these. Or texts: files, folders, globs (.txt, .jsonl, .gz, .zst). Or a folder in
            which each task finds its file by name.
        tasks: What to measure, e.g. perplexity,lambada.
        precision: Format of the matrix products.
        trained_on: The corpora or token files that the model was trained on; a run knows its own. Where these
            were compared with a task (`groundup corpus decontaminate`), its table says how many of its items
            they hold, and the scores without these.
        show: Print so many items of each task, with prediction and target.
        out: Write all results to this JSON file, with every item's log-likelihoods.
        json: Print one JSON object a task instead of a table.
        tensorboard: Write the figures to this folder of TensorBoard too, at the step of the checkpoint, as
            eval/TASK/FIGURE.
        every_checkpoint: Measure each checkpoint of the run that is not measured yet, and show the scores of
            all; they are kept in RUN/evaluations, with scores.html, a drawing.
    """
    from groundup.cli.eval_checkpoints import evaluate_checkpoints, print_scores
    from groundup.cli.over_ranks import joined, layout_of, open_to_measure, start_ranks
    from groundup.core.files import require_writable
    from groundup.eval.measure import kind_of, measure
    from groundup.eval.results_file import write_results
    from groundup.eval.tasks import configured_tasks
    from groundup.eval.training_overlap import require_training_data
    from groundup.parallel.device import choose_precision

    kinds, files, settings = _sorted_words(options, data, tasks)
    layout, settings = layout_of(settings)
    chosen = configured_tasks(kinds, settings)
    require_training_data(trained_on)
    if out and every_checkpoint:
        raise ConfigError("results are kept in RUN/evaluations", where="--out", fix="Leave it out.")
    if out:
        require_writable(out.parent, where="--out")
    start_ranks(layout)
    with joined(layout, model.device) as mesh:
        tell = _teller(
            json=json,
            table=not every_checkpoint,
            show=show,
            ema=model.ema,
            trained_on=trained_on,
            scalars=_scalars(tensorboard if mesh.is_first else None),
        )
        if every_checkpoint:
            series = evaluate_checkpoints(path, chosen, files, model, mesh, precision, tell)
            if mesh.is_first and not json:
                print_scores(path, [kind_of(task) for task in chosen], series)
            return
        loaded = open_to_measure(path, model, mesh, precision)
        results = measure(loaded, chosen, files, choose_precision(precision, mesh.device))
        trees = [{**found.tree, **tell(loaded, found)} if mesh.is_first else {} for found in results]
        if mesh.is_first:
            print_average(trees, loaded.source, json=json)
        if out and mesh.is_first:
            write_results(out, str(loaded.source), trees)


def _sorted_words(
    options: Sequence[str], data: Sequence[Path], tasks: Sequence[str]
) -> tuple[list[str], list[Path], list[str]]:
    """Returns the kinds of tasks, the files and the settings of a command line."""
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
    return kinds, files, settings


def _teller(
    *,
    json: bool,
    table: bool,
    show: int,
    ema: bool,
    trained_on: Sequence[Path],
    scalars: "Callable[[int, Measured], None]",
) -> "Callable[[LoadedModel, Measured], dict[str, Any]]":
    """Returns what tells of a model what a task found, and returns what is known of its overlap."""
    from groundup.eval.training_overlap import find_overlap, overlap_tree

    def tell(loaded: "LoadedModel", found: "Measured") -> dict[str, Any]:
        scalars(loaded.step, found)
        if not json and not table:
            return {}
        overlap = find_overlap(found.task, found.results, found.data, loaded.source, trained_on)
        if json:
            line = found.in_one_line(loaded.source, ema=ema)
            print(json_format.dumps({**line, **overlap_tree(overlap)}))
        else:
            print(f"{found.kind} of {loaded.source} on {', '.join(map(str, found.data))}")
            print_table(found.task, found.results, found.seconds)
            print_overlap(overlap, found.results)
            print_items(found.results, show)
        return overlap_tree(overlap)

    return tell


def _scalars(folder: Path | None) -> "Callable[[int, Measured], None]":
    """Returns what writes figures to TensorBoard; what does nothing where there is no folder."""
    if folder is None:
        return lambda step, found: None
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(folder))

    def write(step: int, found: "Measured") -> None:
        for name, value in found.results.figures.items():
            writer.add_scalar(f"eval/{found.kind}/{name}", value, step)
        writer.flush()

    return write
