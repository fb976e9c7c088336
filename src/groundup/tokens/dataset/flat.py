"""Shards without an index: build-nanogpt's ``.npy`` and llm.c's ``.bin``.

Both hold the tokens of documents one behind the other, each *opened* by the end-of-document id (GPT-2's
50256, Llama 3's 128000), and cut a document where a shard is full: the next shard goes on with it.

``.npy`` (build-nanogpt, fineweb.py): one array, uint16. ``.bin`` (llm.c, dev/data/data_common.py, and
modded-nanogpt): 256 int32 (magic, version, number of tokens, zeros), then the tokens, little-endian.
"""

import dataclasses
import functools
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from groundup.core.errors import ConfigError, DataError
from groundup.core.files import atomic_write, user_cache_dir
from groundup.core.log import logger
from groundup.core.manifest import fingerprint
from groundup.core.progress import Progress
from groundup.tokens.dataset.indexed import sample_checksum
from groundup.tokens.dataset.token_source import ConcatTokens, keep_some_open

_HEADER_BYTES = 256 * 4
_KINDS: dict[int, tuple[int, np.dtype[Any]]] = {
    20240520: (1, np.dtype("<u2")),
    20240801: (7, np.dtype("<u4")),
}
"""Magic of llm.c -> version and dtype."""
_EVALUATION_MAGIC = 20240522
_SHARDS = (
    "Give Megatron's .bin with its .idx, or llm.c's shards; of nanoGPT's make a data set with"
    " `groundup import nanogpt FOLDER`."
)
_NPY_MAGIC = b"\x93NUMPY"
_CHUNK = 1 << 22
_SAMPLE_RANGES = 4


@dataclasses.dataclass(frozen=True)
class FlatShard:
    """One file, its header read and its size found right.

    Attributes:
        path: The file.
        dtype: Of the tokens.
        num_tokens: In it.
        offset_bytes: Where they begin.
    """

    path: Path
    dtype: np.dtype[Any]
    num_tokens: int
    offset_bytes: int

    @classmethod
    def read(cls, path: Path) -> "FlatShard":
        """Reads a shard's header.

        Raises:
            DataError: Not such a file, of another version, or of another size than it says.
        """
        if not path.is_file():
            raise DataError("no such file", where=path, fix="Check the path.")
        return cls._read_npy(path) if path.suffix == ".npy" else cls._read_bin(path)

    def map(self) -> npt.NDArray[Any]:
        """The tokens, memory-mapped: [num_tokens]."""
        if not self.num_tokens:
            return np.empty(0, self.dtype)
        shape = (self.num_tokens,)
        return np.memmap(self.path, self.dtype, "r", self.offset_bytes, shape).view(np.ndarray)

    @classmethod
    def _read_npy(cls, path: Path) -> "FlatShard":
        with path.open("rb") as file:
            if file.read(len(_NPY_MAGIC)) != _NPY_MAGIC:
                raise DataError("is not a .npy file of numpy", where=path, fix="Check the path.")
            file.seek(0)
            readers: dict[tuple[int, int], Any] = {
                (1, 0): np.lib.format.read_array_header_1_0,
                (2, 0): np.lib.format.read_array_header_2_0,
            }
            try:
                read_header = readers[np.lib.format.read_magic(file)]
                shape, _, dtype = read_header(file)
            except (ValueError, KeyError) as error:
                raise DataError(f"its header cannot be read ({error})", where=path) from None
            offset = file.tell()
        if len(shape) != 1 or dtype.kind not in "iu":
            raise DataError(
                f"holds {dtype} of shape {shape}, expected integers in one dimension",
                where=path,
                fix="Give shards of token ids.",
            )
        _require_size(path, offset, shape[0], dtype)
        return cls(path, dtype, shape[0], offset)

    @classmethod
    def _read_bin(cls, path: Path) -> "FlatShard":
        with path.open("rb") as file:
            head = file.read(_HEADER_BYTES)
        magic, version, num_tokens = struct.unpack("<3i", head[:12]) if len(head) >= 12 else (0, 0, 0)
        if magic not in _KINDS:
            if magic == _EVALUATION_MAGIC:
                what = "is an evaluation set of llm.c (multiple choice), not a stream of tokens"
            else:
                what = (
                    f"has no .idx beside it, and begins with {magic}, which is no magic number of llm.c"
                    f" ({', '.join(map(str, _KINDS))})"
                )
            raise DataError(what, where=path, fix=_SHARDS)
        expected, dtype = _KINDS[magic]
        if version != expected:
            raise DataError(f"is of llm.c's version {version}, expected {expected}", where=path)
        if num_tokens < 0 or len(head) < _HEADER_BYTES:
            raise DataError("its header is damaged", where=path, fix="Download or build it again.")
        _require_size(path, _HEADER_BYTES, num_tokens, dtype)
        return cls(path, dtype, num_tokens, _HEADER_BYTES)


class FlatShards:
    """Shards in the order given, as one ``TokenSource``.

    A document begins with the end-of-document id, and may go on in the next shard. Where documents begin
    is found by reading all tokens, when it is first asked for, and kept in the user's cache for next time.

    Args:
        paths: ``.npy`` or llm.c's ``.bin`` files, at least one, all of one dtype.
        end_of_document_id: The id that opens each document; without it only ``tokens`` can be read.
        name: For messages.

    Raises:
        DataError: A file is not such a shard, or of another dtype than the first.
    """

    def __init__(self, paths: Sequence[Path], *, end_of_document_id: int | None, name: str) -> None:
        self.shards = [FlatShard.read(path) for path in paths]
        self.end_of_document_id = end_of_document_id
        self.name = name
        self.dtype = self.shards[0].dtype
        other = next((shard for shard in self.shards if shard.dtype != self.dtype), None)
        if other is not None:
            raise DataError(
                f"holds {other.dtype}, {self.shards[0].path.name} holds {self.dtype}",
                where=other.path,
                fix="Keep shards of different tokenizers in folders of their own.",
            )
        self.tokens = ConcatTokens(
            [shard.num_tokens for shard in self.shards],
            keep_some_open(lambda number: self.shards[number].map()),
            self.dtype,
        )

    def __reduce__(self) -> tuple[Any, ...]:
        paths = [shard.path for shard in self.shards]
        again = functools.partial(FlatShards, end_of_document_id=self.end_of_document_id, name=self.name)
        return again, (paths,)

    @property
    def num_documents(self) -> int:
        """Number of documents; what comes before the first end-of-document id is one too."""
        return len(self._begins) - 1

    @functools.cached_property
    def fingerprint(self) -> str:
        """Of names, sizes and a sample of the tokens; the same wherever the shards lie."""
        shards = [
            [
                shard.path.name,
                str(shard.dtype),
                shard.num_tokens,
                sample_checksum(shard.map(), _SAMPLE_RANGES),
            ]
            for shard in self.shards
        ]
        return fingerprint([shards, self.end_of_document_id])

    def token_begin(self, document: int) -> int:
        """Number of tokens before a document; ``document`` may be num_documents."""
        return int(self._begins[document])

    def document_lengths(self, begin: int, end: int) -> npt.NDArray[np.int32]:
        """Tokens of each of the documents [begin, end)."""
        return np.diff(self._begins[begin : end + 1]).astype(np.int32)

    def documents_at(self, positions: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """The document of each of these tokens, of the same shape; 0 <= position < number of tokens."""
        return np.searchsorted(self._begins, np.asarray(positions), side="right") - 1

    @functools.cached_property
    def _begins(self) -> npt.NDArray[np.int64]:
        """Tokens before each document, and their number at the end: int64 [num_documents + 1]."""
        opening = self.end_of_document_id
        if opening is None:
            raise ConfigError(
                "where its documents begin is not known without the id that opens them",
                where=self.name,
                fix="Give the tokenizer, or the id itself (GPT-2: 50256, llm.c's Llama 3: 128000).",
            )
        stats = [shard.path.stat() for shard in self.shards]
        key = fingerprint([self.fingerprint, [[stat.st_size, stat.st_mtime_ns] for stat in stats]])
        return _kept_begins(key, len(self.tokens), lambda: self._find_begins(opening))

    def _find_begins(self, opening: int) -> npt.NDArray[np.int64]:
        found: list[npt.NDArray[np.int64]] = []
        with Progress(f"find the documents of {self.name}", len(self.tokens), "tokens") as progress:
            for begin, shard in zip(self.tokens.begins, self.shards, strict=False):
                tokens = shard.map()
                for first in range(0, len(tokens), _CHUNK):
                    chunk = tokens[first : first + _CHUNK]
                    found.append(np.flatnonzero(chunk == opening) + (begin + first))
                    progress.add(len(chunk))
        begins = np.concatenate([np.empty(0, np.int64), *found])
        if not len(begins) and len(self.tokens):
            logger.warning(
                "%s: id %d, which should open each document, is nowhere in it: it counts as one document",
                self.name,
                opening,
            )
        if len(self.tokens) and (not len(begins) or begins[0] != 0):
            begins = np.concatenate([[0], begins])
        begins = np.append(begins, len(self.tokens))
        if np.diff(begins).max(initial=0) > np.iinfo(np.int32).max:
            raise DataError(
                f"a document has {int(np.diff(begins).max()):,} tokens, at most 2,147,483,647 are possible",
                where=self.name,
                fix="The id that opens documents is probably another.",
            )
        return begins


def _require_size(path: Path, offset: int, num_tokens: int, dtype: np.dtype[Any]) -> None:
    found, expected = path.stat().st_size, offset + num_tokens * dtype.itemsize
    if found != expected:
        raise DataError(
            f"holds {found:,} bytes, its header says {expected:,} ({num_tokens:,} tokens of {dtype})",
            where=path,
            fix="It is truncated or damaged: download or build it again.",
        )


_WORTH_KEEPING_TOKENS = 1 << 22  # fewer are read in some milliseconds


def _kept_begins(
    key: str, num_tokens: int, find: Callable[[], npt.NDArray[np.int64]]
) -> npt.NDArray[np.int64]:
    """What ``find`` returns, kept in ``groundup/documents`` of the user's cache and mapped from there later.

    Any file there may be deleted.

    Args:
        key: Hash of the shards and of the id that opens documents; names the file.
        num_tokens: In the shards; for few of them nothing is kept.
        find: Reads them: tokens before each document, and their number at the end.
    """
    if num_tokens < _WORTH_KEEPING_TOKENS:
        return find()
    try:
        path = user_cache_dir("documents") / f"{key}.npy"
    except RuntimeError as error:  # a user without a home
        logger.info("where the documents begin cannot be kept (%s): they will be found again", error)
        return find()
    try:
        kept: npt.NDArray[np.int64] = np.load(path, mmap_mode="r", allow_pickle=False).view(np.ndarray)
        if (
            kept.dtype == np.int64
            and kept.ndim == 1
            and len(kept) > 1
            and kept[0] == 0
            and kept[-1] == num_tokens
        ):
            return kept
        logger.info("%s is not what was kept there: the documents are found again", path)
    except FileNotFoundError:
        pass
    except (OSError, ValueError, EOFError) as error:
        logger.info("%s cannot be read (%s): the documents are found again", path, error)
    begins = find()
    try:
        with atomic_write(path) as file:
            np.save(file, begins)
    except OSError as error:
        logger.info("where the documents begin cannot be kept (%s): they will be found again", error)
    return begins
