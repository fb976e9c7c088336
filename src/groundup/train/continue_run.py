"""What a run folder holds already: this run, another one, or damaged checkpoints only."""

import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from groundup.checkpoint.native.commit import recover_replaced
from groundup.checkpoint.native.contents import CheckpointAbout, read_checkpoint_manifest
from groundup.checkpoint.native.folder import CHECKPOINTS, describe_damage, find_newest, point_latest
from groundup.core.config import to_dict
from groundup.core.errors import CheckpointError, MachineError
from groundup.core.log import logger
from groundup.parallel.mesh import ParallelMesh
from groundup.train.config import TrainConfig
from groundup.train.metrics import METRICS_FILE, last_step
from groundup.train.trackers import TRACKERS

_OF_A_RUN = (CHECKPOINTS, METRICS_FILE, TRACKERS, "tensorboard")
_MUST_MATCH = (
    "model",
    "data.split",
    "data.sources",
    "data.sequence_length",
    "data.order",
    "data.planned_samples",
    "data.packing",
    "data.mask_documents",
    "global_batch_size",
    "batch_ramp",
    "seed",
    "stage",
    "lora",
)
"""Settings without which a run would not be the same run."""
_MAY_DIFFER = (".path", ".max_epochs")
"""Endings of those that may change all the same: the data's fingerprint says whether it is the same."""


def checkpoint_to_continue(
    config: TrainConfig, mesh: ParallelMesh, *, data_fingerprint: str, tokenizer_fingerprint: str
) -> Path | None:
    """The newest sound checkpoint of the run folder, None where the run begins; all ranks together.

    Where all are damaged, ``start.anew`` sets them aside.

    Args:
        config: Of the run.
        mesh: The ranks.
        data_fingerprint: Of the data.
        tokenizer_fingerprint: Of the data's tokenizer, without which a checkpoint's copy would be needed.

    Raises:
        CheckpointError: All checkpoints are damaged, or the newest is of another run.
        MachineError: What is there cannot be set aside.
    """
    checkpoints_dir = config.run_dir / CHECKPOINTS
    if mesh.is_first:
        recover_replaced(checkpoints_dir)
    mesh.barrier()
    newest, damaged = find_newest(checkpoints_dir, mesh, tokenizer=tokenizer_fingerprint)
    if newest:
        _require_same_run(config, data_fingerprint, read_checkpoint_manifest(newest).about, newest)
        if mesh.is_first:
            point_latest(newest)  # it may lead to a damaged one
        return newest
    if damaged and not config.start.anew:
        raise CheckpointError(
            f"all checkpoints of the run are damaged: {describe_damage(damaged)}",
            where=checkpoints_dir,
            fix=f"Copy one again and check it (groundup checkpoint verify {config.run_dir}), or name another"
            " run_dir, or begin anew with start.anew=true, which sets these aside.",
        )
    problem = ""
    if mesh.is_first:
        try:
            _set_aside(config, _OF_A_RUN if damaged else _lost_run(config))
        except OSError as error:
            problem = str(error)
    if problem := mesh.all_gather(problem)[0]:
        raise MachineError(f"what is there cannot be set aside ({problem})", where=config.run_dir)
    return None


def _lost_run(config: TrainConfig) -> tuple[str, ...]:
    """The records of a run whose checkpoints somebody has taken away; nothing where none was saved yet."""
    path = config.run_dir / METRICS_FILE
    return (METRICS_FILE,) if last_step(path) >= config.checkpoint.interval else ()


def _set_aside(config: TrainConfig, names: Iterable[str]) -> None:
    """Moves what a run has written to a folder of its own beside it."""
    paths = [config.run_dir / name for name in names if (config.run_dir / name).exists()]
    if not paths:
        return
    folders = (config.run_dir / f"set-aside-{count}" for count in itertools.count(1))
    folder = next(folder for folder in folders if not folder.exists())
    folder.mkdir()
    for path in paths:
        path.rename(folder / path.name)
    logger.warning("the run begins anew; moved to %s: %s", folder, ", ".join(path.name for path in paths))


def _require_same_run(
    config: TrainConfig, data_fingerprint: str, about: CheckpointAbout, where: object
) -> None:
    """Refuses to continue a checkpoint as what it was not; changes that are allowed are logged.

    Raises:
        CheckpointError: Naming the settings that differ.
    """
    if about.converted_from is not None:
        raise CheckpointError(
            "holds a converted model, not a run",
            where=where,
            fix=f"Name another run_dir, and begin with this model: start.path={config.run_dir}",
        )
    before, now = _flat(about.config), _flat(to_dict(config))
    changed = sorted(key for key in before.keys() | now.keys() if before.get(key) != now.get(key))
    fixed_length = () if config.data.order == "seeded" or config.data.planned_samples else ("num_steps",)
    forbidden = [
        key
        for key in changed
        if key.startswith((*_MUST_MATCH, *fixed_length)) and not key.endswith(_MAY_DIFFER)
    ]
    if forbidden:
        differences = ", ".join(f"{key} was {before.get(key)} and is {now.get(key)}" for key in forbidden)
        raise CheckpointError(
            f"the run folder holds another run: {differences}",
            where=where,
            fix="Name another run_dir, or restore the settings.",
        )
    if about.data != data_fingerprint:
        raise CheckpointError(
            f"trained on other data ({about.data})"
            f" than {', '.join(map(str, config.data.paths))} ({data_fingerprint})",
            where=where,
            fix="Restore the data, or name another run_dir.",
        )
    for key in changed:
        logger.info("since the checkpoint, %s changed from %s to %s", key, before.get(key), now.get(key))


def _flat(tree: dict[str, Any], prefix: str = "") -> dict[str, object]:
    flat: dict[str, object] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            flat.update(_flat(value, f"{prefix}{key}."))
        else:
            flat[prefix + key] = value
    return flat
