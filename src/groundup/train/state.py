"""What changes while a run trains, and its passage to and from checkpoints."""

import dataclasses
from typing import Any

import torch
from torch import Tensor

from groundup.checkpoint.logical import logical, logical_weights, physical
from groundup.checkpoint.store import Snapshot
from groundup.core.config import to_dict
from groundup.models import Model
from groundup.parallel.gather import whole
from groundup.parallel.team import Team
from groundup.train.config import TrainConfig
from groundup.train.optim import Optimizers
from groundup.train.precision import LossScaler


@dataclasses.dataclass(kw_only=True)
class TrainState:
    """Attributes: ``samples`` is the position in the data; ``scaler`` is None but for fp16."""

    model: Model
    optimizers: Optimizers
    scaler: LossScaler | None
    step: int = 0
    samples: int = 0
    tokens: int = 0
    skipped_steps: int = 0

    def snapshot(self, config: TrainConfig, data_fingerprint: str, team: Team) -> Snapshot:
        """What a checkpoint of this moment holds; all ranks make it together."""
        mine = {"cpu": torch.get_rng_state()}
        if torch.cuda.is_initialized():
            mine["cuda"] = torch.cuda.get_rng_state()
        random = {
            f"{name}/{rank}": state
            for rank, theirs in enumerate(team.gather(mine))
            for name, state in theirs.items()
        }
        counts: dict[str, Any] = {
            "step": self.step,
            "samples": self.samples,
            "tokens": self.tokens,
            "skipped_steps": self.skipped_steps,
        }
        if self.scaler:
            counts["loss_scale"] = self.scaler.state()
        return Snapshot(
            model=logical_weights(self.model, config.model),
            optimizer={
                key: _logical_entry(key, whole(tensor), config)
                for key, tensor in self.optimizers.state().items()
            },
            random=random,
            state=counts,
            about={"config": to_dict(config), "data": data_fingerprint},
        )

    def restore(self, snapshot: Snapshot, config: TrainConfig, team: Team) -> None:
        """Continues exactly where a checkpoint was taken; the model has its weights already.

        Raises:
            CheckpointError: The checkpoint is of another optimizer.
        """
        self.optimizers.load(
            {key: _physical_entry(key, tensor, config) for key, tensor in snapshot.optimizer.items()}
        )
        counts = snapshot.state
        self.step, self.samples, self.tokens = counts["step"], counts["samples"], counts["tokens"]
        self.skipped_steps = counts["skipped_steps"]
        if self.scaler and "loss_scale" in counts:
            self.scaler.load(counts["loss_scale"])
        # A rank that there was not keeps the state of its seed.
        if f"cpu/{team.rank}" in snapshot.random:
            torch.set_rng_state(snapshot.random[f"cpu/{team.rank}"])
        if f"cuda/{team.rank}" in snapshot.random and torch.cuda.is_available():
            torch.cuda.set_rng_state(snapshot.random[f"cuda/{team.rank}"])


def _logical_entry(key: str, tensor: Tensor, config: TrainConfig) -> Tensor:
    return logical(key.rpartition("/")[0], tensor, config.model) if tensor.ndim else tensor


def _physical_entry(key: str, tensor: Tensor, config: TrainConfig) -> Tensor:
    return physical(key.rpartition("/")[0], tensor, config.model) if tensor.ndim else tensor
