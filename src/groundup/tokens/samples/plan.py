"""Is a plan possible: which documents belong to which split, and what is the smallest change if not."""

import bisect
import dataclasses
import math
from collections.abc import Collection
from typing import Protocol

from groundup.core.errors import ConfigError

SPLITS = ("train", "validation", "test")


class Corpus(Protocol):
    """What a plan must know of a dataset."""

    @property
    def num_documents(self) -> int:
        """Number of documents."""
        ...

    def token_begin(self, document: int) -> int:
        """Number of tokens before this document."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """How one corpus is divided.

    Attributes:
        split: Shares of train, validation and test.
        sequence_length: Tokens predicted in one sample.
        needs: The splits that must hold a sample.
    """

    split: str
    sequence_length: int
    needs: Collection[str] = ("train",)


@dataclasses.dataclass(frozen=True)
class Problem:
    """Why a plan is impossible, and the changes that each mend it (none: only more text does)."""

    what: str
    changes: tuple[dict[str, str | int | float], ...]


def split_ranges(split: str, num_documents: int) -> dict[str, tuple[int, int]]:
    """The documents [begin, end) of each split, rounded as Megatron-LM does (2023, commit 992da75).

    Args:
        split: Shares of train, validation and test, e.g. "969,30,1" or "90/10"; left out means 0.
        num_documents: Of the whole dataset.

    Raises:
        ConfigError: Not one to three numbers that are at least 0 and not all 0.
    """
    shares = _shares(split)
    total = sum(shares)
    ends = [0]
    for share in shares:
        ends.append(ends[-1] + round(share / total * num_documents))
    surplus = ends[-1] - num_documents
    ends = [0, *(max(0, end - surplus) for end in ends[1:])]
    return {name: (ends[k], ends[k + 1]) for k, name in enumerate(SPLITS)}


def samples_in(num_tokens: int, sequence_length: int) -> int:
    """Samples of ``sequence_length + 1`` tokens, consecutive ones sharing one token."""
    return max(0, (num_tokens - 1) // sequence_length)


def find_problem(corpus: Corpus, plan: Plan) -> Problem | None:
    """The first needed split that is smaller than one sample; None when there is none.

    Each dict of ``changes`` (keys: split, sequence_length) is alone enough.
    """
    tokens = _split_tokens(corpus, plan.split)
    for name in SPLITS:
        if name in plan.needs and samples_in(tokens[name], plan.sequence_length) == 0:
            return Problem(_too_small(corpus, plan, name, tokens[name]), _mended_splits(corpus, plan))
    return None


def _shares(split: str) -> list[float]:
    separator = "," if "," in split else "/"
    try:
        shares = [float(part) for part in split.split(separator)]
    except ValueError:
        shares = []
    if not 1 <= len(shares) <= 3 or not all(0 <= share < math.inf for share in shares) or sum(shares) <= 0:
        raise ConfigError(
            f"{split!r} is not a split: one to three numbers, none negative, not all 0",
            where="split",
            fix="Write the shares of train, validation and test, e.g. 969,30,1.",
        )
    return shares + [0.0] * (3 - len(shares))


def _split_tokens(corpus: Corpus, split: str) -> dict[str, int]:
    ranges = split_ranges(split, corpus.num_documents)
    begins = corpus.token_begin
    return {name: begins(end) - begins(begin) for name, (begin, end) in ranges.items()}


def _too_small(corpus: Corpus, plan: Plan, name: str, num_tokens: int) -> str:
    needed = plan.sequence_length + 1
    total = corpus.token_begin(corpus.num_documents)
    if total < needed:
        return f"the corpus has {total:,} tokens, one sample needs {needed:,} (sequence_length + 1)"
    begin, end = split_ranges(plan.split, corpus.num_documents)[name]
    documents = f"{end - begin:,} of {corpus.num_documents:,} documents"
    if begin == end:
        return f"the {name} split is empty: split {plan.split} gives it {documents}"
    return (
        f"the {name} split is smaller than one sample: split {plan.split} gives it {documents} with"
        f" {num_tokens:,} tokens, a sample needs {needed:,} (sequence_length + 1)"
    )


def _mended_splits(corpus: Corpus, plan: Plan) -> tuple[dict[str, str | int | float], ...]:
    """Another split (fewest documents moved), a shorter sequence, or both where neither is enough."""
    changes: list[dict[str, str | int | float]] = []
    split = _nearest_split(corpus, plan, plan.sequence_length)
    if split:
        changes.append({"split": split})
    tokens = _split_tokens(corpus, plan.split)
    longest = min(tokens[name] for name in plan.needs) - 1
    if longest >= 1:
        changes.append({"sequence_length": longest})
    if not changes:
        # Feasible lengths are those up to the longest feasible one: bisect for it.
        lengths = range(1, plan.sequence_length)
        longest = bisect.bisect_left(lengths, True, key=lambda n: not _nearest_split(corpus, plan, n))
        if longest:
            split = _nearest_split(corpus, plan, longest)
            changes.append({"split": split, "sequence_length": longest})
    return tuple(changes)


def _nearest_split(corpus: Corpus, plan: Plan, sequence_length: int) -> str:
    """The split, as numbers of documents, nearest to the plan's in which all needs are met; "" if none."""
    size = corpus.num_documents
    need = {name: sequence_length + 1 if name in plan.needs else 0 for name in SPLITS}

    def first_end(begin: int, name: str) -> int:
        """Fewest documents up to here such that [begin, here) is enough; size + 1 when none is."""
        target = corpus.token_begin(begin) + need[name]
        return bisect.bisect_left(range(begin, size + 1), target, key=corpus.token_begin) + begin

    def last_begin(end: int, name: str) -> int:
        """The last document such that [here, end) is enough; -1 when none is."""
        target = corpus.token_begin(end) - need[name]
        return bisect.bisect_right(range(end + 1), target, key=corpus.token_begin) - 1

    latest_test = last_begin(size, "test")
    latest_validation = last_begin(latest_test, "validation") if latest_test >= 0 else -1
    earliest_validation = first_end(0, "train")
    if earliest_validation > latest_validation:
        return ""
    ranges = split_ranges(plan.split, size)
    train_end = min(max(ranges["train"][1], earliest_validation), latest_validation)
    validation_end = min(max(ranges["validation"][1], first_end(train_end, "validation")), latest_test)
    return f"{train_end},{validation_end - train_end},{size - validation_end}"
