"""Where Megatron-LM's checkpoint files are, and whether they are all there and of one checkpoint."""

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from groundup.checkpoint.megatron.args import args_in, require_number
from groundup.checkpoint.safe_pickle.unpickle import load_pickled
from groundup.core.errors import CheckpointError

TRACKER = "latest_checkpointed_iteration.txt"
RELEASE = "release"
"""The folder of a checkpoint without an iteration, and what the tracker says then."""
RANK_FILE = "model_optim_rng.pt"
_RANK_FILES = (RANK_FILE, "model_rng.pt")  # the second of 2022, with a distributed optimizer
_RANK_FOLDER = re.compile(r"mp_rank_(\d\d)(?:_(\d\d\d))?(_\d\d\d)?")
_SHOWN = 8
_VERSIONS = (0, 1.0, 2.0, 3.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rank:
    """The file of one rank; a virtual pipeline gives it several parts of the model, its chunks."""

    path: Path
    args: Mapping[str, Any]
    version: float
    chunks: tuple[Mapping[str, Any], ...]
    content: Mapping[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class RankGrid:
    """All ranks of a checkpoint, by pipeline stage, then by tensor-parallel rank."""

    folder: Path
    ranks: tuple[tuple[Rank, ...], ...]

    @property
    def first(self) -> Rank:
        """Tensor-parallel rank 0 of the first stage."""
        return self.ranks[0][0]

    @property
    def tp(self) -> int:
        """Degree of tensor parallelism."""
        return len(self.ranks[0])


def is_megatron(path: Path) -> bool:
    """Whether a folder holds Megatron-LM's checkpoints, or is one of them."""
    if (path / TRACKER).is_file():
        return True
    return path.is_dir() and (
        any(_RANK_FOLDER.fullmatch(child.name) for child in path.iterdir()) or is_distributed(path)
    )


def is_distributed(path: Path) -> bool:
    """Whether a checkpoint is in the ``torch_dist`` format."""
    return (path / ".metadata").is_file() and (path / "common.pt").is_file()


def checkpoint_folder(path: Path) -> Path:
    """The checkpoint that a path means: itself, or the one that the tracker file names.

    Raises:
        CheckpointError: The tracker is no tracker, or names what is not there.
    """
    tracker = path / TRACKER
    if not tracker.is_file():
        return path
    text = tracker.read_text(errors="replace").strip()
    if text != RELEASE and not (text.isascii() and text.isdigit() and int(text) > 0):
        raise CheckpointError(
            f"says {text[:40]!r}, expected the number of an iteration or 'release'", where=tracker
        )
    folder = path / (text if text == RELEASE else f"iter_{int(text):07d}")
    if not folder.is_dir():
        others = sorted(child.name for child in path.iterdir() if child.is_dir())
        raise CheckpointError(
            f"names {folder.name}, which is not there"
            + (f"; there are {', '.join(others)}" if others else ""),
            where=tracker,
            fix="Copy the checkpoint again, or name one of its folders.",
        )
    return folder


def open_ranks(folder: Path) -> RankGrid:
    """Opens all ranks' files of a checkpoint.

    Raises:
        CheckpointError: Files are missing or damaged, or of different iterations or versions.
    """
    paths: dict[tuple[int, int], Path] = {}
    for child in folder.iterdir():
        if match := _RANK_FOLDER.fullmatch(child.name):
            if match[3]:
                raise CheckpointError("expert parallelism is not supported", where=child)
            paths[int(match[2] or 0), int(match[1])] = child
    if not paths:
        raise CheckpointError("holds no mp_rank_XX folders", where=folder)
    ranks = {place: _open_rank(path) for place, path in sorted(paths.items())}
    args = next(iter(ranks.values())).args
    pp = max(stage for stage, _ in ranks) + 1
    tp = max(rank for _, rank in ranks) + 1
    tp = max(tp, int(args.get("tensor_model_parallel_size") or args.get("model_parallel_size") or 1))
    pp = max(pp, int(args.get("pipeline_model_parallel_size") or 1))
    missing = [
        f"mp_rank_{rank:02d}" + (f"_{stage:03d}" if pp > 1 else "")
        for stage in range(pp)
        for rank in range(tp)
        if (stage, rank) not in ranks
    ]
    if missing:
        more = f" and {len(missing) - _SHOWN:,} more" if len(missing) > _SHOWN else ""
        raise CheckpointError(
            f"was saved by {tp} tensor-parallel ranks times {pp} stages; missing:"
            f" {', '.join(missing[:_SHOWN])}{more}",
            where=folder,
            fix="Copy these folders from the machines that saved them.",
        )
    _require_one_checkpoint(list(ranks.values()), folder)
    return RankGrid(
        folder=folder,
        ranks=tuple(tuple(ranks[stage, rank] for rank in range(tp)) for stage in range(pp)),
    )


def _open_rank(folder: Path) -> Rank:
    path = next((folder / name for name in _RANK_FILES if (folder / name).is_file()), folder / RANK_FILE)
    content = load_pickled(path)
    if not isinstance(content, dict):
        raise CheckpointError("holds no checkpoint of Megatron-LM", where=path)
    names = (
        ["model"]
        if "model" in content
        else sorted(
            (key for key in content if re.fullmatch(r"model\d+", str(key))), key=lambda key: int(key[5:])
        )
    )
    if not names or not all(isinstance(content[name], dict) for name in names):
        raise CheckpointError(f"holds no model, only {', '.join(map(str, content))[:200]}", where=path)
    require_number(content, "iteration", path)
    require_number(content, "checkpoint_version", path)
    version = content.get("checkpoint_version") or 0
    if version not in _VERSIONS:
        raise CheckpointError(
            f"checkpoint_version is {version!r}; known are {', '.join(map(str, _VERSIONS))}",
            where=path,
            fix="A newer Megatron-LM may lay out queries, keys and values anew; groundup must learn it.",
        )
    return Rank(
        path=path,
        args=args_in(content, path),
        version=float(version),
        chunks=tuple(content[name] for name in names),
        content=content,
    )


def _require_one_checkpoint(ranks: list[Rank], folder: Path) -> None:
    for what, values in (
        ("iteration", [rank.content.get("iteration") for rank in ranks]),
        ("checkpoint_version", [rank.version for rank in ranks]),
        ("number of virtual stages", [len(rank.chunks) for rank in ranks]),
    ):
        if len(set(values)) > 1:
            found = ", ".join(
                f"{rank.path.parent.name}: {value}" for rank, value in zip(ranks, values, strict=True)
            )
            raise CheckpointError(
                f"its ranks are of different checkpoints: the {what} differs ({found})",
                where=folder,
                fix="Copy the folders of one iteration.",
            )
