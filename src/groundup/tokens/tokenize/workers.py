"""A row of tokenizing processes, which give their results in the order of the batches.

Batch ``i`` goes to worker ``i % n``, which answers in order, so the result does not depend on timing;
each worker has at most a few batches, so memory does not depend on the input.
"""

import queue
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any

from groundup.core.executor.local import Worker, worker_processes
from groundup.corpus.blocks import Block
from groundup.tokens.tokenize.tokenize_batch import Batch, BatchTokenizer, TokenizedBatch

_BATCHES_AHEAD = 3
_BYTES_AHEAD = 1 << 26


def tokenize_batches(
    batches: Iterable[Batch], tokenize: BatchTokenizer, workers: Sequence[Worker]
) -> Iterator[tuple[Batch, TokenizedBatch]]:
    """Each batch and its ids, in order.

    Args:
        batches: Read lazily, at most three ahead for each worker.
        tokenize: What is done to each.
        workers: Processes of ``tokenizing_processes``; none: the work is done in this one.

    Raises:
        MachineError: A worker was killed (most often for want of memory).
    """
    if not workers:
        for batch in batches:
            yield batch, tokenize(batch.blocks)
        return
    waiting: deque[tuple[Batch, Worker]] = deque()
    bytes_ahead = 0
    for number, batch in enumerate(batches):
        while waiting and (
            len(waiting) >= _BATCHES_AHEAD * len(workers) or bytes_ahead + batch.size_bytes > _BYTES_AHEAD
        ):
            bytes_ahead -= waiting[0][0].size_bytes
            yield _receive(waiting)
        worker = workers[number % len(workers)]
        try:
            worker.connection.send(batch.blocks)
        except (BrokenPipeError, ConnectionResetError):
            raise worker.killed("while tokenizing") from None
        waiting.append((batch, worker))
        bytes_ahead += batch.size_bytes
    while waiting:
        yield _receive(waiting)


def tokenizing_processes(number: int, tokenize: BatchTokenizer) -> Any:
    """A context manager: the processes that ``tokenize_batches`` hands batches to."""
    return worker_processes(number, _work, tokenize)


def _receive(waiting: "deque[tuple[Batch, Worker]]") -> tuple[Batch, TokenizedBatch]:
    batch, worker = waiting.popleft()
    try:
        result = worker.connection.recv()
    except (EOFError, ConnectionResetError):
        raise worker.killed("while tokenizing") from None
    if isinstance(result, BaseException):
        raise result
    tokenized: TokenizedBatch = result
    return batch, tokenized


def _work(connection: Connection, tokenize: BatchTokenizer) -> None:
    """A worker's life: batches in, results out, until the other end closes."""
    batches: queue.SimpleQueue[list[Block] | None] = queue.SimpleQueue()

    def receive() -> None:  # a thread of its own, so that sender and receiver never wait for each other
        while True:
            try:
                batches.put(connection.recv())
            except (EOFError, OSError):
                batches.put(None)
                return

    threading.Thread(target=receive, daemon=True).start()
    try:
        while (blocks := batches.get()) is not None:
            try:
                result: TokenizedBatch | Exception = tokenize(blocks)
            except Exception as error:  # raised again in the parent
                result = error
            connection.send(result)
    except (BrokenPipeError, ConnectionResetError):
        return
