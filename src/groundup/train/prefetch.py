"""The next batch is made while the present one is trained on."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType

import torch

from groundup.train.batches import Batch


class Prefetch:
    """Batches of consecutive samples, one of them ahead of its time; a context manager.

    Which samples a batch holds is a function of the index of its first one, so that reading ahead changes
    nothing but the waiting: on a disk that is slow to answer, and for copies to a GPU, which run beside
    its work from page-locked memory.

    Args:
        read: Makes the batch, on the CPU, of ``count`` samples from an index on.
        first_sample: Index of the first sample of the first batch.
        num_batches: How many batches there are.
        batch_size: Samples of a batch.
        stride: From the first sample of a batch to that of the next, those of other ranks between.
        device: Where batches go.
    """

    def __init__(
        self,
        read: Callable[[int, int], Batch],
        *,
        first_sample: int,
        num_batches: int,
        batch_size: int,
        stride: int,
        device: torch.device,
    ) -> None:
        self._read = read
        self._next_sample = first_sample
        self._end_sample = first_sample + num_batches * stride
        self._stride = stride
        self._batch_size = batch_size
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

    def _begin(self) -> None:
        """Sets out to make the next batch, where there is one."""
        self._ahead = None
        if self._next_sample < self._end_sample:
            self._ahead = self._reader.submit(self._make, self._next_sample)
            self._next_sample += self._stride

    def _make(self, first_sample: int) -> Batch:
        batch = self._read(first_sample, self._batch_size)
        return batch.pinned() if self._device.type == "cuda" else batch
