"""The next batch is made while the present one is trained on."""

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType

import torch

from groundup.train.data_loader import Batch


class Prefetch:
    """Batches of given samples, one of them ahead of its time; a context manager.

    Which samples a batch holds is a function of the index of its first one, so that reading ahead changes
    nothing but the waiting: on a disk that is slow to answer, and for copies to a GPU, which run beside
    its work from page-locked memory.

    Args:
        read: Makes the batch, on the CPU, of ``count`` samples from an index on.
        ranges: Index of the first sample, and number of samples, of each batch.
        device: Where batches go.
    """

    def __init__(
        self,
        read: Callable[[int, int], Batch],
        ranges: Iterable[tuple[int, int]],
        *,
        device: torch.device,
    ) -> None:
        self._read = read
        self._ranges = iter(ranges)
        self._device = device
        self._reader = ThreadPoolExecutor(max_workers=1, thread_name_prefix="groundup-batches")
        self._ahead: Future[Batch] | None = None

    def __enter__(self) -> "Prefetch":
        self._begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._reader.shutdown(wait=True, cancel_futures=True)

    def next_batch(self) -> Batch:
        """The next batch, on the device.

        Raises:
            DataError: It cannot be made; see ``read_batch``.
        """
        assert self._ahead is not None, "there is no batch behind the last"
        batch = self._ahead.result()
        self._begin()
        return batch.to(self._device)

    def jump(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Goes on with other batches instead."""
        if self._ahead:
            self._ahead.cancel()
        self._ranges = iter(ranges)
        self._begin()

    def _begin(self) -> None:
        """Sets out to make the next batch, where there is one."""
        following = next(self._ranges, None)
        self._ahead = self._reader.submit(self._make, *following) if following else None

    def _make(self, first_sample: int, count: int) -> Batch:
        batch = self._read(first_sample, count)
        return batch.pinned() if self._device.type == "cuda" else batch
