"""``groundup eval RUN --every-checkpoint``: the scores of a run over its steps, as a table and a drawing."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from groundup.cli.over_ranks import open_to_measure
from groundup.core.errors import CheckpointError
from groundup.core.log import logger

if TYPE_CHECKING:
    from groundup.checkpoint.lazy import LoadedModel
    from groundup.cli.options import ModelOptions
    from groundup.eval.measure import Measured
    from groundup.eval.score_plot import Series
    from groundup.eval.tasks import EvaluationTask
    from groundup.parallel.device import PrecisionName
    from groundup.parallel.mesh import ParallelMesh

_PLOT = "scores.html"


def evaluate_checkpoints(
    run_dir: Path,
    tasks: "Sequence[EvaluationTask]",
    files: Sequence[Path],
    model: "ModelOptions",
    mesh: "ParallelMesh",
    precision: "PrecisionName",
    tell: "Callable[[LoadedModel, Measured], object]",
) -> "Mapping[tuple[str, str], Series]":
    """Measures the tasks on each checkpoint that they are not measured on yet, and draws the scores of all.

    Args:
        run_dir: The run folder.
        tasks: What to measure.
        files: Data of the tasks.
        model: Which weights, and where.
        mesh: Of the ranks; all measure, the first writes and prints.
        precision: Of the matrix products.
        tell: Receives each model and what a task found; called on the first rank.

    Returns:
        (task, figure) -> values by step.

    Raises:
        CheckpointError: The run has no checkpoint.
    """
    from groundup.eval.measure import files_of, measure_task
    from groundup.eval.score_history import ScoreHistory, series_of
    from groundup.eval.score_plot import write_plot
    from groundup.parallel.device import choose_precision

    history = ScoreHistory(run_dir, ema=model.ema, precision=precision)
    data = [(task, files_of(task, files, among=tasks)) for task in tasks]
    found = [(one, [pair for pair in data if not history.has(one, *pair)]) for one in history.checkpoints()]
    missing = mesh.all_gather([(one, pairs) for one, pairs in found if pairs])[0]  # as rank 0 sees it
    for number, (checkpoint, pairs) in enumerate(missing, start=1):
        logger.info("%s: checkpoint %d of %d", checkpoint.name, number, len(missing))
        try:
            loaded = open_to_measure(checkpoint, model, mesh, precision)
        except CheckpointError as error:  # damaged, or pruned meanwhile: the others can be measured
            logger.warning("left out: %s", error)
            continue
        for task, own in pairs:
            measured = measure_task(loaded, task, own, choose_precision(precision, mesh.device))
            if mesh.is_first:
                history.add(checkpoint, task, measured)
                tell(loaded, measured)
        del loaded  # before the next one comes
    series = series_of(history.read(data))
    if mesh.is_first:
        write_plot(history.folder / _PLOT, f"Scores of {run_dir}", series)
    return series


def print_scores(run_dir: Path, kinds: Sequence[str], series: "Mapping[tuple[str, str], Series]") -> None:
    """Prints the first figure of each task, which is the one that it is known for, step by step."""
    from groundup.eval.score_history import FOLDER

    first = [
        next(key for key in series if key[0] == kind)
        for kind in kinds
        if any(kind == key[0] for key in series)
    ]
    titles = [f"{kind} {name.replace('_', ' ')}" for kind, name in first]
    print("   step" + "".join(f"  {title:>18}" for title in titles))
    for step in sorted({step for key in first for step in series[key]}):
        cells = [f"{series[key][step][0]:,.4f}" if step in series[key] else "" for key in first]
        widths = [max(18, len(title)) for title in titles]
        print(f"{step:>7}" + "".join(f"  {cell:>{n}}" for cell, n in zip(cells, widths, strict=True)))
    print(f"Drawn in {run_dir / FOLDER / _PLOT}")
