"""What changes while a run trains, and its passage to and from checkpoints."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from groundup.checkpoint.companions import Companions
from groundup.checkpoint.logical_tensors import find_mismatch, logical_shapes
from groundup.checkpoint.native.contents import TrainingCounts, read_checkpoint_manifest, read_groups
from groundup.checkpoint.native.load import TensorGroup, load_into
from groundup.checkpoint.native.model import sound_companions
from groundup.checkpoint.native.save import Snapshot
from groundup.checkpoint.native.shards import checkpoint_name
from groundup.core.config import to_dict
from groundup.core.errors import CheckpointError
from groundup.models import Model
from groundup.parallel.mesh import ParallelMesh
from groundup.parallel.pipeline_parallel import Pipeline
from groundup.parallel.precision import LossScaler
from groundup.train.config import TrainConfig
from groundup.train.ema import WeightAverage
from groundup.train.optim import Optimizers
from groundup.train.rng import RngStates
from groundup.train.stability.spike_guard import SpikeGuard


@dataclasses.dataclass(kw_only=True)
class TrainState:
    """What changes from step to step.

    Attributes:
        model: The whole, or this rank's share of its layers.
        pipeline: How micro-batches pass through the ranks' shares; None where there is one.
        optimizers: Of the model's parameters.
        scaler: None but for fp16.
        average: Of the weights; None where none is kept.
        guard: Judges steps; None where every step counts.
        step: Steps done.
        samples: Position in the data.
        tokens: Targets trained on.
        skipped_steps: Steps without an update.
        bos_ids: Ids before every prompt, where the model that the run began with has some.
        companions: Chat template, settings of generation, ... of the model that the run began with.
    """

    model: Model
    optimizers: Optimizers
    scaler: LossScaler | None
    pipeline: Pipeline | None = None
    average: WeightAverage | None = None
    guard: SpikeGuard | None = None
    step: int = 0
    samples: int = 0
    tokens: int = 0
    skipped_steps: int = 0
    bos_ids: tuple[int, ...] = ()
    companions: Companions = dataclasses.field(default_factory=Companions)

    @property
    def parts(self) -> list[Model]:
        """What passes go through on this rank: the model, or its stages."""
        return list(self.pipeline.parts.values()) if self.pipeline else [self.model]

    @property
    def copies(self) -> frozenset[str]:
        """Names of parameters that are copies of another rank's."""
        return frozenset({"head.weight"} if self.pipeline and self.pipeline.tied_head else ())

    def snapshot(self, config: TrainConfig, data_fingerprint: str, mesh: ParallelMesh) -> Snapshot:
        """What a checkpoint of this moment holds, as this rank has it."""
        groups = {"model": self._weights(), "optimizer": self.optimizers.state()}
        if self.average:
            groups["ema"] = self.average.values
        return Snapshot(
            groups={
                group: {checkpoint_name(key, config.model): tensor for key, tensor in tensors.items()}
                for group, tensors in groups.items()
            },
            random={f"{name}/{mesh.rank}": state for name, state in RngStates.now().states.items()},
            counts=TrainingCounts(
                step=self.step,
                samples=self.samples,
                tokens=self.tokens,
                skipped_steps=self.skipped_steps,
                loss_scale=self.scaler.state() if self.scaler else None,
                guard=self.guard.state() if self.guard else None,
            ),
            config=to_dict(config),
            data=data_fingerprint,
            bos_ids=self.bos_ids,
            companions=self.companions,
        )

    def restore(self, folder: Path, config: TrainConfig, mesh: ParallelMesh) -> None:
        """Continues exactly where a checkpoint was taken; each rank reads what it holds.

        Raises:
            CheckpointError: It is of another model or another optimizer.
        """
        weights = TensorGroup(folder, "model")
        shapes = {name: tensor.shape for name, tensor in weights.items()}
        if mismatch := find_mismatch(logical_shapes(config.model), shapes):
            raise CheckpointError(f"does not fit the model: {mismatch}", where=folder)
        load_into(weights, _named(self._weights(), config), config.model)
        manifest = read_checkpoint_manifest(folder)
        self._restore_optimizer(folder, config, manifest.about.config)
        if self.average and "ema" in read_groups(folder):
            load_into(TensorGroup(folder, "ema"), _named(self.average.values, config), config.model)
        elif self.average:
            self.average.begin()  # it was not asked for until now

        counts = manifest.counts
        self.bos_ids = manifest.about.bos_ids
        self.companions = sound_companions(folder, manifest.files)
        self.step, self.samples, self.tokens = counts.step, counts.samples, counts.tokens
        self.skipped_steps = counts.skipped_steps
        if self.scaler and counts.loss_scale:
            self.scaler.load(counts.loss_scale)
        if self.guard and counts.guard:
            self.guard.load(counts.guard)
        # A rank that there was not keeps the state of its seed.
        random_states(folder, mesh.rank).restore()

    def _weights(self) -> dict[str, Tensor]:
        return {name: parameter.detach() for name, parameter in self.model.named_parameters()}

    def _restore_optimizer(self, folder: Path, config: TrainConfig, before: Mapping[str, Any]) -> None:
        group = TensorGroup(folder, "optimizer")
        entries: dict[str, dict[str, tuple[torch.dtype, tuple[int, ...]]]] = {}
        for key, tensor in group.items():
            name, _, moment = key.rpartition("/")
            entries.setdefault(name, {})[moment] = tensor.dtype, tensor.shape
        kind = before.get("optimizer", {"kind": "adamw"})["kind"]  # Megatron-LM's moments are Adam's
        if entries and kind != config.optimizer.kind:
            raise CheckpointError(
                f"optimizer.kind was {kind} and is {config.optimizer.kind}",
                where=folder,
                fix="Restore the setting, or name another run_dir.",
            )
        if entries and (mismatch := find_mismatch(logical_shapes(config.model).keys(), entries.keys())):
            raise CheckpointError(
                f"optimizer state does not fit the parameters: {mismatch}",
                where=folder,
                fix="Continue with the optimizer the run began with.",
            )
        of_mine = {name: entries.get(checkpoint_name(name, config.model), {}) for name in self._weights()}
        load_into(group, _named(self.optimizers.make_room(of_mine), config), config.model)


def random_states(folder: Path, rank: int) -> RngStates:
    """Reads the states of a rank's generators from a checkpoint."""
    group = TensorGroup(folder, "random")
    names = {name.rpartition("/")[0]: name for name in group if name.endswith(f"/{rank}")}
    return RngStates({generator: group.read(name) for generator, name in names.items()})


def _named(tensors: Mapping[str, Tensor], config: TrainConfig) -> list[tuple[str, Tensor]]:
    """Tensors with the names that they have in a checkpoint."""
    return [(checkpoint_name(key, config.model), tensor) for key, tensor in tensors.items()]
