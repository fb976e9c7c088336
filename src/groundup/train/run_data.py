"""What a run trains on: samples by index, as batches.

Which samples a batch holds is a pure function of the index of its first one, so that resuming, reading
ahead and the shares of data-parallel ranks need to know nothing of the data.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, Protocol, Self

from groundup.core.errors import DataError
from groundup.tokens.sampling.collate import read_predictions
from groundup.tokens.sampling.dataset import Samples
from groundup.tokens.sampling.excerpt import Excerpt
from groundup.tokens.sampling.packing import PackedDataset
from groundup.tokens.sampling.splits import open_splits, require_plan, tokenizer_of_data
from groundup.tokens.sampling.trace import DocumentRange, trace_sample
from groundup.tokens.tokenizer.base import Tokenizer
from groundup.train.config import TrainConfig
from groundup.train.data_loader import Batch, from_predictions


class Split(Protocol):
    """Samples that training or a validation reads."""

    @property
    def name(self) -> str:
        """For messages."""
        ...

    @property
    def num_samples(self) -> int:
        """Samples of one epoch."""
        ...

    @property
    def num_tokens(self) -> int:
        """Tokens of one epoch."""
        ...

    def read(self, first_sample: int, count: int, *, ordered: bool = False) -> Batch:
        """Makes a batch on the CPU.

        Args:
            first_sample: Index of the first sample; it runs on through the epochs.
            count: Number of samples; each is ``Batch.rows_per_sample`` rows.
            ordered: In file order instead of the seeded one.

        Raises:
            DataError: It cannot be made.
        """
        ...

    def origins(self, index: int) -> list[dict[str, Any]]:
        """Returns where a sample came from, as ``DumpAbout.sources`` has it."""
        ...


class HeldOutSplit(Split, Protocol):
    """Samples that a validation reads, all or some of them."""

    def excerpt(self, first_sample: int, count: int) -> "HeldOutSplit":
        """Returns some samples, in the order of training, as a split of their own."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunData:
    """The data of a run.

    Attributes:
        train: Samples of training.
        tokenizer: Of the data, which the model must have.
        fingerprint: Changes when the training samples do; a run goes on with the same ones only.
        validation: Held out; None where there are none.
        test: Likewise.
        facts: What is to be said of them before training, in lines.
    """

    train: Split
    tokenizer: Tokenizer
    fingerprint: str
    validation: HeldOutSplit | None = None
    test: HeldOutSplit | None = None
    facts: Sequence[str] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class SampleSplit:
    """What splits of samples have in common; see ``Split``."""

    samples: Samples
    vocab_size: int

    @property
    def name(self) -> str:
        """See ``Split.name``."""
        return self.samples.name

    @property
    def num_samples(self) -> int:
        """See ``Split.num_samples``."""
        return self.samples.num_samples

    @property
    def num_tokens(self) -> int:
        """See ``Split.num_tokens``."""
        return self.samples.num_tokens

    def excerpt(self, first_sample: int, count: int) -> Self:
        """See ``HeldOutSplit.excerpt``."""
        return dataclasses.replace(self, samples=Excerpt(self.samples, first_sample, count))


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenSplit(SampleSplit):
    """The samples of token files; see ``Split``."""

    mask_documents: bool

    def read(self, first_sample: int, count: int, *, ordered: bool = False) -> Batch:
        """See ``Split.read``; in file order a batch may have nothing to predict."""
        return read_batch(
            self.samples,
            first_sample,
            count,
            vocab_size=self.vocab_size,
            mask_documents=self.mask_documents,
            ordered=ordered,
        )

    def origins(self, index: int) -> list[dict[str, Any]]:
        """See ``Split.origins``."""
        return [_origin(piece) for piece in trace_sample(self.samples, index)]


def token_data(config: TrainConfig) -> RunData:
    """Opens the token files of a config; reads headers only.

    Raises:
        DataError: They are missing, damaged, or too small for the run.
    """
    splits = open_splits(config.data, seed=config.seed, **config.planned_samples)
    require_plan(
        splits,
        num_steps=config.num_steps,
        batch_sizes=config.batch_sizes,
        validation=config.validation.interval > 0,
    )
    assert splits.train is not None, "the plan was checked"

    def split_of(samples: Samples) -> TokenSplit:
        return TokenSplit(
            samples=samples, vocab_size=config.model.vocab_size, mask_documents=config.data.mask_documents
        )

    return RunData(
        train=split_of(splits.train),
        tokenizer=tokenizer_of_data(config.data),
        fingerprint=splits.fingerprint,
        validation=split_of(splits.validation) if splits.validation else None,
        test=split_of(splits.test) if splits.test else None,
        facts=[
            f"{part.key}: {part.samples.describe()}"
            for part in splits.source_splits["train"]
            if isinstance(part.samples, PackedDataset)
        ],
    )


def read_batch(
    dataset: Samples,
    first_sample: int,
    count: int,
    *,
    vocab_size: int,
    mask_documents: bool = False,
    ordered: bool = False,
) -> Batch:
    """Reads ``count`` samples from index ``first_sample`` on, on the CPU.

    Args:
        dataset: Where they come from.
        first_sample: Index of the first.
        count: Number of samples.
        vocab_size: Of the model.
        mask_documents: Keep documents apart.
        ordered: In file order instead of the seeded one; such a batch may have nothing to predict.

    Raises:
        DataError: A token id is outside the vocabulary, or there is nothing to predict.
    """
    predictions = read_predictions(
        dataset, first_sample, count, vocab_size=vocab_size, mask_documents=mask_documents, ordered=ordered
    )
    batch = from_predictions(predictions)
    if batch.num_targets == 0 and not ordered:
        raise DataError(
            f"samples {first_sample} to {first_sample + count - 1} have nothing to predict:"
            " each of their documents has one token",
            where=dataset.name,
            fix="Leave documents without text out of the data, or set data.mask_documents=false.",
        )
    return batch


def _origin(piece: DocumentRange) -> dict[str, Any]:
    origin = piece.came_from
    return {
        "document": piece.document,
        "begin": piece.begin,
        "end": piece.end,
        "length": piece.length,
        "source": origin.source if origin else "",
        "line": origin.line if origin else 0,
        "url": origin.url if origin else "",
    }
