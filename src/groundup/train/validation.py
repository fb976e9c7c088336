"""What is measured of the model while it trains: loss on held-out text, scores of tasks, a completion."""

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from groundup.core.errors import DataError
from groundup.core.log import logger, quiet
from groundup.parallel.fsdp import without_gathering
from groundup.tokens.sampling.collate import Evaluation
from groundup.train.data_loader import Batch
from groundup.train.forward_backward import loss_without_gradients
from groundup.train.loss import IGNORE
from groundup.train.megatron_lines import validation_lines, write_line
from groundup.train.metrics import Metrics
from groundup.train.objective import Objective
from groundup.train.run_data import HeldOutSplit, Split
from groundup.train.setup import Run

Evaluate = Callable[[Run, Split, int], Evaluation]
"""Measures the model on so many micro-batches of a split, 0 for all; leaves the model as it was."""

Scores = Mapping[str, Mapping[str, float]]
"""Task -> figure -> value."""

ScoreTasks = Callable[[Run], Scores]
"""Measures the tasks of ``config.eval``; leaves the model as it was."""

Complete = Callable[[Run], Sequence[str]]
"""Completes each of ``config.sample.texts``; leaves the model as it was."""


def validate(run: Run, metrics: Metrics, evaluate: Evaluate, name: str) -> dict[str, Evaluation]:
    """Evaluates a split, with the average of the weights too where there is one; logs and records it."""
    num_batches = run.config.validation.num_batches
    samples = _held_out(run, name)
    run.heartbeat.record(run.state.step, "validating", is_long=True)
    with without_gathering(run.state.parts):
        found = {name: evaluate(run, samples, num_batches)}
    if run.state.average:
        with run.state.average.in_place_of_weights(), without_gathering(run.state.parts):
            found[f"{name}_ema"] = evaluate(run, samples, num_batches)
    style = run.config.log.style
    for key, evaluation in found.items():
        if style != "groundup" and key == name and run.mesh.is_first:
            is_last = run.state.step == run.config.num_steps
            lines = validation_lines(
                style, evaluation.loss, split=name, iteration=run.state.step, is_last=is_last
            )
            write_line(lines)
        logger.info("step %d: %s %s", run.state.step, key, evaluation.describe())
        names = ("loss", "perplexity", "bits_per_byte", "num_tokens")
        values = {value: getattr(evaluation, value) for value in names}
        metrics.record(key, run.state.step, **values, **evaluation.figures)
    return found


def evaluate_split(
    run: Run, split: Split, num_batches: int, *, byte_lengths: Tensor | None = None
) -> Evaluation:
    """Measures the objective on the first ``num_batches`` micro-batches in file order; 0 for all.

    Args:
        run: With the model.
        split: What to predict.
        num_batches: Micro-batches.
        byte_lengths: [vocabulary], bytes of text that each id stands for; without it bytes are not counted.

    Raises:
        DataError: A batch cannot be made, or there is nothing to predict.
    """
    config, mesh, objective = run.config, run.mesh, run.learning.objective
    sums = functools.partial(
        loss_without_gradients, run.state, config=config, precision=run.precision, mesh=mesh,
        objective=objective,
    )  # fmt: skip
    total = min(num_batches * config.micro_batch_size or split.num_samples, split.num_samples)
    size = config.micro_batch_size * mesh.dp * mesh.layout.pp
    batches = (split.read(first, min(size, total - first), ordered=True) for first in range(0, total, size))
    return measure(sums, batches, objective, byte_lengths=byte_lengths, on_progress=run.heartbeat.keep_alive)


def measure(
    sums: Callable[[Batch], Sequence[float]],
    batches: Iterable[Batch],
    objective: Objective,
    *,
    byte_lengths: Tensor | None = None,
    on_progress: Callable[[], object] = lambda: None,
) -> Evaluation:
    """Adds up an objective over batches; ``sums`` gives the loss and the figures of one."""
    totals, denominator, num_bytes = [0.0] * (1 + len(objective.figures)), 0, 0
    for batch in batches:
        totals = [before + found for before, found in zip(totals, sums(batch), strict=True)]
        denominator += objective.denominator(batch)
        if byte_lengths is not None:
            num_bytes += int(byte_lengths[batch.targets_BT[batch.targets_BT != IGNORE]].sum())
        on_progress()
    if denominator == 0:
        raise DataError(
            "there is nothing to predict: each document has one token",
            fix="Add text, or let attention cross documents.",
        )
    figures = {name: value / denominator for name, value in zip(objective.figures, totals[1:], strict=True)}
    return Evaluation(total_loss=totals[0], num_tokens=denominator, num_bytes=num_bytes, figures=figures)


def _held_out(run: Run, name: str) -> HeldOutSplit:
    """The samples to evaluate: in Megatron-LM's order each validation takes those behind the one before."""
    config = run.config
    whole: HeldOutSplit = getattr(run.data, name)
    count = config.samples_of_a_validation
    if config.data.order == "seeded" or not count:
        return whole
    before = 0
    if name == "validation":
        before = run.state.step // config.validation.interval - (run.state.step < config.num_steps)
    return whole.excerpt(before * count, count)


def validate_at_the_end(run: Run, metrics: Metrics, evaluate: Evaluate) -> dict[str, Evaluation]:
    """Evaluates the validation and the test split; none of them where ``validation.interval`` is 0."""
    found: dict[str, Evaluation] = {}
    for name in ("validation", "test") if run.config.validation.interval else ():
        if getattr(run.data, name):
            found |= validate(run, metrics, evaluate, name)
    return found


def score(run: Run, metrics: Metrics, score_tasks: ScoreTasks) -> None:
    """Measures the tasks, with the average of the weights too where there is one; logs and records them."""
    run.heartbeat.record(run.state.step, "evaluating", is_long=True)
    with _apart(run):
        found = dict(score_tasks(run))
    if run.state.average:
        with run.state.average.in_place_of_weights(), _apart(run):
            found |= {f"{task}_ema": figures for task, figures in score_tasks(run).items()}
    for task, figures in found.items():
        shown = (f"{name.replace('_', ' ')} {value:,.4g}" for name, value in figures.items())
        logger.info("step %d: %s: %s", run.state.step, task, " | ".join(shown))
        metrics.record(f"eval/{task}", run.state.step, **figures)


@contextlib.contextmanager
def _apart(run: Run) -> Iterator[None]:
    """Leaves nothing behind: no lines of progress, no compiled graphs of odd shapes, no memory on a GPU."""
    eager = torch.compiler.set_stance("force_eager") if run.config.compile else contextlib.nullcontext()
    with quiet(), eager:
        yield
    if run.device.type == "cuda":
        torch.cuda.empty_cache()


def log_sample(run: Run, metrics: Metrics, complete: Complete) -> None:
    """Completes the prompts of the config, logs and records the texts."""
    run.heartbeat.record(run.state.step, "sampling", is_long=True)
    with without_gathering(run.state.parts):
        completions = complete(run)
    between = " -> " if run.learning.encode_prompt else ""  # an answer does not go on where the question ends
    for prompt, completion in zip(run.config.sample.texts, completions, strict=True):
        text = f"{prompt}{between}{completion}"
        logger.info("step %d: %s", run.state.step, text)
        metrics.record("sample", run.state.step, text=text, prompt=prompt)
