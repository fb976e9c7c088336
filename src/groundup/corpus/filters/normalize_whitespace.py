"""Takes away white space that nobody sees."""

import dataclasses
import re
from typing import Annotated, Literal

import pydantic

from groundup.core.config import config
from groundup.corpus.document import Document

_BLANK_LINES_AT_START = re.compile(r"\A(?:[ \t\f]*\n)+")


@config
class NormalizeWhitespace:
    """Removes blanks at line ends, surplus blank lines, and blank lines at both ends of the text.

    Indentation and blanks within a line stay. A text that ended in a newline ends in exactly one.

    Attributes:
        max_blank_lines: Blank lines in a row that are left; Python code has 2 between functions.
    """

    kind: Literal["normalize_whitespace"] = "normalize_whitespace"
    max_blank_lines: Annotated[int, pydantic.Field(ge=0)] = 2

    def apply(self, document: Document) -> Document:
        """The document with its white space normalised."""
        text = document.text
        if " \n" in text or "\t\n" in text:
            text = "\n".join(line.rstrip(" \t") for line in text.split("\n"))
        allowed = "\n" * (self.max_blank_lines + 1)
        if allowed + "\n" in text:
            text = re.sub(allowed + "\n+", allowed, text)
        text = _BLANK_LINES_AT_START.sub("", text)
        ended = text.endswith("\n")
        text = text.rstrip()
        if ended and text:
            text += "\n"
        return document if text == document.text else dataclasses.replace(document, text=text)
