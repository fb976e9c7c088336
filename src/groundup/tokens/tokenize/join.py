"""Joining the pieces of a build's parts into ``.bin``, ``.idx`` and ``.sources.npz``."""

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from groundup.core.concatenate import append_range
from groundup.core.files import atomic_write, fsync_dir, require_free_space, temporary_path
from groundup.corpus.bad_records import BadRecordPolicy, BadRecords
from groundup.corpus.source_ranges import Part
from groundup.tokens.dataset.document_sources import document_sources_path, join_document_sources
from groundup.tokens.dataset.indexed import bin_path, idx_path
from groundup.tokens.dataset.indexed_writer import write_index
from groundup.tokens.tokenize.part_writer import PieceNames

COMMAND = "groundup tokens build"
"""Has the flags for bad records."""
_INDEX_BYTES = 20  # of a sequence in .idx
_SOURCE_BYTES = 16


class FinishedParts:
    """The parts of a build, all done, and what each left.

    Args:
        folder: Where their pieces lie.
        keys: Fields that were tokenized.
        parts: In the order of the input.
        results: Of each part.
    """

    def __init__(
        self, folder: Path, keys: Sequence[str], parts: Sequence[Part], results: Sequence[Mapping[str, Any]]
    ) -> None:
        self._folder = folder
        self._parts = parts
        self._results = results
        self._names = [PieceNames.of(part, keys) for part in parts]
        self._shifts = list(_line_shifts(parts, results))

    def counts(self, key: int) -> dict[str, int]:
        """The sums of a key's counts."""
        all_counts = [result["counts"][key] for result in self._results]
        return {name: sum(counts[name] for counts in all_counts) for name in all_counts[0]}

    def bad_records(self, policy: BadRecordPolicy, quarantine_path: Path) -> BadRecords:
        """The bad records of all parts, judged by the policy.

        Raises:
            DataError: There are too many, or one with which the policy does not put up.
        """
        bad = BadRecords(policy, quarantine_path=quarantine_path, command=COMMAND)
        for result, shift in zip(self._results, self._shifts, strict=True):
            offenders = [
                (shifted(where, shift), reason, detail) for where, reason, detail in result["offenders"]
            ]
            bad.require_none_fatal(offenders)
            bad.take(result["good"], result["by_reason"], offenders)
        bad.judge()
        return bad

    def write_quarantine(self, path: Path) -> None:
        """Writes the bad records of all parts to one file, or none where there are none."""
        path.unlink(missing_ok=True)
        if not any(result["by_reason"] for result in self._results):
            return
        with atomic_write(path) as file:
            for names, shift in zip(self._names, self._shifts, strict=True):
                piece = self._folder / names.quarantine
                if not piece.is_file():
                    continue
                if not shift:
                    append_range(file, piece)
                    continue
                with piece.open("rb") as lines:
                    for line in lines:
                        record = orjson.loads(line)
                        record["where"] = shifted(record["where"], shift)
                        file.write(orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE))

    def require_space(self, prefixes: Sequence[Path], dtype: npt.DTypeLike) -> None:
        """Refuses to join what the disk cannot hold; the tokens of a single part need no more space.

        Raises:
            MachineError: Names what is needed and what is free.
        """
        size = 0
        for key in range(len(prefixes)):
            counts = self.counts(key)
            size += counts["documents"] * (_INDEX_BYTES + _SOURCE_BYTES * (len(self._parts) > 1))
            size += counts["tokens"] * np.dtype(dtype).itemsize * (len(self._parts) > 1)
        require_free_space(prefixes[0].parent, size, "joining the parts")

    def write(self, key: int, prefix: Path, dtype: npt.DTypeLike) -> None:
        """Writes a key's files. Each appears whole; the index is the last, and none is there before."""
        ends = (bin_path(prefix), document_sources_path(prefix), idx_path(prefix))
        with _temporary(ends[0]) as tokens, _temporary(ends[1]) as sources, _temporary(ends[2]) as index:
            self._place_tokens(key, tokens)
            self._place_sources(key, sources)
            lengths = [self._folder / names.lengths[key] for names in self._names]
            write_index(index, np.dtype(dtype), lengths)
            ends[2].unlink(missing_ok=True)  # never an old index beside new tokens
            for temporary, end in zip((tokens, sources, index), ends, strict=True):
                temporary.replace(end)
        fsync_dir(prefix.parent)

    def _place_tokens(self, key: int, path: Path) -> None:
        pieces = [self._folder / names.tokens[key] for names in self._names]
        if len(pieces) == 1 and _linked(pieces[0], path):
            return
        with path.open("wb", buffering=0) as file:
            for piece in pieces:
                append_range(file, piece)
            os.fsync(file.fileno())

    def _place_sources(self, key: int, path: Path) -> None:
        pieces = [self._folder / names.sources[key] for names in self._names]
        if len(pieces) == 1 and _linked(pieces[0], path):
            return
        join_document_sources(list(zip(pieces, self._shifts, strict=True)), path)


def shifted(where: str, shift: int) -> str:
    """``file:line`` with a number added to the line."""
    if not shift:
        return where
    path, _, line = where.rpartition(":")
    return f"{path}:{int(line) + shift}"


def _line_shifts(parts: Sequence[Part], results: Sequence[Mapping[str, Any]]) -> Iterator[int]:
    """Of each part: the lines of the same file that lie in the parts before it."""
    lines = 0
    for part, result in zip(parts, results, strict=True):
        if not part.is_range_of_lines:
            lines = 0
        yield lines if part.is_range_of_lines else 0
        lines += result["lines"]


@contextlib.contextmanager
def _temporary(path: Path) -> Iterator[Path]:
    temporary = temporary_path(path)
    temporary.unlink(missing_ok=True)
    try:
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def _linked(piece: Path, path: Path) -> bool:
    """Gives a piece a second name, so that it is not lost if this run is killed; not all file systems can."""
    try:
        path.hardlink_to(piece)
    except OSError:
        return False
    return True
