"""Which field of a record may hold its text, where it is not under the key that was named."""

import difflib
from collections.abc import Mapping
from typing import Any

_USUAL = ("text", "content", "body", "document", "raw_content", "article", "passage", "code", "markdown")
_A_TEXT = 40  # characters


def proposed_key(key: str, fields: Mapping[str, Any]) -> str:
    """The key that was probably meant: the longest text, else a usual name, else the nearest; perhaps none.

    Args:
        key: That was named, and is not there.
        fields: Of the record, or names of columns, whose values are None.
    """
    texts = {name: len(value) for name, value in fields.items() if isinstance(value, (str, bytes))}
    longest = max(texts, key=texts.__getitem__, default="")
    if longest and texts[longest] >= _A_TEXT:
        return longest
    for name in _USUAL:
        if name in fields and (fields[name] is None or name in texts):
            return name
    close = difflib.get_close_matches(key, list(fields), n=1, cutoff=0.5)
    return close[0] if close else longest
