"""Completions on disk, where several steps learn from them, and a run may be restored amid these.

``rollouts/0000012.safetensors`` of a run folder has the whole batch of all ranks.
"""

from pathlib import Path

import safetensors.torch
import torch
from safetensors import SafetensorError

from groundup.checkpoint.native.folder import CHECKPOINTS, list_checkpoints, step_of
from groundup.core.errors import CheckpointError
from groundup.core.files import atomic_write
from groundup.parallel.mesh import ParallelMesh
from groundup.train.data_loader import Batch, share_of_rows

FOLDER = "rollouts"


class RolloutFiles:
    """The files of a run.

    Args:
        run_dir: Folder of the run.
        mesh: Its ranks.
        updates: Steps that learn from the same completions.
    """

    def __init__(self, run_dir: Path, mesh: ParallelMesh, *, updates: int) -> None:
        self._checkpoints = run_dir / CHECKPOINTS
        self._folder = run_dir / FOLDER
        self._mesh = mesh
        self._updates = updates

    def write(self, rollout: int, batch: Batch) -> None:
        """Writes the batch of all ranks, each of which has its share; removes what no checkpoint needs."""
        own = {"tokens": batch.tokens_BT, "targets": batch.targets_BT, **batch.extra}
        parts = self._mesh.all_gather({name: tensor.cpu() for name, tensor in own.items()})
        if not self._mesh.is_first:
            return
        whole = {name: torch.cat([part[name] for part in parts]) for name in own}
        self._folder.mkdir(parents=True, exist_ok=True)
        with atomic_write(self._path(rollout)) as file:
            file.write(safetensors.torch.save(whole))
        steps = [step_of(folder) for folder in list_checkpoints(self._checkpoints)]
        needed = {step // self._updates for step in steps if step % self._updates}
        for path in self._folder.glob("*.safetensors"):
            # One is being learned from, and a checkpoint of the one before may be being written.
            if int(path.stem) < rollout - 1 and int(path.stem) not in needed:
                path.unlink()

    def read(self, rollout: int) -> Batch:
        """Returns this rank's share of a batch.

        Raises:
            CheckpointError: It is missing or damaged.
        """
        path = self._path(rollout)
        try:
            tensors = safetensors.torch.load(path.read_bytes())
        except (OSError, SafetensorError) as error:
            raise CheckpointError(
                f"the completions that the checkpoint goes on with cannot be read ({error})",
                where=path,
                fix=f"Bring the file back, or begin from a checkpoint whose step is a multiple of"
                f" stage.updates {self._updates}.",
            ) from None
        whole = Batch(tokens_BT=tensors.pop("tokens"), targets_BT=tensors.pop("targets"), extra=tensors)
        return share_of_rows(whole, self._mesh.dp_rank, self._mesh.dp)

    def _path(self, rollout: int) -> Path:
        return self._folder / f"{rollout:07}.safetensors"
