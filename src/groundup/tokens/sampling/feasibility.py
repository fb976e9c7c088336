"""Which documents belong to which split, and the smallest change where a split is too small."""

import bisect
import dataclasses
import math
from collections.abc import Collection

from groundup.core.errors import ConfigError
from groundup.tokens.dataset.token_source import TokenSource

SPLITS = ("train", "validation", "test")

Change = dict[str, str | int | float]
"""Keys of a config and their new values."""


@dataclasses.dataclass(frozen=True)
class Problem:
    """Why a plan is impossible.

    Attributes:
        what: In words.
        changes: Each mends it; none where only more text does.
        enough: Whether nothing else is in the way after each of them.
    """

    what: str
    changes: tuple[Change, ...]
    enough: bool = True


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


def tokens_in(source: TokenSource, documents: tuple[int, int]) -> int:
    """Tokens of the documents [begin, end)."""
    return source.token_begin(documents[1]) - source.token_begin(documents[0])


def find_problem(
    source: TokenSource, split: str, sequence_length: int, needs: Collection[str]
) -> Problem | None:
    """The first needed split that is smaller than one sample; None when there is none.

    The changes (of split, sequence_length, or both where neither is enough) move the fewest documents and
    shorten the least.
    """
    ranges = split_ranges(split, source.num_documents)
    tokens = {name: tokens_in(source, ranges[name]) for name in SPLITS if name in needs}
    small = [name for name, count in tokens.items() if not samples_in(count, sequence_length)]
    if not small:
        return None
    longest = min(tokens.values()) - 1
    nearest = _nearest_split(source, ranges, sequence_length, needs)
    changes: list[Change] = [{"split": nearest}] if nearest else []
    if longest >= 1:
        changes.append({"sequence_length": longest})
    if not changes:
        # Feasible lengths are those up to the longest feasible one: bisect for it.
        longest = bisect.bisect_left(
            range(1, sequence_length), True, key=lambda n: not _nearest_split(source, ranges, n, needs)
        )
        if longest:
            nearest = _nearest_split(source, ranges, longest, needs)
            changes.append({"split": nearest, "sequence_length": longest})
    begin, end = ranges[small[0]]
    documents = f"split {split} gives it {end - begin:,} of {source.num_documents:,} documents"
    if len(source.tokens) <= sequence_length:
        what = (
            f"the corpus has {len(source.tokens):,} tokens, one sample needs {sequence_length + 1:,}"
            " (sequence_length + 1)"
        )
    elif begin == end:
        what = f"the {small[0]} split is empty: {documents}"
    else:
        what = (
            f"the {small[0]} split is smaller than one sample: {documents} with {tokens[small[0]]:,} tokens,"
            f" a sample needs {sequence_length + 1:,} (sequence_length + 1)"
        )
    return Problem(what, tuple(changes))


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


def _nearest_split(
    source: TokenSource, ranges: dict[str, tuple[int, int]], sequence_length: int, needs: Collection[str]
) -> str:
    """The split, as numbers of documents, nearest to the ranges in which all needs are met; "" if none."""
    size, begins = source.num_documents, source.token_begin
    need = {name: sequence_length + 1 if name in needs else 0 for name in SPLITS}

    def first_end(begin: int, name: str) -> int:
        """Fewest documents up to here such that [begin, here) is enough; size + 1 when none is."""
        return begin + bisect.bisect_left(range(begin, size + 1), begins(begin) + need[name], key=begins)

    def last_begin(end: int, name: str) -> int:
        """The last document such that [here, end) is enough; -1 when none is."""
        return bisect.bisect_right(range(end + 1), begins(end) - need[name], key=begins) - 1

    latest_test = last_begin(size, "test")
    latest_validation = last_begin(latest_test, "validation") if latest_test >= 0 else -1
    earliest_validation = first_end(0, "train")
    if earliest_validation > latest_validation:
        return ""
    train_end = min(max(ranges["train"][1], earliest_validation), latest_validation)
    validation_end = min(max(ranges["validation"][1], first_end(train_end, "validation")), latest_test)
    return f"{train_end},{validation_end - train_end},{size - validation_end}"
