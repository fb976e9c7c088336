"""``groundup checkpoint``: list, show, check, compare and prune native checkpoints."""

import contextlib
import datetime
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import cyclopts

from groundup.cli.options import Switch
from groundup.cli.printing import folder_bytes, human_bytes, print_rows
from groundup.core.errors import CheckpointError, ConfigError
from groundup.core.progress import Progress

if TYPE_CHECKING:
    from groundup.checkpoint.native.pruning import Keep

_SHOWN = 12


def ls(run: Path, *, quick: Switch = False) -> None:
    """List the checkpoints of a run, the newest last: step, time, size, and whether each is whole.

    For example:

        groundup checkpoint ls runs/gpt2

    Args:
        run: A run folder, or its folder of checkpoints.
        quick: Do not read the files, which takes a while for large ones: only see that all are there with
            their sizes.
    """
    from groundup.checkpoint.native.contents import read_checkpoint_manifest
    from groundup.checkpoint.native.folder import (
        find_damage,
        find_missing,
        list_checkpoints,
    )

    folders = list_checkpoints(_checkpoints_dir(run))
    if not folders:
        raise CheckpointError(
            "holds no checkpoints", where=run, fix="Name a run folder of `groundup train`, or convert to one."
        )
    print(f"{'checkpoint':<14}  {'written':<19}  {'size':>9}  {'files':>5}  {'tokens':>15}  state")
    for folder in folders:
        reason = find_missing(folder) if quick else find_damage(folder)
        written = datetime.datetime.fromtimestamp(folder.stat().st_mtime).isoformat(" ", "seconds")
        size = human_bytes(folder_bytes(folder))
        tokens, num_files = "", ""
        if not reason:
            manifest = read_checkpoint_manifest(folder)
            tokens, num_files = f"{manifest.counts.tokens:,}", str(len(manifest.files))
        print(
            f"{folder.name:<14}  {written:<19}  {size:>9}  {num_files:>5}  {tokens:>15}"
            f"  {reason or ('all files there, not read' if quick else 'whole')}",
            flush=True,
        )


def show(path: Path, *, tensors: Switch = False) -> None:
    """Show what a checkpoint holds: architecture, progress, layout that saved it, tensors by group.

    For example:

        groundup checkpoint show runs/gpt2
        groundup checkpoint show runs/gpt2/checkpoints/step_0001000 --tensors

    Args:
        path: A checkpoint, or a run folder for its newest sound one.
        tensors: List every tensor with its dtype, shape and the files that hold it.
    """
    from groundup.checkpoint.lazy import dtype_name
    from groundup.checkpoint.native.contents import read_checkpoint_manifest, read_groups
    from groundup.checkpoint.native.folder import (
        resolve_checkpoint,
    )
    from groundup.checkpoint.native.load import TensorGroup
    from groundup.core.config import to_dict

    folder = resolve_checkpoint(path)
    manifest = read_checkpoint_manifest(folder)
    config = manifest.about.config
    rows = [
        ("checkpoint", str(folder)),
        ("model", _value(config["model"])),
        *(
            (key.replace("_", " "), _value(value))
            for key, value in to_dict(manifest.counts).items()
            if value is not None
        ),
        ("data", manifest.about.data or "unknown"),
        ("tokenizer", manifest.about.tokenizer),
        (
            "written by",
            f"groundup {manifest.groundup_version}, torch {manifest.about.torch}",
        ),
    ]
    if adapter := manifest.about.adapter:
        rows.append(("adapter", f"of rank {adapter.rank}, of the base {adapter.base}"))
    if layout := config.get("layout"):
        rows.append(("layout", _value({key: value for key, value in layout.items() if key != "pipeline"})))
    groups = [TensorGroup(folder, name) for name in read_groups(folder)]
    for group in groups:
        num_files = len({part.file for entry in group.values() for part in entry.chunks})
        numbers = sum(math.prod(entry.shape) for entry in group.values())
        dtypes = sorted({dtype_name(entry.dtype) for entry in group.values()})
        rows.append(
            (
                group.name,
                f"{len(group):,} tensors, {numbers:,} numbers in {' and '.join(dtypes) or 'no dtype'},"
                f" {human_bytes(group.size_bytes)} in {num_files} files",
            )
        )
    print_rows(rows)
    if tensors:
        for group in groups:
            print(f"\n{group.name}")
            for name, entry in group.items():
                files = ", ".join(part.file.name for part in entry.chunks)
                print(f"  {name}  {str(entry.dtype).removeprefix('torch.')} {list(entry.shape)}  {files}")


def verify(path: Path) -> None:
    """Check every byte of a checkpoint, or of all checkpoints of a run, against the checksums.

    The exit code is 1 where one is damaged, which is named with the reason.

    For example:

        groundup checkpoint verify runs/gpt2
        groundup checkpoint verify runs/gpt2/checkpoints/step_0001000

    Args:
        path: A checkpoint, or a run folder.
    """
    from groundup.checkpoint.native.folder import (
        find_damage,
        is_checkpoint,
        list_checkpoints,
    )

    folders = [path] if is_checkpoint(path) else list_checkpoints(_checkpoints_dir(path))
    if not folders:
        raise CheckpointError("holds no checkpoints", where=path, fix="Name a run folder or a checkpoint.")
    damaged = []
    for folder in folders:
        reason = find_damage(folder)
        print(f"{folder}: {reason or 'sound'}", flush=True)
        if reason:
            damaged.append(folder.name)
    if damaged:
        raise CheckpointError(
            f"{len(damaged)} of {len(folders)} checkpoints are damaged: {', '.join(damaged)}",
            where=path,
            fix="`groundup train` passes over them where there is a sound one; remove them when you like.",
        )


def diff(
    first: Path,
    second: Path,
    *,
    all_tensors: Annotated[bool, cyclopts.Parameter(name="--all", negative="")] = False,
) -> None:
    """Compare two checkpoints tensor by tensor: largest absolute difference, what is missing, dtypes, shapes.

    The exit code is 1 where any tensor differs. The states of random generators are left out.

    For example:

        groundup checkpoint diff runs/a runs/b
        groundup checkpoint diff runs/a/checkpoints/step_0000100 runs/a/checkpoints/step_0000200 --all

    Args:
        first: A checkpoint, or a run folder for its newest sound one.
        second: Another.
        all_tensors: Also list the tensors that are equal, and all that are not.
    """
    from groundup.checkpoint.compare import compare
    from groundup.checkpoint.native.folder import (
        resolve_checkpoint,
    )

    differences = []
    num_tensors = 0
    folders = resolve_checkpoint(first), resolve_checkpoint(second)
    with Progress("comparing", 0, "tensors") as progress:
        for found in compare(*folders):
            num_tensors += 1
            progress.add(1)
            if not found.is_equal or all_tensors:
                differences.append(found)
    unequal = [found for found in differences if not found.is_equal]
    unequal.sort(key=lambda found: (-found.rank, found.group, found.name))
    equal = [found for found in differences if found.is_equal]
    shown = unequal + equal if all_tensors else unequal[:_SHOWN]
    for found in shown:
        print(f"{found.group}  {found.name}  {found.describe()}")
    if len(unequal) > len(shown):
        print(f"... and {len(unequal) - len(shown)} more; --all lists them")
    if unequal:
        raise CheckpointError(
            f"{len(unequal)} of {num_tensors} tensors differ from those of {folders[1]}", where=folders[0]
        )
    print(f"all {num_tensors} tensors are equal")


def prune(
    run: Path,
    *,
    keep_last: int = 1,
    keep_every: int = 0,
    dry_run: Switch = False,
) -> None:
    """Remove old checkpoints of a run; damaged ones do not count as kept, and are left for you to remove.

    For example:

        groundup checkpoint prune runs/gpt2 --keep-last 2
        groundup checkpoint prune runs/gpt2 --keep-last 1 --keep-every 10000 --dry-run

    Args:
        run: A run folder that is not being trained in.
        keep_last: How many of the newest sound ones stay.
        keep_every: Those of steps that this divides stay too; 0 for none.
        dry_run: Only say what would go.
    """
    from groundup.checkpoint.native.folder import (
        list_checkpoints,
    )
    from groundup.checkpoint.native.pruning import Keep
    from groundup.core.folder_lock import locked_folder

    if keep_last < 1 or keep_every < 0:
        raise ConfigError("--keep-last is 1 or more, --keep-every 0 or more", where="checkpoint prune")
    checkpoints = _checkpoints_dir(run)
    with contextlib.ExitStack() as stack:
        if not dry_run:
            run_dir = checkpoints.parent if checkpoints.name == "checkpoints" else checkpoints
            stack.enter_context(locked_folder(run_dir, doing="removing checkpoints"))
        _prune(run, list_checkpoints(checkpoints), Keep(last=keep_last, every=keep_every), dry_run=dry_run)


def _prune(run: Path, folders: list[Path], keep: "Keep", *, dry_run: bool) -> None:
    from groundup.checkpoint.native.folder import (
        find_damage,
        point_latest,
        remove_checkpoint,
    )

    found = keep.sort(folders, find_damage)
    for folder, reason in sorted(found.damaged.items()):
        print(f"left, damaged: {folder} ({reason})")
    if not found.kept:
        raise CheckpointError("holds no sound checkpoint, so none is removed", where=run)
    freed = 0
    for folder in reversed(found.superfluous):
        freed += folder_bytes(folder)
        print(f"{'would remove' if dry_run else 'removed'} {folder}")
        if not dry_run:
            remove_checkpoint(folder)
    if not dry_run:
        point_latest(found.kept[0])
    print(f"{human_bytes(freed)} {'would be ' if dry_run else ''}freed, {len(found.kept)} checkpoints stay")


def _checkpoints_dir(path: Path) -> Path:
    if not path.is_dir():
        raise CheckpointError("no such folder", where=path, fix="Check the path.")
    return path / "checkpoints" if (path / "checkpoints").is_dir() else path


def _value(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {inner}" for key, inner in value.items())
    return f"{value:,}" if isinstance(value, int) else str(value)
