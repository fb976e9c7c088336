"""Where a run of ``--save`` and ``--load`` goes on: in our own run below the folder, or from a checkpoint."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from groundup.checkpoint.formats import FORMATS, detect_format
from groundup.checkpoint.megatron.optimizer import has_optimizer
from groundup.checkpoint.megatron.ranks import (
    RELEASE,
    TRACKER,
    Rank,
    checkpoint_folder,
    is_distributed,
    open_ranks,
)
from groundup.checkpoint.native.contents import read_checkpoint_manifest
from groundup.checkpoint.native.folder import CHECKPOINTS, list_checkpoints, step_of
from groundup.core.errors import CheckpointError
from groundup.core.log import logger
from groundup.megatron.model_flags import MODEL_NAMES
from groundup.megatron.parse_flags import Given
from groundup.megatron.setting_tree import refusal

_RUN = "groundup"
"""Our run below ``--save``; later ones, which began with what Megatron-LM left there, are ``groundup_N``."""


@dataclasses.dataclass(frozen=True)
class Beginning:
    """The run folder, and what a new run in it begins with.

    Attributes:
        run_dir: It may hold a run already, which then goes on.
        path: The checkpoint that the run begins, or once began with; None for random weights.
        state: Whether with the optimizer's state and the step.
        args: Megatron-LM's of that checkpoint, or none.
        newest: The checkpoint in the run folder from which the run goes on; None where it begins.
    """

    run_dir: Path
    path: Path | None = None
    state: bool = False
    args: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    newest: Path | None = None

    def of_length(self, num_steps: int) -> "Beginning":
        """The same for a run of so many steps: Megatron-LM's order of samples depends on their number.

        A run of another length goes on as a new one, with the state of the old one.
        """
        if self.newest is None:
            return self
        before = read_checkpoint_manifest(self.newest).about.config.get("num_steps")
        if before == num_steps:
            return self
        run_dir = _free_run(self.run_dir.parent)
        logger.info(
            "%s was of %s steps and is now of %d: it goes on in %s", self.run_dir, before, num_steps, run_dir
        )
        return Beginning(run_dir, self.newest, state=True)


def find_beginning(given: Given) -> Beginning:
    """Finds out where to begin; nothing that is there would be written over.

    Raises:
        ConfigError: ``--save`` is missing, or holds checkpoints of others that the run would replace.
        CheckpointError: There is nothing at ``--load``, or it is damaged.
    """
    if not given["save"]:
        raise refusal("--save is missing: the run would leave nothing behind", "Name a folder: --save DIR.")
    save = Path(given["save"])
    load = Path(given["load"]) if given["load"] else None
    is_same = load is not None and load.resolve() == save.resolve()
    own = _newest_run(save)
    theirs = _iteration_of(save)
    if own and step_of(own) >= (theirs or 0) and not (is_same and given["ckpt_step"]):
        if is_same and given["finetune"]:
            raise refusal(f"--finetune begins a run, and {save} holds one", "Name another --save.")
        if not is_same:
            logger.info("%s holds a run of step %d, which goes on", save, step_of(own))
        began = read_checkpoint_manifest(own).about.config["start"]
        path = Path(began["path"]) if began["path"] else None
        return Beginning(own.parents[1], path, began["state"], newest=own)
    if theirs is not None and not is_same:
        raise refusal(
            f"{save} holds checkpoints of Megatron-LM, which this run would replace",
            f"Go on from them with --load {save}, or name another --save.",
        )
    run_dir = _free_run(save)
    if load is None:
        return Beginning(run_dir)
    return _begin_with(given, load, run_dir)


def _begin_with(given: Given, load: Path, run_dir: Path) -> Beginning:
    weights_alone = bool(given["finetune"] or given["no_load_optim"])
    if given["ckpt_step"]:
        load = load / f"iter_{given['ckpt_step']:07d}"
    own = _newest_run(load)
    if own and step_of(own) >= (_iteration_of(load) or 0):
        return Beginning(run_dir, own, not weights_alone)
    if not load.exists() or (load.is_dir() and not any(entry.codec.detect(load) for entry in FORMATS)):
        if pretrained := given["pretrained_checkpoint"]:
            return _of_checkpoint(Path(pretrained), run_dir, weights_alone=True)
        if given["exit_on_missing_checkpoint"]:
            raise CheckpointError("holds no checkpoint", where=f"--load {load}", fix="Check the path.")
        logger.warning("--load %s holds no checkpoint: the run begins with random weights", load)
        return Beginning(run_dir)
    return _of_checkpoint(load, run_dir, weights_alone=weights_alone)


def _of_checkpoint(path: Path, run_dir: Path, *, weights_alone: bool) -> Beginning:
    found = detect_format(path)
    if found.name != "megatron":
        return Beginning(run_dir, path, found.keeps_run and not weights_alone)
    folder = checkpoint_folder(path)
    if is_distributed(folder):
        logger.warning("%s is of the format torch_dist, of which weights alone are read", folder)
        return Beginning(run_dir, path)
    first = open_ranks(folder).first
    state = not weights_alone and folder.name != RELEASE and _has_state(first)
    return Beginning(run_dir, path, state, first.args)


def _has_state(first: Rank) -> bool:
    if has_optimizer(first) and first.content.get("iteration"):
        return True
    logger.warning("%s holds no state of an optimizer: weights alone, from step 0", first.path)
    return False


def model_args(beginning: Beginning, load: Path) -> dict[str, Any]:
    """The flags of the model as the checkpoint has them, for ``--use-checkpoint-args``.

    Raises:
        CheckpointError: It has none.
    """
    args = beginning.args
    if not args and _iteration_of(load) is not None:  # beside our own run
        args = open_ranks(checkpoint_folder(load)).first.args
    found = {
        name: value
        for name, value in args.items()
        if name in MODEL_NAMES and isinstance(value, int | float | str)
    }
    if not found:
        raise CheckpointError(
            "holds no args, which --use-checkpoint-args asks for",
            where=f"--load {load}",
            fix="Give the model's flags instead.",
        )
    return found


def _newest_run(folder: Path) -> Path | None:
    """The newest checkpoint of our own runs below a folder."""
    found = [
        checkpoint
        for run in sorted(folder.glob(f"{_RUN}*"))
        if (run / CHECKPOINTS).is_dir()
        for checkpoint in list_checkpoints(run / CHECKPOINTS)[-1:]
    ]
    return max(found, key=step_of, default=None)


def _iteration_of(folder: Path) -> int | None:
    """The iteration of Megatron-LM's newest checkpoint in a folder, 0 for a release; None without one."""
    if not (folder / TRACKER).is_file():
        return None
    name = checkpoint_folder(folder).name
    return 0 if name == RELEASE else int(name.removeprefix("iter_"))


def _free_run(save: Path) -> Path:
    """The first of our run folders below a folder that holds no checkpoint."""
    number = 1
    while True:
        run_dir = save / (_RUN if number == 1 else f"{_RUN}_{number}")
        if not ((run_dir / CHECKPOINTS).is_dir() and list_checkpoints(run_dir / CHECKPOINTS)):
            return run_dir
        number += 1
