"""From samples to the tensors of a step, one batch ahead of training.

Shapes: B rows, one for each sample or several, T tokens.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from operator import itemgetter
from types import TracebackType

import torch
from torch import Tensor

from groundup.parallel.context_parallel import tokens_of_rank
from groundup.tokens.sampling.collate import Predictions
from groundup.tokens.sampling.dataset import PADDING
from groundup.train.loss import IGNORE


@dataclasses.dataclass(frozen=True, kw_only=True)
class Batch:
    """Inputs of the model and the target of each.

    Attributes:
        tokens_BT: Input ids.
        targets_BT: The next ids; ``IGNORE`` where there is none to learn.
        positions_BT: Position of each token in its document; None for its position in the sample.
        documents_BT: Number of each token's document within its sample, int32; None where attention
            crosses documents.
        extra: Further tensors of an objective by name, [B] or [B, T].
        rows_per_sample: Neighbouring rows that are one sample, and stay together.
    """

    tokens_BT: Tensor
    targets_BT: Tensor
    positions_BT: Tensor | None = None
    documents_BT: Tensor | None = None
    extra: Mapping[str, Tensor] = dataclasses.field(default_factory=dict)
    rows_per_sample: int = 1

    @property
    def num_samples(self) -> int:
        """Number of samples."""
        return len(self.tokens_BT) // self.rows_per_sample

    @property
    def num_targets(self) -> int:
        """Number of target tokens."""
        return int((self.targets_BT != IGNORE).sum())

    def split(self, micro_batch_size: int) -> Iterator["Batch"]:
        """Yields micro-batches of at most so many samples."""
        rows = micro_batch_size * self.rows_per_sample
        for first in range(0, len(self.tokens_BT), rows):
            yield self.changed(itemgetter(slice(first, first + rows)))

    def to(self, device: torch.device) -> "Batch":
        """Copies the batch to a device."""
        return self.changed(lambda tensor: tensor.to(device, non_blocking=True))

    def pinned(self) -> "Batch":
        """Copies the batch to page-locked memory, from which a GPU copies while it computes."""
        return self.changed(lambda tensor: tensor.pin_memory())

    def changed(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        """Applies a function to each tensor."""
        return dataclasses.replace(
            self,
            tokens_BT=change(self.tokens_BT),
            targets_BT=change(self.targets_BT),
            positions_BT=None if self.positions_BT is None else change(self.positions_BT),
            documents_BT=None if self.documents_BT is None else change(self.documents_BT),
            extra={name: change(tensor) for name, tensor in self.extra.items()},
        )


def share_of_rows(batch: Batch, rank: int, ranks: int) -> Batch:
    """Returns a rank's samples of a batch, as many on each rank: rows that fill up have no targets."""
    share = -(-batch.num_samples // ranks) * batch.rows_per_sample
    rows = torch.arange(rank * share, (rank + 1) * share)
    of_last = len(batch.tokens_BT) - batch.rows_per_sample + rows % batch.rows_per_sample
    chosen = torch.minimum(rows, of_last)
    part = batch.changed(lambda tensor: tensor[chosen])
    targets_BT = part.targets_BT.masked_fill((rows != chosen).unsqueeze(1), IGNORE)
    return dataclasses.replace(part, targets_BT=targets_BT)


def share_of_tokens(batch: Batch, rank: int, ranks: int) -> Batch:
    """Returns a rank's tokens of each sample under context parallelism, with explicit positions."""
    if ranks == 1:
        return batch
    positions_BT = batch.positions_BT
    if positions_BT is None:
        length = batch.tokens_BT.shape[1]
        positions_BT = torch.arange(length, device=batch.tokens_BT.device).expand_as(batch.tokens_BT)
    explicit = dataclasses.replace(batch, positions_BT=positions_BT)
    return explicit.changed(lambda tensor: tokens_of_rank(tensor, rank, ranks) if tensor.ndim > 1 else tensor)


def from_predictions(predictions: Predictions) -> Batch:
    """Makes tensors on the CPU of them."""
    targets_BT = torch.from_numpy(predictions.targets_BT)
    positions_BT, documents_BT = predictions.positions_BT, predictions.documents_BT
    return Batch(
        tokens_BT=torch.from_numpy(predictions.tokens_BT),
        targets_BT=targets_BT.masked_fill(targets_BT == PADDING, IGNORE),
        positions_BT=None if positions_BT is None else torch.from_numpy(positions_BT),
        documents_BT=None if documents_BT is None else torch.from_numpy(documents_BT),
    )


class Prefetch:
    """Makes batches of given samples, the next one while the present one is trained on; a context manager.

    Which samples a batch holds is a function of the index of its first one, so that reading ahead changes
    nothing but the waiting for a slow disk and for copies to a GPU.

    Args:
        read: Makes a batch on the CPU from the index of the first sample and the number of samples.
        ranges: Index of the first sample and number of samples of each batch.
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
        """Returns the next batch, on the device.

        Raises:
            DataError: It cannot be made; see ``Split.read``.
        """
        assert self._ahead is not None, "there is no batch behind the last"
        batch = self._ahead.result()
        self._begin()
        return batch.to(self._device)

    def jump(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Continues with other batches instead."""
        if self._ahead:
            self._ahead.cancel()
        self._ranges = iter(ranges)
        self._begin()

    def _begin(self) -> None:
        """Starts making the next batch, if there is one."""
        following = next(self._ranges, None)
        self._ahead = self._reader.submit(self._make, *following) if following else None

    def _make(self, first_sample: int, count: int) -> Batch:
        batch = self._read(first_sample, count)
        return batch.pinned() if self._device.type == "cuda" else batch
