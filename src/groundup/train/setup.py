"""Builds a run from its config: device, precision, data, model, optimizer, last state."""

import dataclasses
import logging
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from groundup import __version__
from groundup.checkpoint.native.folder import CHECKPOINTS
from groundup.checkpoint.native.pruning import Keep
from groundup.checkpoint.native.save import Writer
from groundup.core.config import to_yaml
from groundup.core.errors import ConfigError
from groundup.core.files import atomic_write
from groundup.core.log import logger
from groundup.core.progress import human_count
from groundup.launch.env import rank_from_env
from groundup.launch.heartbeat import HeartbeatWriter
from groundup.models import build_model
from groundup.models.count import num_parameters
from groundup.parallel.apply import materialize, parallelize
from groundup.parallel.compile import is_compiled
from groundup.parallel.device import LossScaler, Precision, choose_device, choose_precision, describe_device
from groundup.parallel.float8_linear import changes_for
from groundup.parallel.layout import describe_layout
from groundup.parallel.mesh import ParallelMesh, init_distributed
from groundup.parallel.validate import validate_layout
from groundup.tokens.tokenizer.base import Tokenizer
from groundup.train.config import TrainConfig
from groundup.train.continue_run import checkpoint_to_continue
from groundup.train.cpu import keep_freed_memory
from groundup.train.data_loader import Batch, Prefetch
from groundup.train.ema import WeightAverage
from groundup.train.init_weights import begin, place_start
from groundup.train.learning import PRETRAINING, Adapters, Learning
from groundup.train.optim import build_optimizers
from groundup.train.phase_times import PhaseTimes
from groundup.train.run_data import RunData
from groundup.train.stability.spike_guard import NoSpikeGuard, RollbackGuard, SpikeGuard
from groundup.train.state import TrainState

CONFIG_FILE = "config.yaml"


@dataclasses.dataclass(kw_only=True)
class Run:
    """Everything that the training loop reads."""

    config: TrainConfig
    device: torch.device
    precision: Precision
    data: RunData
    learning: Learning
    state: TrainState
    mesh: ParallelMesh
    writer: Writer
    heartbeat: HeartbeatWriter

    @property
    def tokenizer(self) -> Tokenizer:
        """Tokenizer of the data and the model."""
        return self.data.tokenizer

    @property
    def start(self) -> dict[str, Any]:
        """What is recorded of a start: device, ranks, number format, versions, facts about the data."""
        adapters = self.learning.adapters
        return {
            "facts": [*([adapters.fact] if adapters else []), *self.data.facts],
            "device": describe_device(self.device),
            "ranks": self.mesh.size,
            "precision": self.precision.name,
            "torch": torch.__version__,
            "groundup": __version__,
        }

    @property
    def checkpoints_dir(self) -> Path:
        """Folder of the run's checkpoints."""
        return checkpoints_of(self.config)

    def shares(self) -> Iterator[tuple[int, int]]:
        """Yields the first sample and the size of this rank's share of each remaining step."""
        state, mesh = self.state, self.mesh
        for first, size in self.config.batch_sizes.steps(state.samples, self.config.num_steps - state.step):
            yield first + mesh.dp_rank * (size // mesh.dp), size // mesh.dp

    def prefetch(self, ranges: Iterable[tuple[int, int]]) -> Prefetch:
        """Reads batches of the training data; ``ranges`` has the first sample and the size of each."""
        return Prefetch(self.data.train.read, ranges, device=self.device)

    def prepared(self, batch: Batch) -> Batch:
        """Completes a batch with the present weights, where the stage asks for it."""
        return self.learning.prepare(self, batch) if self.learning.prepare else batch

    def save(self, *, wait: bool, replaces: bool = False) -> None:
        """Saves the present state and removes checkpoints that are no longer kept; collective.

        Args:
            wait: Whether to wait until it is on the disk, also where saving is asynchronous.
            replaces: Whether to remove a sound checkpoint of this step, which is one of this run.
        """
        snapshot = self.state.snapshot(self.config, self.data.fingerprint, self.mesh)
        self.writer.save(self.state.step, snapshot, replaces=replaces)
        if wait:
            self.writer.finish()


def checkpoints_of(config: TrainConfig) -> Path:
    """Folder of a run's checkpoints."""
    return config.run_dir / CHECKPOINTS


def writer_of(config: TrainConfig, tokenizer: Tokenizer, mesh: ParallelMesh) -> Writer:
    """Returns the writer of a run's checkpoints; collective."""
    return Writer(
        checkpoints_of(config),
        model=config.model,
        tokenizer=tokenizer,
        mesh=mesh,
        asynchronous=config.checkpoint.asynchronous,
        keep=Keep(
            last=config.checkpoint.keep_last,
            every=config.checkpoint.keep_every,
            back=config.spike_guard.back if isinstance(config.spike_guard, RollbackGuard) else 0,
        ),
        copy=config.checkpoint.megatron.write if config.checkpoint.megatron.path else None,
    )


def build_run(
    config: TrainConfig, heartbeat: HeartbeatWriter | None = None, learning: Learning = PRETRAINING
) -> Run:
    """Prepares a run, and restores its newest sound checkpoint if there is one.

    Args:
        config: Of the run.
        heartbeat: Told what the run does.
        learning: Its data, loss and trainable parameters.

    Raises:
        MachineError: The device or the precision is not available.
        DataError: The data is missing, damaged, or too small for the run.
        ConfigError: The model's vocabulary is not the tokenizer's.
        CheckpointError: The run folder holds another run, or only damaged checkpoints.
    """
    rank = rank_from_env()
    validate_layout(
        config.layout,
        config.model,
        sequence_length=config.data.sequence_length,
        batch_sizes=config.batch_sizes.every,
        micro_batch_size=config.micro_batch_size,
        world_size=rank.world_size if rank else 1,
    )
    mesh = init_distributed(config.layout, rank, choose_device(config.device))
    if not mesh.is_first:
        logger.setLevel(logging.WARNING)  # all ranks would log the same
    precision = choose_precision(config.precision, mesh.device)
    _prepare_torch(config, mesh)

    data = learning.open_data(config)
    require_vocabulary(config, data.tokenizer)

    newest = checkpoint_to_continue(
        config, mesh, data_fingerprint=data.fingerprint, tokenizer_fingerprint=data.tokenizer.fingerprint
    )
    state = empty_state(config, mesh, precision, adapters=learning.adapters)
    run = Run(
        config=config,
        device=mesh.device,
        precision=precision,
        data=data,
        learning=learning,
        state=state,
        mesh=mesh,
        writer=writer_of(config, data.tokenizer, mesh),
        heartbeat=heartbeat or HeartbeatWriter(None),
    )
    if newest:
        if learning.adapters:
            place_start(state, config, data.tokenizer, learning.change_start)
        state.restore(newest, config, mesh)
        logger.info("continuing from %s", newest)
    else:
        fill = learning.adapters.fill if learning.adapters else None
        begin(state, config, mesh, data.tokenizer, change_start=learning.change_start, fill=fill)
    if mesh.is_first:
        config.run_dir.mkdir(parents=True, exist_ok=True)
        with atomic_write(config.run_dir / CONFIG_FILE) as file:
            file.write(to_yaml(config).encode())
    _log_description(run)
    if learning.begin:
        learning.begin(run)
    return run


def _prepare_torch(config: TrainConfig, mesh: ParallelMesh) -> None:
    """Sets what holds for the whole process: allocator, threads, determinism, seed."""
    if mesh.device.type == "cpu":
        keep_freed_memory()
        if config.threads:
            torch.set_num_threads(config.threads)
    torch.use_deterministic_algorithms(config.deterministic)
    torch.manual_seed(config.seed + mesh.rank)  # of dropout: weights have their own seeds


def empty_state(
    config: TrainConfig,
    mesh: ParallelMesh,
    precision: Precision,
    *,
    adapters: Adapters | None = None,
) -> TrainState:
    """Returns a state with memory for this rank's weights, without values.

    Args:
        config: Of the run.
        mesh: This rank among the others.
        precision: Of the run.
        adapters: Trained instead of the weights.
    """
    model = build_model(config.model, device="meta").train()
    pipeline = parallelize(
        model,
        mesh,
        recompute=config.recompute,
        compile=is_compiled(config.compile, mesh.layout, mesh.device),
        precision=precision.autocast,
        adapt=adapters.add if adapters else changes_for(precision),
    )
    materialize(model, pipeline, mesh.device)
    return TrainState(
        model=model,
        pipeline=pipeline,
        adapter=adapters.about if adapters else None,
        optimizers=build_optimizers(model, config.optimizer),
        scaler=LossScaler(config.loss_scale) if precision.name == "fp16" else None,
        average=WeightAverage(model, config.ema.decay) if config.ema.decay else None,
        spike_guard=None if isinstance(config.spike_guard, NoSpikeGuard) else SpikeGuard(config.spike_guard),
        phases=PhaseTimes(mesh.device if config.log.style == "megatron" else None),
    )


def _log_description(run: Run) -> None:
    config, mesh = run.config, run.mesh
    if mesh.size > 1:
        logger.info("%d ranks: %s", mesh.size, describe_layout(mesh.layout))
    logger.info(
        "%s with %s parameters on %s in %s; steps of %s samples of %d tokens, %s training tokens",
        config.model.kind,
        human_count(num_parameters(config.model)),
        describe_device(run.device),
        run.precision.name,
        config.batch_sizes,
        config.data.sequence_length,
        human_count(run.data.train.num_tokens),
    )
    if run.learning.adapters:
        logger.info("%s", run.learning.adapters.fact)
    for fact in run.data.facts:
        logger.info("%s", fact)


def require_vocabulary(config: TrainConfig, tokenizer: Tokenizer) -> None:
    """Refuses a model whose vocabulary is not that of the data.

    Raises:
        ConfigError: Naming both.
    """
    begins_anew = config.start.path is None  # other models may have more ids than their tokenizers
    if tokenizer.vocab_size > config.model.vocab_size or (
        begins_anew and tokenizer.vocab_size < config.model.vocab_size
    ):
        raise ConfigError(
            f"model.vocab_size is {config.model.vocab_size},"
            f" the tokenizer of the data has {tokenizer.vocab_size}",
            where=config.data.paths[0],
            fix=f"Set model.vocab_size={tokenizer.vocab_size}.",
        )
