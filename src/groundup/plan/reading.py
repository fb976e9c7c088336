"""What a run reads: tokens, samples and epochs of each split, from the headers of its data."""

import dataclasses

from groundup.tokens.sampling.splits import Splits, open_splits
from groundup.train.config import TrainConfig

SPLITS = ("train", "validation", "test")


@dataclasses.dataclass(frozen=True)
class SplitCounts:
    """What a split holds: documents, tokens, whole samples."""

    documents: int
    tokens: int
    samples: int


@dataclasses.dataclass(frozen=True)
class Reading:
    """What a run takes of its data.

    Attributes:
        tokens_per_step: After any ramp of the batch.
        samples: Of the run.
        tokens: Of the run.
        splits: By name; empty where the data was not opened.
        epochs: Passes over the training split; 0 where it was not opened.
    """

    tokens_per_step: int
    samples: int
    tokens: int
    splits: dict[str, SplitCounts] = dataclasses.field(default_factory=dict)
    epochs: float = 0.0


def open_data(config: TrainConfig) -> Splits:
    """Opens the data of a run; reads headers only.

    Raises:
        DataError: A file is missing, malformed or does not match the other.
        ConfigError: A split string is malformed.
    """
    return open_splits(config.data, seed=config.seed, num_samples=config.num_samples)


def reading_of(config: TrainConfig, splits: Splits | None) -> Reading:
    """Counts what a run reads; of its tokens alone where the data is not there."""
    length = config.data.sequence_length
    counts = {}
    for name in SPLITS if splits else ():
        assert splits is not None, "the loop is over its splits"
        parts, samples = splits.source_splits[name], getattr(splits, name)
        counts[name] = SplitCounts(
            documents=sum(part.num_documents for part in parts),
            tokens=sum(part.num_tokens for part in parts),
            samples=samples.num_samples if samples else 0,
        )
    of_training = counts["train"].samples if counts else 0
    return Reading(
        tokens_per_step=config.global_batch_size * length,
        samples=config.num_samples,
        tokens=config.num_samples * length,
        splits=counts,
        epochs=config.num_samples / of_training if of_training else 0.0,
    )
