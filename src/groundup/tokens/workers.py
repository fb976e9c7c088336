"""Worker processes that turn batches of raw records into ids, results in the order of the batches.

Batch ``i`` goes to worker ``i % n``, which answers in order, so the result does not depend on timing;
each worker has at most a few batches, so memory does not depend on the input.
"""

import dataclasses
import multiprocessing
import queue
import sys
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from groundup.core.errors import MachineError
from groundup.corpus.document import text_bytes
from groundup.corpus.read import MalformedRecord, RawRecord, texts_of_line
from groundup.tokens.tokenizer import Tokenizer

_BATCHES_AHEAD = 3


@dataclasses.dataclass(frozen=True, slots=True)
class TokenizedBatch:
    """The ids of a batch.

    Attributes:
        tokens: For each key: the documents' ids, one behind the other.
        lengths: For each key: tokens of each document that has any.
        num_empty: For each key: documents without tokens, left out.
        text_bytes: For each key: UTF-8 bytes of text.
        num_good: Records read well.
        bad: (index in the batch, reason, detail) of each that was not.
    """

    tokens: list[npt.NDArray[Any]]
    lengths: list[npt.NDArray[np.int32]]
    num_empty: list[int]
    text_bytes: list[int]
    num_good: int
    bad: list[tuple[int, str, str]]


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

    def __call__(self, contents: Sequence[bytes | str]) -> TokenizedBatch:
        """Tokenizes the contents of a batch's records."""
        pieces: list[list[npt.NDArray[np.uint32]]] = [[] for _ in self.keys]
        lengths: list[list[int]] = [[] for _ in self.keys]
        num_empty = [0] * len(self.keys)
        end = np.array([self.tokenizer.end_of_document_id], dtype=np.uint32)
        num_bytes = [0] * len(self.keys)
        bad: list[tuple[int, str, str]] = []
        for index, content in enumerate(contents):
            try:
                texts = [content] if isinstance(content, str) else texts_of_line(content, self.keys)
            except MalformedRecord as error:
                bad.append((index, error.reason, error.detail))
                continue
            for key, text in enumerate(texts):
                num_bytes[key] += text_bytes(text)
                ids = self.tokenizer.encode_array(text)
                if not len(ids):
                    num_empty[key] += 1
                    continue
                pieces[key].append(ids)
                if self.append_end_of_document:
                    pieces[key].append(end)
                lengths[key].append(len(ids) + self.append_end_of_document)
        return TokenizedBatch(
            tokens=[np.concatenate([end[:0], *part]).astype(self.dtype) for part in pieces],
            lengths=[np.array(part, dtype=np.int32) for part in lengths],
            num_empty=num_empty,
            text_bytes=num_bytes,
            num_good=len(contents) - len(bad),
            bad=bad,
        )


def tokenize_batches(
    batches: Iterable[list[RawRecord]], tokenize: BatchTokenizer, *, num_workers: int
) -> Iterator[tuple[list[RawRecord], TokenizedBatch]]:
    """Each batch and its ids, in order.

    Args:
        batches: Read lazily, at most three ahead for each worker.
        tokenize: What is done to each.
        num_workers: Processes; 0 does the work in this one.

    Raises:
        MachineError: A worker was killed (most often for want of memory).
    """
    if num_workers == 0:
        for batch in batches:
            yield batch, tokenize([record.content for record in batch])
        return
    method = _start_method()
    context: Any = multiprocessing.get_context(method)
    workers: list[tuple[Any, Connection]] = []
    try:
        for _ in range(num_workers):
            ours, theirs = context.Pipe()
            # A forked child inherits our ends: it closes them, or no worker would see us end.
            inherited = [*(connection for _, connection in workers), ours] if method == "fork" else []
            process = context.Process(target=_work, args=(theirs, tokenize, inherited), daemon=True)
            process.start()
            theirs.close()
            workers.append((process, ours))
        waiting: deque[tuple[list[RawRecord], int]] = deque()
        for number, batch in enumerate(batches):
            if len(waiting) >= _BATCHES_AHEAD * num_workers:
                yield _receive(workers, waiting)
            _send(workers, number % num_workers, [record.content for record in batch])
            waiting.append((batch, number % num_workers))
        while waiting:
            yield _receive(workers, waiting)
    finally:
        for process, connection in workers:
            connection.close()
            process.terminate()
            process.join()


def _start_method() -> Literal["fork", "spawn"]:
    """Forking shares the loaded tokenizer, but is safe only where no thread is running."""
    threaded = threading.active_count() > 1 or not {"torch", "tokenizers"}.isdisjoint(sys.modules)
    return "fork" if sys.platform == "linux" and not threaded else "spawn"


def _send(workers: list[tuple[Any, Connection]], number: int, contents: list[bytes | str]) -> None:
    process, connection = workers[number]
    try:
        connection.send(contents)
    except (BrokenPipeError, ConnectionResetError):
        raise _killed(process) from None


def _receive(
    workers: list[tuple[Any, Connection]], waiting: "deque[tuple[list[RawRecord], int]]"
) -> tuple[list[RawRecord], TokenizedBatch]:
    batch, number = waiting.popleft()
    process, connection = workers[number]
    try:
        result = connection.recv()
    except (EOFError, ConnectionResetError):
        raise _killed(process) from None
    if isinstance(result, BaseException):
        raise result
    tokenized: TokenizedBatch = result
    return batch, tokenized


def _killed(process: Any) -> MachineError:
    process.join(timeout=5)
    return MachineError(
        f"a tokenizing process ended with exit code {process.exitcode}",
        fix="It was killed, most often for want of memory: run again with fewer --workers.",
    )


def _work(connection: Connection, tokenize: BatchTokenizer, inherited: list[Connection]) -> None:
    """A worker's life: batches in, results out, until the other end closes."""
    for other in inherited:
        other.close()
    batches: queue.SimpleQueue[list[bytes | str] | None] = queue.SimpleQueue()

    def receive() -> None:  # a thread of its own, so that sender and receiver never wait for each other
        while True:
            try:
                batches.put(connection.recv())
            except (EOFError, OSError):
                batches.put(None)
                return

    threading.Thread(target=receive, daemon=True).start()
    try:
        while (contents := batches.get()) is not None:
            try:
                result: TokenizedBatch | Exception = tokenize(contents)
            except Exception as error:  # raised again in the parent
                result = error
            connection.send(result)
    except (BrokenPipeError, KeyboardInterrupt):
        return
