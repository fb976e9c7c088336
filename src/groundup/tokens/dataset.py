"""Samples from tokens: windows over the documents of a split, in an order that is computed.

Sample ``i`` of a split is tokens [i * L, (i + 1) * L] of its documents, one behind the other: L + 1
tokens, the last of which is the next one's first, as in Megatron-LM. The documents of a split are
neighbours in the file, so a sample is one slice of the memory-mapped ``.bin``.
"""

import dataclasses
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
import pydantic

from groundup.core.config import config
from groundup.core.errors import DataError
from groundup.tokens.indexed import IndexedDataset, bin_path
from groundup.tokens.megatron_order import MegatronOrder, megatron_order
from groundup.tokens.order import Order
from groundup.tokens.plan import SPLITS, Plan, find_problem, samples_in, split_ranges


@config
class DataConfig:
    """What to train on.

    Attributes:
        path: Prefix of the ``.bin`` and ``.idx`` files, with or without the ending.
        tokenizer: Folder of its tokenizer, for a dataset that Megatron-LM wrote; ours knows its own.
        split: Shares of train, validation and test over the documents.
        sequence_length: Tokens predicted in one sample.
        max_epochs: At most so many passes over the training split; 0 for any number.
        order: Of training samples: "seeded", a bijection computed from the seed alone, or "megatron",
            Megatron-LM's own shuffle, for continuing a run that it began; it depends on the run's length.
    """

    path: Path
    tokenizer: Path | None = None
    split: str = "969,30,1"
    sequence_length: Annotated[int, pydantic.Field(ge=1)] = 1024
    max_epochs: Annotated[int, pydantic.Field(ge=0)] = 0
    order: Literal["seeded", "megatron"] = "seeded"


class TokenDataset:
    """The samples of one split; which one comes at an index is a pure function of (seed, epoch, index).

    Args:
        tokens: [num_tokens], any integer dtype: the split's documents, one behind the other.
        sequence_length: L; a sample has L + 1 tokens.
        seed: Of the order.
        num_documents: In ``tokens``.
        name: For messages.
        megatron: Megatron-LM's order instead of the seeded one.
    """

    def __init__(
        self,
        tokens: npt.NDArray[Any],
        *,
        sequence_length: int,
        seed: int,
        num_documents: int,
        name: str = "tokens",
        megatron: MegatronOrder | None = None,
    ) -> None:
        self.tokens = tokens
        self.sequence_length = sequence_length
        self.seed = seed
        self.num_documents = num_documents
        self.name = name
        self.megatron = megatron
        self.num_tokens = len(tokens)
        self.num_samples = samples_in(len(tokens), sequence_length)
        if self.num_samples == 0:
            raise DataError(
                f"has {len(tokens):,} tokens, one sample needs {sequence_length + 1:,}",
                where=name,
                fix=f"Set sequence_length to {max(1, len(tokens) - 1)} or less, or add text.",
            )

    def samples(self, first_index: int, count: int) -> npt.NDArray[np.int64]:
        """Which samples come at the indices [first_index, first_index + count): int64 [count]."""
        found = np.empty(count, dtype=np.int64)
        done = 0
        while done < count:
            epoch, position = divmod(first_index + done, self.num_samples)
            take = min(count - done, self.num_samples - position)
            order = Order(self.num_samples, seed=self.seed, epoch=epoch)
            found[done : done + take] = order.sample(np.arange(position, position + take))
            done += take
        return found

    def window(self, index: int) -> npt.NDArray[np.int64]:
        """The sample at a global index (epoch = index // num_samples): int64 [sequence_length + 1]."""
        window: npt.NDArray[np.int64] = self.batch(index, 1)[0]
        return window

    def batch(self, first_index: int, count: int, *, ordered: bool = False) -> npt.NDArray[np.int64]:
        """The samples at indices [first_index, first_index + count): int64 [count, sequence_length + 1].

        Args:
            first_index: Global index of the first one, 0 or more.
            count: Number of samples.
            ordered: In file order instead of the seeded one; past the end it begins again.
        """
        if self.megatron and not ordered:
            return self._megatron_batch(self.megatron, first_index, count)
        if ordered:
            samples = np.arange(first_index, first_index + count) % self.num_samples
        else:
            samples = self.samples(first_index, count)
        length = self.sequence_length
        batch = np.empty((count, length + 1), dtype=np.int64)
        tokens = self.tokens
        for row, sample in enumerate(samples.tolist()):
            batch[row] = tokens[sample * length : (sample + 1) * length + 1]
        return batch

    def _megatron_batch(self, order: MegatronOrder, first_index: int, count: int) -> npt.NDArray[np.int64]:
        if first_index + count > order.num_samples:
            raise DataError(
                f"sample {first_index + count - 1} is beyond the {order.num_samples} that were planned",
                where=self.name,
                fix="With data.order=megatron the length of a run is fixed when it begins.",
            )
        batch = np.empty((count, self.sequence_length + 1), dtype=np.int64)
        for row in range(count):
            pieces = [self.tokens[begin:end] for begin, end in order.pieces(first_index + row)]
            np.concatenate(pieces, out=batch[row], casting="safe")
        return batch


@dataclasses.dataclass(frozen=True, kw_only=True)
class Splits:
    """The datasets of a run; None for a split without a single whole sample."""

    config: DataConfig
    indexed: IndexedDataset
    train: TokenDataset | None
    validation: TokenDataset | None
    test: TokenDataset | None


def open_splits(config: DataConfig, *, seed: int, num_samples: int = 1) -> Splits:
    """Opens a dataset and divides its documents; reads the header only.

    Args:
        config: What to train on.
        seed: Of the order of samples.
        num_samples: That training will take; decides Megatron-LM's order, and nothing else.

    Raises:
        DataError: A file is missing, malformed or does not match the other.
        ConfigError: The split string is malformed.
    """
    indexed = IndexedDataset(config.path)
    datasets: dict[str, TokenDataset | None] = {}
    for name, (begin, end) in split_ranges(config.split, indexed.num_sequences).items():
        tokens = indexed.tokens[indexed.token_begin(begin) : indexed.token_begin(end)]
        datasets[name] = None
        if samples_in(len(tokens), config.sequence_length):
            megatron = None
            if name == "train" and config.order == "megatron":
                megatron = megatron_order(
                    np.asarray(indexed.lengths[begin:end]),
                    sequence_length=config.sequence_length,
                    num_samples=num_samples,
                    seed=seed,
                )
            datasets[name] = TokenDataset(
                tokens,
                megatron=megatron,
                sequence_length=config.sequence_length,
                seed=seed,
                num_documents=end - begin,
                name=f"{indexed.prefix} ({name})",
            )
    return Splits(config=config, indexed=indexed, **datasets)


def require_plan(
    splits: Splits,
    *,
    num_steps: int,
    global_batch_size: int,
    validation: bool = False,
    test: bool = False,
    data_key: str = "data",
    num_steps_key: str = "num_steps",
) -> None:
    """Refuses a plan that cannot be carried out, before any training.

    Args:
        splits: The opened data.
        num_steps: Training steps.
        global_batch_size: Samples of one step.
        validation: Whether the validation split must hold a sample.
        test: Whether the test split must.
        data_key: Dotted key of the ``DataConfig`` in the user's config, for the message.
        num_steps_key: Dotted key of the number of steps.

    Raises:
        DataError: A needed split is empty or smaller than one sample, or the steps take more than
            ``max_epochs``; with the smallest changes that mend it.
    """
    wanted = (True, validation, test)
    plan = Plan(
        split=splits.config.split,
        sequence_length=splits.config.sequence_length,
        max_epochs=splits.config.max_epochs,
        num_steps=num_steps,
        global_batch_size=global_batch_size,
        needs=tuple(name for name, need in zip(SPLITS, wanted, strict=True) if need),
    )
    problem = find_problem(splits.indexed, plan)
    if problem is None:
        return
    keys = {"num_steps": num_steps_key}
    ways = [
        " ".join(f"{keys.get(key, f'{data_key}.{key}')}={value}" for key, value in change.items())
        for change in problem.changes
    ]
    raise DataError(
        problem.what,
        where=bin_path(splits.indexed.prefix),
        fix=f"Set {', or '.join(ways)}." if ways else "Add more text: at least a few documents.",
    )
