"""The state of a run that changes while it trains, and its way to and from checkpoints."""

import dataclasses
from collections.abc import Collection, Mapping
from pathlib import Path

import torch
from torch import Tensor

from groundup.checkpoint.companions import Companions
from groundup.checkpoint.logical_tensors import find_mismatch, kept_parameters, logical_shapes
from groundup.checkpoint.low_rank import AdapterAbout, require_same_base
from groundup.checkpoint.native.contents import TrainingCounts, read_checkpoint_manifest, read_groups
from groundup.checkpoint.native.load import TensorGroup, load_into
from groundup.checkpoint.native.model import sound_companions
from groundup.checkpoint.native.save import Snapshot
from groundup.checkpoint.native.shards import checkpoint_name
from groundup.core.config import to_dict
from groundup.core.errors import CheckpointError
from groundup.models import Model
from groundup.parallel.device import LossScaler
from groundup.parallel.mesh import ParallelMesh
from groundup.parallel.pipeline_parallel import Pipeline
from groundup.train.config import TrainConfig
from groundup.train.ema import WeightAverage
from groundup.train.optim import Optimizers
from groundup.train.phase_times import PhaseTimes
from groundup.train.stability.spike_guard import SpikeGuard


@dataclasses.dataclass(frozen=True)
class RngStates:
    """RNG states of this rank, of the generators that dropout draws from.

    Attributes:
        states: By generator, "cpu" or "cuda"; uint8.
    """

    states: dict[str, Tensor]

    @staticmethod
    def now() -> "RngStates":
        """Copies the present states without waiting for the device."""
        states = {"cpu": torch.get_rng_state()}
        if torch.cuda.is_initialized():
            states["cuda"] = torch.cuda.get_rng_state()
        return RngStates(states)

    def restore(self) -> None:
        """Restores the generators of the devices that are here."""
        if "cpu" in self.states:
            torch.set_rng_state(self.states["cpu"])
        if "cuda" in self.states and torch.cuda.is_available():
            torch.cuda.set_rng_state(self.states["cuda"])


@dataclasses.dataclass(kw_only=True)
class TrainState:
    """State that changes from step to step.

    Attributes:
        model: The whole model, or this rank's layers of it.
        pipeline: This rank's stages; None without pipeline parallelism.
        adapter: What the adapters are of, which alone are trained and saved; None where all weights are.
        optimizers: Of the model's parameters.
        scaler: Loss scaler of fp16; None for other formats.
        average: Moving average of the weights; None where none is kept.
        spike_guard: Judges steps; None where every step counts.
        step: Steps done.
        samples: Position in the data.
        updated_samples: Samples of the steps with an update.
        tokens: Targets trained on.
        skipped_steps: Steps without an update.
        bos_ids: Ids before every prompt, where the model that the run began with has some.
        companions: Chat template, settings of generation, ... of the model that the run began with.
        phases: Times of the phases of steps.
    """

    model: Model
    optimizers: Optimizers
    scaler: LossScaler | None
    pipeline: Pipeline | None = None
    adapter: AdapterAbout | None = None
    average: WeightAverage | None = None
    spike_guard: SpikeGuard | None = None
    step: int = 0
    samples: int = 0
    updated_samples: int = 0
    tokens: int = 0
    skipped_steps: int = 0
    bos_ids: tuple[int, ...] = ()
    companions: Companions = dataclasses.field(default_factory=Companions)
    phases: PhaseTimes = dataclasses.field(default_factory=PhaseTimes)

    @property
    def parts(self) -> list[Model]:
        """The models that passes run through on this rank: the whole one, or its stages."""
        return list(self.pipeline.parts.values()) if self.pipeline else [self.model]

    @property
    def copies(self) -> frozenset[str]:
        """Names of parameters that are copies of another rank's parameters."""
        return frozenset({"head.weight"} if self.pipeline and self.pipeline.tied_head else ())

    def snapshot(self, config: TrainConfig, data_fingerprint: str, mesh: ParallelMesh) -> Snapshot:
        """Returns this rank's part of a checkpoint of the present state."""
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
                updated_samples=None if self.updated_samples == self.samples else self.updated_samples,
                tokens=self.tokens,
                skipped_steps=self.skipped_steps,
                loss_scale=self.scaler.state() if self.scaler else None,
                spike_guard=self.spike_guard.state() if self.spike_guard else None,
            ),
            config=to_dict(config),
            data=data_fingerprint,
            bos_ids=self.bos_ids,
            companions=self.companions,
            adapter=self.adapter,
        )

    def restore(self, folder: Path, config: TrainConfig, mesh: ParallelMesh) -> None:
        """Restores a checkpoint exactly; each rank reads its part.

        Raises:
            CheckpointError: It is of another model, another base or another optimizer.
        """
        weights = TensorGroup(folder, "model")
        manifest = read_checkpoint_manifest(folder)
        shapes = {name: tensor.shape for name, tensor in weights.items()}
        if self.adapter:
            require_same_base(self.adapter, manifest.about.adapter, folder)
        elif mismatch := find_mismatch(logical_shapes(config.model), shapes):
            raise CheckpointError(f"does not fit the model: {mismatch}", where=folder)
        load_into(weights, _named(self._weights(), config), config.model)
        self._restore_optimizer(folder, config, set(weights))
        if self.average and "ema" in read_groups(folder):
            load_into(TensorGroup(folder, "ema"), _named(self.average.values, config), config.model)
        elif self.average:
            self.average.begin()  # the run had none until now

        counts = manifest.counts
        self.bos_ids = manifest.about.bos_ids
        self.companions = sound_companions(folder, manifest.files)
        self.step, self.samples, self.tokens = counts.step, counts.samples, counts.tokens
        self.skipped_steps = counts.skipped_steps
        self.updated_samples = counts.samples if counts.updated_samples is None else counts.updated_samples
        if self.scaler and counts.loss_scale:
            self.scaler.load(counts.loss_scale)
        if self.spike_guard and counts.spike_guard:
            self.spike_guard.load(counts.spike_guard)
        # A rank that did not exist keeps the state of its seed.
        random_states(folder, mesh.rank).restore()

    def _weights(self) -> dict[str, Tensor]:
        return {name: parameter.detach() for name, parameter in kept_parameters(self.model).items()}

    def _restore_optimizer(self, folder: Path, config: TrainConfig, names: Collection[str]) -> None:
        group = TensorGroup(folder, "optimizer")
        entries: dict[str, dict[str, tuple[torch.dtype, tuple[int, ...]]]] = {}
        for key, tensor in group.items():
            name, _, moment = key.rpartition("/")
            entries.setdefault(name, {})[moment] = tensor.dtype, tensor.shape
        if entries and (mismatch := find_mismatch(names, entries.keys())):
            raise CheckpointError(
                f"optimizer state does not fit the parameters: {mismatch}",
                where=folder,
                fix="Continue with the optimizer the run began with.",
            )
        of_mine = {name: entries.get(checkpoint_name(name, config.model), {}) for name in self._weights()}
        for name, parameter in self._weights().items() if entries else ():
            held = sorted(entry for entry, (_, shape) in of_mine[name].items() if shape)
            kept = sorted(config.optimizer.state_of(name, parameter))
            if held != kept:
                raise CheckpointError(
                    f"holds {' and '.join(held) or 'nothing'} of {name}, of which"
                    f" optimizer.kind={config.optimizer.kind} keeps {' and '.join(kept) or 'nothing'}",
                    where=folder,
                    fix="Restore the settings of the optimizer, or name another run_dir.",
                )
        load_into(group, _named(self.optimizers.make_room(of_mine), config), config.model)


def random_states(folder: Path, rank: int) -> RngStates:
    """Reads the RNG states of a rank from a checkpoint."""
    group = TensorGroup(folder, "random")
    names = {name.rpartition("/")[0]: name for name in group if name.endswith(f"/{rank}")}
    return RngStates({generator: group.read(name) for generator, name in names.items()})


def _named(tensors: Mapping[str, Tensor], config: TrainConfig) -> list[tuple[str, Tensor]]:
    """Returns tensors with their names in a checkpoint."""
    return [(checkpoint_name(key, config.model), tensor) for key, tensor in tensors.items()]
