"""What token files a path means: a prefix, a shard, a folder or a glob of either."""

import glob
import re
from collections.abc import Sequence
from pathlib import Path

from groundup.core.errors import DataError
from groundup.tokens.dataset.flat import FlatShards
from groundup.tokens.dataset.indexed import IndexedDataset, bin_path, idx_path, strip_ending
from groundup.tokens.dataset.indexed_shards import IndexedShards
from groundup.tokens.dataset.token_source import TokenSource

_ENDINGS = (".bin", ".idx", ".npy")
MEGATRONS_CACHE = re.compile(r"_(doc|sample|shuffle)_idx\.npy$")
"""Names of the sample orders that early Megatron-LM kept beside the data."""
_SPLIT_WORD = re.compile(r"(?<![a-z])(train|training|validation|valid|val|test)(?![a-z])", re.IGNORECASE)
_SPLIT_NAMES = {"training": "train", "valid": "validation", "val": "validation"}


def open_source(path: Path, *, end_of_document_id: int | None = None) -> TokenSource:
    """Opens whatever token files a path means; reads headers only.

    Args:
        path: Prefix of a ``.bin`` and ``.idx`` (with or without ending), a shard of build-nanogpt
            (``.npy``) or llm.c (``.bin``), or a folder or glob of files of one of these kinds, which are
            taken in the order of their names.
        end_of_document_id: The id that opens each document of ``.npy`` and llm.c's shards.

    Raises:
        DataError: Nothing of this kind is there, or a file is malformed.
    """
    return open_shards(token_files(path), end_of_document_id=end_of_document_id, name=str(path))


def open_shards(
    paths: Sequence[Path], *, end_of_document_id: int | None = None, name: str = ""
) -> TokenSource:
    """Opens prefixes, or shards, in this order as one source.

    Args:
        paths: At least one; all of one kind, of which each has one dtype.
        end_of_document_id: The id that opens each document of ``.npy`` and llm.c's shards.
        name: For messages; the paths themselves when left out.

    Raises:
        DataError: They are of different kinds, or a file is missing or malformed.
    """
    if not paths:
        raise DataError("no token files were named", where=name)
    name = name or (str(paths[0]) if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more")
    of_kind: dict[str, Path] = {}
    for path in paths:
        of_kind.setdefault(_kind(path), path)
    if len(of_kind) > 1:
        (one, first), (other, second) = list(of_kind.items())[:2]
        raise DataError(
            f"different kinds of token files: {first.name} is of {one}, {second.name} of {other}",
            where=name,
            fix="Name those of one kind by a quoted glob, e.g. 'folder/*.npy'.",
        )
    if "Megatron-LM's format" not in of_kind:
        return FlatShards(paths, end_of_document_id=end_of_document_id, name=name)
    prefixes = [strip_ending(path) for path in paths]
    return IndexedDataset(prefixes[0]) if len(prefixes) == 1 else IndexedShards(prefixes, name=name)


def names_token_files(path: Path) -> bool:
    """Whether a path means token files: by its ending, or because some are there."""
    if path.suffix in _ENDINGS:
        return True
    try:
        return bool(token_files(path))
    except DataError:
        return False


def shards_by_split(path: Path) -> dict[str, list[Path]]:
    """The token files of a path, divided into splits as their names tell.

    Args:
        path: As of ``open_source``.

    Returns:
        "train" and, where there are any, "validation" and "test", when each name says one of them (val and
        valid are validation) and some say train; else everything under "all".
    """
    files = token_files(path)
    splits: dict[str, list[Path]] = {}
    for file in files:
        words = {_SPLIT_NAMES.get(word.lower(), word.lower()) for word in _SPLIT_WORD.findall(file.name)}
        if len(words) != 1:
            return {"all": files}
        splits.setdefault(words.pop(), []).append(file)
    return splits if "train" in splits else {"all": files}


def token_files(path: Path) -> list[Path]:
    """The prefixes and shards that a path means, in the order of their names.

    Raises:
        DataError: There are none.
    """
    if any(character in str(path) for character in "*?[") and not path.exists():
        found = [Path(match) for match in sorted(glob.glob(str(path)))]  # noqa: PTH207  # any depth
        return _token_files(found, f"no token file ({', '.join(_ENDINGS)}) matches", path)
    named = bool(path.name)  # "." and "/" have no name that an ending could follow
    if named and (idx_path(strip_ending(path)).is_file() or (not path.exists() and bin_path(path).is_file())):
        return [strip_ending(path)]
    if path.is_dir():
        return _token_files(sorted(path.iterdir()), f"holds no token files ({', '.join(_ENDINGS)})", path)
    if not path.exists():
        raise DataError(
            "no such token files: neither a prefix of .bin and .idx, nor a shard, nor a folder",
            where=path,
            fix="Check the path, or write it with `groundup tokens build`.",
        )
    return _token_files([path], "is not a file of tokens", path)


def _token_files(files: Sequence[Path], refusal: str, where: Path) -> list[Path]:
    found = []
    for file in files:
        if file.suffix not in _ENDINGS or file.name.startswith(".") or not file.is_file():
            continue
        if MEGATRONS_CACHE.search(file.name):
            continue
        indexed = file.suffix == ".idx" or (file.suffix == ".bin" and idx_path(strip_ending(file)).is_file())
        found.append(strip_ending(file) if indexed else file)
    if not found:
        raise DataError(refusal, where=where, fix="Turn text into tokens with `groundup tokens build`.")
    return sorted(set(found), key=str)  # by prefix, not by file name: as Megatron-LM merges


def _kind(path: Path) -> str:
    if idx_path(strip_ending(path)).is_file() or path.suffix not in _ENDINGS:
        return "Megatron-LM's format"
    return "build-nanogpt's .npy" if path.suffix == ".npy" else "llm.c's .bin"
