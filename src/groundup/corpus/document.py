"""The document: what flows from the sources through the steps to the tokens."""

import dataclasses
from typing import Any

import orjson


@dataclasses.dataclass(frozen=True, slots=True)
class Document:
    """One text and where it came from.

    Attributes:
        id: Names the document within its source: the record's own id, ``file:line``, or a relative path.
        url: Where the text was published; empty when unknown.
        text: The text, valid Unicode (no lone surrogates).
        meta: Everything else known of it: JSON-like values. ``origin`` is the ``file:line`` it was read from.
    """

    id: str
    url: str
    text: str
    meta: dict[str, Any] = dataclasses.field(default_factory=dict)


def to_json_line(document: Document) -> bytes:
    """The document as one line of UTF-8 JSON, ending in a newline.

    Raises:
        TypeError: ``meta`` holds a value that JSON has not, or a text is not valid Unicode.
    """
    return orjson.dumps(
        {"id": document.id, "url": document.url, "text": document.text, "meta": document.meta},
        option=orjson.OPT_APPEND_NEWLINE,
    )


def from_json_line(line: bytes) -> Document:
    """The document of a line that ``to_json_line`` wrote.

    Raises:
        orjson.JSONDecodeError: Not JSON (a ``ValueError``).
        KeyError: A field is missing.
    """
    record = orjson.loads(line)
    return Document(record["id"], record["url"], record["text"], record["meta"])


def text_bytes(text: str) -> int:
    """Length of the text in UTF-8, in bytes."""
    return len(text) if text.isascii() else len(text.encode())
