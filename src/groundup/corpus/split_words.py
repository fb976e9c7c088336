"""The words of a text, split once for all filters that look at it one after the other."""

import functools
from collections.abc import Sequence


@functools.lru_cache(maxsize=1)
def split_words(text: str) -> Sequence[str]:
    """Returns what stands between white space; the last answer is remembered, and must not be changed."""
    return text.split()
