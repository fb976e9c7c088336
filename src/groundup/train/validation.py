"""What is measured of the model while it trains: loss on held-out text, scores of tasks, a completion."""

import contextlib
from collections.abc import Callable, Iterator, Mapping

import torch

from groundup.core.log import logger, quiet
from groundup.parallel.fsdp import without_gathering
from groundup.tokens.sampling.collate import Evaluation
from groundup.tokens.sampling.dataset import Samples
from groundup.tokens.sampling.excerpt import Excerpt
from groundup.train.megatron_lines import validation_lines, write_line
from groundup.train.metrics import Metrics
from groundup.train.setup import Run

Evaluate = Callable[[Run, Samples, int], Evaluation]
"""Measures the model on so many micro-batches of a split, 0 for all; leaves the model as it was."""

Scores = Mapping[str, Mapping[str, float]]
"""Task -> figure -> value."""

ScoreTasks = Callable[[Run], Scores]
"""Measures the tasks of ``config.eval``; leaves the model as it was."""

Complete = Callable[[Run], str]
"""Completes ``config.sample.prompt``; leaves the model as it was."""


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
        logger.info(
            "step %d: %s loss %.4f | perplexity %.2f | %.4f bits per byte | %d tokens",
            run.state.step,
            key,
            evaluation.loss,
            evaluation.perplexity,
            evaluation.bits_per_byte,
            evaluation.num_tokens,
        )
        names = ("loss", "perplexity", "bits_per_byte", "num_tokens")
        metrics.record(key, run.state.step, **{value: getattr(evaluation, value) for value in names})
    return found


def _held_out(run: Run, name: str) -> Samples:
    """The samples to evaluate: in Megatron-LM's order each validation takes those behind the one before."""
    config = run.config
    whole: Samples = getattr(run.splits, name)
    count = config.samples_of_a_validation
    if config.data.order == "seeded" or not count:
        return whole
    before = 0
    if name == "validation":
        before = run.state.step // config.validation.interval - (run.state.step < config.num_steps)
    return Excerpt(whole, before * count, count)


def validate_at_the_end(run: Run, metrics: Metrics, evaluate: Evaluate) -> dict[str, Evaluation]:
    """Evaluates the validation and the test split; none of them where ``validation.interval`` is 0."""
    found: dict[str, Evaluation] = {}
    for name in ("validation", "test") if run.config.validation.interval else ():
        if getattr(run.splits, name):
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
    """Completes the prompt of the config, logs and records the text."""
    run.heartbeat.record(run.state.step, "sampling", is_long=True)
    with without_gathering(run.state.parts):
        text = complete(run)
    logger.info("step %d: %s%s", run.state.step, run.config.sample.prompt, text)
    metrics.record("sample", run.state.step, text=run.config.sample.prompt + text)
