"""What is measured of the model while it trains: its loss on held-out text, and a completion to look at."""

from collections.abc import Callable

from groundup.core.log import logger
from groundup.parallel.fsdp import without_gathering
from groundup.tokens.sampling.collate import Evaluation
from groundup.tokens.sampling.dataset import Samples
from groundup.train.metrics import Metrics
from groundup.train.setup import Run

Evaluate = Callable[[Run, Samples, int], Evaluation]
"""Measures the model on so many micro-batches of a split, 0 for all; leaves the model as it was."""

Complete = Callable[[Run], str]
"""Completes ``config.sample.prompt``; leaves the model as it was."""


def validate(run: Run, metrics: Metrics, evaluate: Evaluate, name: str) -> dict[str, Evaluation]:
    """Evaluates a split, with the average of the weights too where there is one; logs and records it."""
    num_batches = run.config.validation.num_batches
    run.heartbeat.record(run.state.step, "validating", is_long=True)
    with without_gathering(run.state.parts):
        found = {name: evaluate(run, getattr(run.splits, name), num_batches)}
    if run.state.average:
        with run.state.average.in_place_of_weights(), without_gathering(run.state.parts):
            found[f"{name}_ema"] = evaluate(run, getattr(run.splits, name), num_batches)
    for key, evaluation in found.items():
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


def validate_at_the_end(run: Run, metrics: Metrics, evaluate: Evaluate) -> dict[str, Evaluation]:
    """Evaluates the validation and the test split; none of them where ``validation.interval`` is 0."""
    found: dict[str, Evaluation] = {}
    for name in ("validation", "test") if run.config.validation.interval else ():
        if getattr(run.splits, name):
            found |= validate(run, metrics, evaluate, name)
    return found


def log_sample(run: Run, metrics: Metrics, complete: Complete) -> None:
    """Completes the prompt of the config, logs and records the text."""
    run.heartbeat.record(run.state.step, "sampling", is_long=True)
    with without_gathering(run.state.parts):
        text = complete(run)
    logger.info("step %d: %s%s", run.state.step, run.config.sample.prompt, text)
    metrics.record("sample", run.state.step, text=run.config.sample.prompt + text)
