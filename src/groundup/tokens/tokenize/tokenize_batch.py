"""A batch of documents to ids: what is done to each, in whatever process."""

import dataclasses
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from groundup.corpus.bad_records import MAX_KEPT_BYTES
from groundup.corpus.blocks import BLOCK_BYTES, Block, count_lines
from groundup.corpus.document import text_bytes
from groundup.corpus.parquet import Rows
from groundup.corpus.read_documents import MalformedRecord, text_of_file, text_of_value, texts_of_line
from groundup.tokens.tokenizer.base import Tokenizer


@dataclasses.dataclass(frozen=True, slots=True)
class Batch:
    """Blocks that are tokenized in one go.

    Attributes:
        part: Number of the part of the input that they are of.
        blocks: In the order of the input.
        size_bytes: Of their contents, about.
        is_last: Of its part.
    """

    part: int
    blocks: list[Block]
    size_bytes: int
    is_last: bool


@dataclasses.dataclass(slots=True)
class KeyTokens:
    """The documents of a batch under one key, those without tokens left out.

    Attributes:
        tokens: Ids, the documents one behind the other.
        lengths: [documents] int32, tokens of each.
        lines: [documents] int64, line of each within its block, from 1; 0 for a text file.
        url_lengths: [documents], UTF-8 bytes of the URL of each; None where none has one.
        urls: One behind the other.
        documents_in_blocks: Number of documents of each block.
        num_empty: Documents without tokens.
        text_bytes: UTF-8 bytes of text.
    """

    tokens: npt.NDArray[Any]
    lengths: npt.NDArray[np.int32]
    lines: npt.NDArray[np.int64]
    url_lengths: npt.NDArray[np.int64] | None
    urls: bytes
    documents_in_blocks: list[int]
    num_empty: int
    text_bytes: int


class BadLine(NamedTuple):
    """A record of a batch that is no document: ``line`` within its block, 0 for a whole file."""

    block: int
    line: int
    reason: str
    detail: str
    record: bytes


@dataclasses.dataclass(frozen=True, slots=True)
class TokenizedBatch:
    """The ids of a batch.

    Attributes:
        keys: Of each key.
        lines: Lines (rows) of each block.
        num_good: Records read well.
        bad: Those that were not.
        seconds: Taken.
    """

    keys: list[KeyTokens]
    lines: list[int]
    num_good: int
    bad: list[BadLine]
    seconds: float


@dataclasses.dataclass(frozen=True, slots=True)
class BatchTokenizer:
    """What is done to each batch.

    Attributes:
        tokenizer: Text -> ids.
        keys: Fields of a JSON record; the text of a text file counts as the only key's.
        append_end_of_document: Whether each document that has tokens is closed.
        dtype: Of the ids.
    """

    tokenizer: Tokenizer
    keys: tuple[str, ...]
    append_end_of_document: bool
    dtype: str

    def __call__(self, blocks: Sequence[Block]) -> TokenizedBatch:
        """Tokenizes the blocks of a batch."""
        began = time.perf_counter()
        keys = [_Gathered() for _ in self.keys]
        end = [self.tokenizer.end_of_document_id] if self.append_end_of_document else []
        closing = np.array(end, dtype=np.uint32)
        lines: list[int] = []
        bad: list[BadLine] = []
        num_good = 0
        for number, block in enumerate(blocks):
            for line, texts, url, record in _records(block, self.keys):
                if isinstance(texts, MalformedRecord):
                    kept = record[:MAX_KEPT_BYTES]
                    bad.append(BadLine(number, texts.line or line, texts.reason, texts.detail, kept))
                    continue
                try:
                    ids_of_keys = [self.tokenizer.encode_array(text) for text in texts]
                except BaseException as error:
                    if not _is_of_the_text(error):
                        raise
                    detail = f"{type(error).__name__}: {error}"
                    bad.append(BadLine(number, line, "tokenizer failed", detail, record[:MAX_KEPT_BYTES]))
                    continue
                num_good += 1
                for gathered, text, ids in zip(keys, texts, ids_of_keys, strict=True):
                    gathered.text_bytes += text_bytes(text)
                    if not len(ids):
                        gathered.num_empty += 1
                        continue
                    gathered.pieces.append(ids)
                    if end:
                        gathered.pieces.append(closing)
                    gathered.lengths.append(len(ids) + len(end))
                    gathered.lines.append(line)
                    gathered.urls.append(url)
            lines.append(_num_lines(block))
            for gathered in keys:
                gathered.documents_in_blocks.append(len(gathered.lengths))
        return TokenizedBatch(
            keys=[gathered.together(self.dtype) for gathered in keys],
            lines=lines,
            num_good=num_good,
            bad=bad,
            seconds=time.perf_counter() - began,
        )


class _Gathered:
    """The documents of a batch under one key while they are gathered."""

    __slots__ = (
        "documents_in_blocks",
        "lengths",
        "lines",
        "num_empty",
        "pieces",
        "text_bytes",
        "urls",
    )

    def __init__(self) -> None:
        self.pieces: list[npt.NDArray[np.uint32]] = []
        self.lengths: list[int] = []
        self.lines: list[int] = []
        self.urls: list[str] = []
        self.documents_in_blocks: list[int] = []
        self.num_empty = 0
        self.text_bytes = 0

    def together(self, dtype: str) -> KeyTokens:
        urls = [url.encode() for url in self.urls] if any(self.urls) else []
        tokens = (
            np.concatenate(self.pieces, dtype=dtype, casting="unsafe") if self.pieces else np.empty(0, dtype)
        )
        return KeyTokens(
            tokens=tokens,
            lengths=np.array(self.lengths, dtype=np.int32),
            lines=np.array(self.lines, dtype=np.int64),
            url_lengths=np.array([len(url) for url in urls], dtype=np.int64) if urls else None,
            urls=b"".join(urls),
            documents_in_blocks=np.diff(self.documents_in_blocks, prepend=0).tolist(),
            num_empty=self.num_empty,
            text_bytes=self.text_bytes,
        )


def batches_of(part: int, blocks: Iterable[Block]) -> Iterator[Batch]:
    """The blocks of a part in batches; the last one may be empty."""
    held: list[Block] = []
    size = 0
    for block in blocks:
        if size >= BLOCK_BYTES:
            yield Batch(part, held, size, False)
            held, size = [], 0
        held.append(block)
        size += _size_of(block)
    yield Batch(part, held, size, True)


_Record = tuple[int, list[str] | MalformedRecord, str, bytes]


def _records(block: Block, keys: Sequence[str]) -> Iterator[_Record]:
    """Line, texts or what is wrong, URL, and the bytes (where there are some) of each record of a block."""
    content = block.content
    if content is None:
        line = 0 if block.form == "text" else 1
        yield line, MalformedRecord(block.reason, block.detail), "", b""
    elif isinstance(content, Rows):
        yield from _records_of_rows(content, keys)
    elif block.form == "text":
        try:
            yield 0, [text_of_file(content)], "", b""
        except MalformedRecord as error:
            yield 0, error, "", content
    else:
        for number, line_bytes in enumerate(content.split(b"\n"), 1):
            if not line_bytes or line_bytes.isspace():
                continue
            try:
                texts, url = texts_of_line(line_bytes, keys)
            except MalformedRecord as error:
                yield number, error, "", line_bytes
                continue
            yield number, texts, url, line_bytes


def _records_of_rows(rows: Rows, keys: Sequence[str]) -> Iterator[_Record]:
    for number, values in enumerate(zip(*rows.columns, strict=True), 1):
        try:
            texts = [text_of_value(key, value) for key, value in zip(keys, values, strict=True)]
        except MalformedRecord as error:
            yield number, error, "", next((value for value in values if isinstance(value, bytes)), b"")
            continue
        url = rows.urls[number - 1] if rows.urls else ""
        if isinstance(url, bytes):
            url = url.decode(errors="replace")
        yield number, texts, url if isinstance(url, str) else "", b""


def _is_of_the_text(error: BaseException) -> bool:
    """Whether the tokenizer failed on this text, and may do well with the next."""
    if type(error).__name__ == "PanicException":  # of a library in Rust; no child of Exception
        return True
    return isinstance(error, Exception) and not isinstance(error, MemoryError)


def _num_lines(block: Block) -> int:
    if block.content is None:
        return 1
    if isinstance(block.content, Rows):
        return len(block.content.columns[0])
    return count_lines(block.content) if block.form == "lines" else 0


def _size_of(block: Block) -> int:
    if isinstance(block.content, Rows):
        return BLOCK_BYTES
    return len(block.content or b"")
