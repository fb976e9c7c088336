"""Which tensors a file lacks and which it has too many, in a few words, with the nearest names."""

import difflib
from collections.abc import Collection, Sequence

_LISTED = 6
_ALIKE = 0.8


def describe_mismatch(wanted: Collection[str], found: Collection[str]) -> str:
    """What is missing (and what is there under a similar name) and what is unexpected; empty for neither."""
    missing, unexpected = sorted(set(wanted) - set(found)), sorted(set(found) - set(wanted))
    parts = []
    if missing:
        near = [
            f"{name} (there is {close[0]})"
            if (close := difflib.get_close_matches(name, unexpected, 1, _ALIKE))
            else name
            for name in missing[:_LISTED]
        ]
        parts.append(f"missing: {', '.join(near)}{_more(missing)}")
    if unexpected:
        parts.append(f"unexpected: {', '.join(unexpected[:_LISTED])}{_more(unexpected)}")
    return "; ".join(parts)


def _more(names: Sequence[str]) -> str:
    return f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
