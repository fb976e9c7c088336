"""The training loop. There is one; it has no hooks and is meant to be read, and edited."""

import functools
import math
from typing import Protocol

import torch

from groundup.core.errors import GroundupError
from groundup.core.log import logger
from groundup.models.count import training_flops_per_token
from groundup.parallel.failures import progress_note
from groundup.parallel.sharding import left_sharded
from groundup.tokens.samples.dataset import Samples
from groundup.train.batches import read_batch
from groundup.train.build import Run, build_run
from groundup.train.config import TrainConfig
from groundup.train.hardware import peak_flops, peak_memory_bytes
from groundup.train.interruption import Interruption
from groundup.train.metrics import Interval, Metrics, Stopwatch
from groundup.train.prefetch import Prefetch
from groundup.train.step import StepResult, train_step


class Evaluation(Protocol):
    """What the loop reports of an evaluation."""

    @property
    def loss(self) -> float:
        """Nats a token."""
        ...

    @property
    def perplexity(self) -> float:
        """exp(loss)."""
        ...

    @property
    def bits_per_byte(self) -> float:
        """Loss in bits over the bytes of the text."""
        ...

    @property
    def num_tokens(self) -> int:
        """Predicted tokens."""
        ...


class Evaluate(Protocol):
    """Measures the model on a dataset; ``num_batches`` 0 means all of it."""

    def __call__(self, run: Run, dataset: Samples, num_batches: int) -> Evaluation:
        """Leaves the model as it was."""
        ...


class Complete(Protocol):
    """Completes ``config.sample.prompt`` with the model as it is."""

    def __call__(self, run: Run) -> str:
        """Leaves the model as it was."""
        ...


class Interrupted(GroundupError):
    """The run was asked to stop, and its state is saved."""


def train(config: TrainConfig, *, evaluate: Evaluate, complete: Complete) -> dict[str, Evaluation]:
    """Trains from scratch, or on from the run folder's newest checkpoint, to ``config.num_steps``.

    Returns:
        The evaluation of each held-out split that has a sample, at the end.

    Raises:
        Interrupted: By Ctrl-C or SIGTERM, after saving.
        GroundupError: See ``build_run`` and ``train_step``.
    """
    run = build_run(config)
    state, team = run.state, run.team
    metrics = Metrics(
        config.run_dir, from_step=state.step, tensorboard=config.log.tensorboard, mute=not team.is_first
    )
    share = config.global_batch_size // team.dp  # samples of a step that fall to this rank
    report = _Report(run, metrics)
    batches = Prefetch(
        functools.partial(
            read_batch,
            run.training,
            vocab_size=config.model.vocab_size,
            mask_documents=config.data.mask_documents,
        ),
        first_sample=state.samples + team.dp_rank * share,
        num_batches=config.num_steps - state.step,
        batch_size=share,
        stride=config.global_batch_size,
        device=run.device,
    )

    with Interruption() as interruption, batches:
        while state.step < config.num_steps:
            progress_note(state.step + 1, "training")
            result = train_step(state, batches.next_batch(), config, run.precision, team)
            report.add(result)

            last = state.step == config.num_steps
            if last or state.step % config.log.interval == 0:
                report.flush()
            progress_note(state.step, "validating, sampling, saving")
            with report.stopwatch, left_sharded(state.model):
                if _due(state.step, config.validation.interval) and run.splits.validation and not last:
                    _validate(run, metrics, evaluate, "validation", config.validation.num_batches)
                if _due(state.step, config.sample.interval):
                    text = complete(run)
                    logger.info("step %d: %s%s", state.step, config.sample.prompt, text)
                    metrics.record("sample", state.step, text=config.sample.prompt + text)
                stopping = team.any(interruption.requested)
                if last or stopping or _due(state.step, config.checkpoint.interval):
                    logger.info("saved %s", run.save())
            if stopping and not last:
                raise Interrupted(
                    f"stopped after step {state.step}, which is saved",
                    fix="The same command continues from there.",
                )

    splits = ("validation", run.splits.validation), ("test", run.splits.test)
    return {name: _validate(run, metrics, evaluate, name, 0) for name, dataset in splits if dataset}


class _Report:
    """Gathers steps into log lines."""

    def __init__(self, run: Run, metrics: Metrics) -> None:
        self.run = run
        self.metrics = metrics
        self.flops_per_token = training_flops_per_token(run.config.model, run.config.data.sequence_length)
        self.peak = peak_flops(run.device, run.precision.dtype)
        self.stopwatch = Stopwatch()
        self.results: list[StepResult] = []
        self.tokens_before = run.state.tokens
        self.check_first_loss = run.state.step == 0
        logger.info(
            "%.4g GFLOP a token (6 x weights of matrix products + 6 x layers x width x sequence length,"
            " attention counted as causal)",
            self.flops_per_token / 1e9,
        )

    def add(self, result: StepResult) -> None:
        """Takes one step's result."""
        self.results.append(result)
        if self.check_first_loss:
            self.check_first_loss = False
            expected = math.log(self.run.config.model.vocab_size)
            note = (
                "as it should be"
                if abs(float(result.loss) - expected) < 0.5
                else "unexpected: check init_std"
            )
            logger.info("loss at initialisation %.3f, ln(vocabulary) %.3f: %s", result.loss, expected, note)

    def flush(self) -> None:
        """Writes the line and the record of the steps since the last one."""
        if not self.results:
            return
        state, config = self.run.state, self.run.config
        loss = float(torch.stack([result.loss for result in self.results]).mean())  # waits for the device
        seconds = self.stopwatch.seconds()
        tokens_per_second = (state.tokens - self.tokens_before) / seconds
        flops_per_second = tokens_per_second * self.flops_per_token
        Interval(
            step=state.step,
            num_steps=config.num_steps,
            loss=loss,
            grad_norm=self.results[-1].grad_norm,
            lr=self.results[-1].lr,
            tokens_per_second=tokens_per_second,
            flops_per_second=flops_per_second,
            mfu=flops_per_second / self.peak if self.peak else 0.0,
            loss_scale=state.scaler.scale if state.scaler else 1.0,
            skipped_steps=state.skipped_steps,
            memory_bytes=peak_memory_bytes(self.run.device),
            epoch=state.samples / self.run.training.num_samples,
            tokens=state.tokens,
            eta_seconds=(config.num_steps - state.step) * seconds / len(self.results),
        ).report(self.metrics)
        self.results.clear()
        self.tokens_before = state.tokens
        self.stopwatch.reset()


def _validate(run: Run, metrics: Metrics, evaluate: Evaluate, name: str, num_batches: int) -> Evaluation:
    dataset: Samples = getattr(run.splits, name)
    evaluation = evaluate(run, dataset, num_batches)
    logger.info(
        "step %d: %s loss %.4f | perplexity %.2f | %.4f bits per byte | %d tokens",
        run.state.step,
        name,
        evaluation.loss,
        evaluation.perplexity,
        evaluation.bits_per_byte,
        evaluation.num_tokens,
    )
    names = ("loss", "perplexity", "bits_per_byte", "num_tokens")
    metrics.record(name, run.state.step, **{key: getattr(evaluation, key) for key in names})
    return evaluation


def _due(step: int, interval: int) -> bool:
    return interval > 0 and step % interval == 0
