"""From a config to a run that is ready to train: device, precision, data, model, optimizer, last state."""

import dataclasses
import logging
from pathlib import Path

import torch

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
from groundup.parallel.apply import parallelize
from groundup.parallel.device import choose_device, describe
from groundup.parallel.layout import describe as describe_layout
from groundup.parallel.mesh import ParallelMesh, init_distributed
from groundup.parallel.meta_init import materialize
from groundup.parallel.precision import LossScaler, Precision, choose_precision
from groundup.parallel.validate import validate_layout
from groundup.tokens.sampling.dataset import Samples
from groundup.tokens.sampling.packing import PackedDataset
from groundup.tokens.sampling.splits import Splits, open_splits, require_plan, tokenizer_of_data
from groundup.tokens.tokenizer.base import Tokenizer
from groundup.train.allocator import keep_freed_memory
from groundup.train.config import TrainConfig
from groundup.train.continue_run import CHECKPOINTS, checkpoint_to_continue
from groundup.train.ema import WeightAverage
from groundup.train.init_weights import begin
from groundup.train.optim import build_optimizers
from groundup.train.stability.spike_guard import NoSpikeGuard, RollbackGuard, SpikeGuard
from groundup.train.state import TrainState

CONFIG_FILE = "config.yaml"


@dataclasses.dataclass(kw_only=True)
class Run:
    """All that the loop reads."""

    config: TrainConfig
    device: torch.device
    precision: Precision
    splits: Splits
    training: Samples
    tokenizer: Tokenizer
    data_fingerprint: str
    state: TrainState
    mesh: ParallelMesh
    writer: Writer
    heartbeat: HeartbeatWriter

    @property
    def checkpoints_dir(self) -> Path:
        """Where the run's checkpoints are."""
        return checkpoints_of(self.config)

    def save(self, *, wait: bool, replaces: bool = False) -> None:
        """Saves the present state and removes what is older than is kept; all ranks do it together.

        Args:
            wait: Until it is on the disk, also where saving is asynchronous.
            replaces: A sound checkpoint of this step is removed, for it is one of this run.
        """
        snapshot = self.state.snapshot(self.config, self.data_fingerprint, self.mesh)
        self.writer.save(self.state.step, snapshot, replaces=replaces)
        if wait:
            self.writer.finish()


def checkpoints_of(config: TrainConfig) -> Path:
    """Where the checkpoints of a run are."""
    return config.run_dir / CHECKPOINTS


def writer_of(config: TrainConfig, tokenizer: Tokenizer, mesh: ParallelMesh) -> Writer:
    """What saves a run's checkpoints; all ranks make it together."""
    return Writer(
        checkpoints_of(config),
        model=config.model,
        tokenizer=tokenizer,
        mesh=mesh,
        asynchronous=config.checkpoint.asynchronous,
        keep=Keep(
            last=config.checkpoint.keep_last,
            every=config.checkpoint.keep_every,
            back=config.guard.back if isinstance(config.guard, RollbackGuard) else 0,
        ),
    )


def build_run(config: TrainConfig, heartbeat: HeartbeatWriter | None = None) -> Run:
    """Prepares a run, and continues it from its newest sound checkpoint where there is one.

    Raises:
        MachineError: The device or the precision asked for is not there.
        DataError: The data is missing, damaged, or too small for the plan.
        ConfigError: The model's vocabulary is not the tokenizer's.
        CheckpointError: The run folder holds another run, or damaged checkpoints only.
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
        logger.setLevel(logging.WARNING)  # one rank tells what all of them do
    precision = choose_precision(config.precision, mesh.device)
    _prepare_torch(config, mesh)

    splits = open_splits(config.data, seed=config.seed, num_samples=config.num_samples)
    require_plan(
        splits,
        num_steps=config.num_steps,
        batch_sizes=config.batch_sizes,
        validation=config.validation.interval > 0,
    )
    assert splits.train is not None, "the plan was checked"
    tokenizer = tokenizer_of_data(config.data)
    require_vocabulary(config, tokenizer)

    newest = checkpoint_to_continue(
        config, mesh, data_fingerprint=splits.fingerprint, tokenizer_fingerprint=tokenizer.fingerprint
    )
    state = _empty_state(config, mesh, precision)
    run = Run(
        config=config,
        device=mesh.device,
        precision=precision,
        splits=splits,
        training=splits.train,
        tokenizer=tokenizer,
        data_fingerprint=splits.fingerprint,
        state=state,
        mesh=mesh,
        writer=writer_of(config, tokenizer, mesh),
        heartbeat=heartbeat or HeartbeatWriter(None),
    )
    if newest:
        state.restore(newest, config, mesh)  # last: each rank reads what it has, to where it is
        logger.info("continuing from %s", newest)
    else:
        begin(state, config, mesh, tokenizer)
    if mesh.is_first:
        config.run_dir.mkdir(parents=True, exist_ok=True)
        with atomic_write(config.run_dir / CONFIG_FILE) as file:
            file.write(to_yaml(config).encode())
    _log_description(run)
    return run


def _prepare_torch(config: TrainConfig, mesh: ParallelMesh) -> None:
    """Sets what PyTorch keeps for the whole process: allocator, threads, determinism, seed."""
    if mesh.device.type == "cpu":
        keep_freed_memory()
        if config.threads:
            torch.set_num_threads(config.threads)
    torch.use_deterministic_algorithms(config.deterministic)
    torch.manual_seed(config.seed + mesh.rank)  # of dropout: the weights have seeds of their own


def _empty_state(config: TrainConfig, mesh: ParallelMesh, precision: Precision) -> TrainState:
    """Returns a state with room for this rank's weights, not yet filled."""
    model = build_model(config.model, device="meta").train()
    pipeline = parallelize(
        model,
        mesh,
        recompute=config.recompute,
        compile=config.compile,
        precision=precision.autocast,
    )
    materialize(model, pipeline, mesh.device)
    return TrainState(
        model=model,
        pipeline=pipeline,
        optimizers=build_optimizers(model, config.optimizer),
        scaler=LossScaler(config.loss_scale) if precision.name == "fp16" else None,
        average=WeightAverage(model, config.ema.decay) if config.ema.decay else None,
        guard=None if isinstance(config.guard, NoSpikeGuard) else SpikeGuard(config.guard),
    )


def _log_description(run: Run) -> None:
    config, mesh = run.config, run.mesh
    if mesh.size > 1:
        logger.info("%d ranks: %s", mesh.size, describe_layout(mesh.layout))
    logger.info(
        "%s with %s parameters on %s in %s; steps of %s samples of %d tokens, %s training tokens",
        config.model.kind,
        human_count(num_parameters(config.model)),
        describe(run.device),
        run.precision.name,
        config.batch_sizes,
        config.data.sequence_length,
        human_count(run.training.num_tokens),
    )
    for part in run.splits.source_splits["train"]:
        if isinstance(part.samples, PackedDataset):
            logger.info("%s: %s", part.key, part.samples.describe())


def require_vocabulary(config: TrainConfig, tokenizer: Tokenizer) -> None:
    """Refuses a model of another vocabulary than that of the data.

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
