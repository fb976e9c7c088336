"""Which documents of a data set are for training, which for validation and which for the test."""

import math

from groundup.core.errors import ConfigError

SPLITS = ("train", "validation", "test")


def split_ranges(split: str, num_documents: int, *, cumulative: bool = False) -> dict[str, tuple[int, int]]:
    """The documents [begin, end) of each split, rounded as Megatron-LM does.

    Args:
        split: Shares of train, validation and test, e.g. "969,30,1" or "90/10"; left out means 0.
        num_documents: Of the whole data set.
        cumulative: Round where splits end, as Megatron-LM does in 2026 (commit d98e8a6), rather than their
            lengths, as it did in 2023 (commit 992da75).

    Raises:
        ConfigError: It is not one to three numbers, none negative and not all 0.
    """
    shares = _shares(split)
    total = sum(shares)
    ends = [0]
    if cumulative:
        reached = 0.0
        for share in shares:
            reached += share / total
            ends.append(round(reached * num_documents))
    else:
        for share in shares:
            ends.append(ends[-1] + round(share / total * num_documents))
        surplus = ends[-1] - num_documents
        ends = [0, *(max(0, end - surplus) for end in ends[1:])]
    return {name: (ends[k], ends[k + 1]) for k, name in enumerate(SPLITS)}


def _shares(split: str) -> list[float]:
    separator = "," if "," in split else "/"
    try:
        shares = [float(share) for share in split.split(separator)]
    except ValueError:
        shares = []
    if not 1 <= len(shares) <= 3 or not all(0 <= share < math.inf for share in shares) or sum(shares) <= 0:
        raise ConfigError(
            f"{split!r} is not a split: one to three numbers, none negative, not all 0",
            where="split",
            fix="Write the shares of train, validation and test, e.g. 969,30,1.",
        )
    return shares + [0.0] * (3 - len(shares))
