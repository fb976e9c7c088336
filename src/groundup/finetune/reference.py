"""Log-probabilities of the answers by the reference model: the weights that a run began with.

They are computed once, before the first step, over the run's own layout, and kept in blocks on disk, so that
an interrupted computation goes on where it was and another run from the same weights finds them.

Shapes: B rows, P pairs of a row.
"""

import hashlib
import io
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
import xxhash
from torch import Tensor

from groundup.core.errors import DataError
from groundup.core.files import atomic_write
from groundup.core.log import logger
from groundup.core.progress import Progress
from groundup.finetune.pair_loss import sequence_log_probs
from groundup.finetune.pair_split import PairSplit
from groundup.models import Model, evaluating
from groundup.parallel.fsdp import without_gathering
from groundup.train.data_loader import Batch, share_of_rows
from groundup.train.forward_backward import inputs_of
from groundup.train.init_weights import begin, open_start
from groundup.train.setup import Run, empty_state
from groundup.train.state import TrainState

_BLOCK = 256
"""Samples of a file."""


def fill_reference(run: Run, folder: Path) -> None:
    """Gives the pairs of a run their reference log-probabilities, from ``folder`` or computed anew.

    Args:
        run: With its weights, before the first step or restored.
        folder: Where they are kept, by hashes of weights, data and precision.

    Raises:
        DataError: A file of the folder is damaged.
    """
    weights = run.mesh.all_gather(_hash_of_start(run) if run.mesh.is_first else "")[0]
    state = None
    splits = {"train": run.data.train, "validation": run.data.validation, "test": run.data.test}
    for name, split in splits.items():
        if split is None:
            continue
        assert isinstance(split, PairSplit), "the data of this stage are pairs"
        key = hashlib.sha256(f"{weights} {split.fingerprint} {run.precision.name}".encode()).hexdigest()[:16]
        kept = _Kept(folder / f"{name}-{key}", split)
        missing = run.mesh.all_gather(kept.missing() if run.mesh.is_first else [])[0]
        if missing and state is None:
            state = run.state if run.state.step == 0 else _start_state(run)
        if missing and state is not None:
            _compute(run, state, name, kept, missing)
        elif run.mesh.is_first:
            logger.info("reference log-probabilities of %s: kept in %s", name, kept.folder)
        values = run.mesh.all_gather(kept.read() if run.mesh.is_first else None)[0]
        assert values is not None, "the first rank has read them"
        split.reference[:] = values


class _Kept:
    """The files of one split: ``000000.npy`` has the pairs of the first block of samples, in their order."""

    def __init__(self, folder: Path, split: PairSplit) -> None:
        self.folder = folder
        self.split = split

    def missing(self) -> list[int]:
        """Returns the first samples of the blocks that are not there."""
        blocks = range(0, self.split.num_samples, _BLOCK)
        return [first for first in blocks if not self._path(first).is_file()]

    def write(self, first: int, values: npt.NDArray[np.float32]) -> None:
        """Writes a block, all of it or nothing."""
        content = io.BytesIO()
        np.save(content, values)
        with atomic_write(self._path(first)) as file:
            file.write(content.getvalue())

    def read(self) -> npt.NDArray[np.float32]:
        """Returns the values of all pairs, in the order of the pairs."""
        values = np.full_like(self.split.reference, np.nan)
        for first in range(0, self.split.num_samples, _BLOCK):
            numbers = self.numbers(first)
            path = self._path(first)
            try:
                block = np.load(path, allow_pickle=False)
            except (ValueError, EOFError, OSError) as error:
                raise DataError(f"cannot be read ({error})", where=path, fix="Remove it.") from None
            if block.shape != (len(numbers), 2) or not np.isfinite(block).all():
                raise DataError(
                    f"holds no log-probabilities of {len(numbers)} pairs", where=path, fix="Remove it."
                )
            values[numbers] = block
        return values

    def numbers(self, first: int) -> list[int]:
        """Returns the numbers of the pairs of a block."""
        last = min(first + _BLOCK, self.split.num_samples)
        return [number for sample in range(first, last) for number in self.split.pairs_of(sample)]

    def _path(self, first: int) -> Path:
        return self.folder / f"{first // _BLOCK:06}.npy"


def _compute(run: Run, state: TrainState, name: str, kept: _Kept, missing: list[int]) -> None:
    """Computes the blocks that are not there; the first rank writes them."""
    split, size = kept.split, run.config.micro_batch_size * run.mesh.dp * run.mesh.layout.pp
    total = sum(len(kept.numbers(first)) for first in missing)
    run.heartbeat.record(run.state.step, "computing reference log-probabilities", is_long=True)
    with (
        Progress(f"reference log-probabilities of {name}", total, "pairs") as progress,
        without_gathering(state.parts),
    ):
        for first in missing:
            values = []
            last = min(first + _BLOCK, split.num_samples)
            for begin_of_chunk in range(first, last, size):
                count = min(size, last - begin_of_chunk)
                found_BP2 = _log_probs(run, state, split.read(begin_of_chunk, count, ordered=True))
                for sample, row in enumerate(found_BP2.cpu().numpy(), start=begin_of_chunk):
                    values.append(row[: len(split.pairs_of(sample))])
                    progress.add(len(values[-1]))
                run.heartbeat.keep_alive()
            if run.mesh.is_first:
                kept.write(first, np.concatenate(values))


def _log_probs(run: Run, state: TrainState, batch: Batch) -> Tensor:
    """Returns the log-probabilities of the answers of a batch, [B, P, 2], on all ranks."""
    mesh, precision = run.mesh, run.precision
    share = share_of_rows(batch, mesh.dp_rank, mesh.dp).to(run.device)
    micro_batches = list(share.split(run.config.micro_batch_size))
    rows, length = share.tokens_BT.shape
    found = torch.zeros(rows * mesh.dp, (length + 1) // 2, 2, device=run.device)
    mine = found[rows * mesh.dp_rank : rows * (mesh.dp_rank + 1)].split(run.config.micro_batch_size)

    def finish(model: Model, hidden_BTD: Tensor, number: int) -> None:
        mine[number].copy_(sequence_log_probs(model, hidden_BTD, micro_batches[number], precision))

    with torch.no_grad():
        if state.pipeline:
            state.pipeline.forward([inputs_of(one) for one in micro_batches], finish)
        else:
            with evaluating(state.model), precision.autocast():
                for number, one in enumerate(micro_batches):
                    finish(state.model, state.model(**inputs_of(one)), number)
    return mesh.sum(found, over_stages=True)[: len(batch.tokens_BT)]


def _start_state(run: Run) -> TrainState:
    """Returns the weights that a restored run began with."""
    logger.info("the reference log-probabilities are not there any more: computing them again")
    learning = run.learning
    state = empty_state(run.config, run.mesh, run.precision, adapters=learning.adapters)
    fill = learning.adapters.fill if learning.adapters else None
    begin(state, run.config, run.mesh, run.data.tokenizer, change_start=learning.change_start, fill=fill)
    return state


def _hash_of_start(run: Run) -> str:
    """Returns a hash of the weights in ``start.path``."""
    config = run.config
    assert config.start.path is not None, "a fine-tuning begins with a model"
    stored = open_start(config.start.path, run.data.tokenizer, vocab_size=config.model.vocab_size)
    found = xxhash.xxh3_128()
    for name in sorted(stored.weights):
        value = stored.weights[name].read().contiguous()
        found.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        found.update(value.view(torch.uint8).numpy().data)
    return found.hexdigest()
