"""Drops texts that are too short or too long."""

from typing import Annotated, Literal

import pydantic

from groundup.core.config import config
from groundup.corpus.document import Document
from groundup.corpus.filter import Drop


@config
class Length:
    """Keeps texts of a length within bounds.

    Attributes:
        min_characters: The shortest text that is kept, without white space at its ends.
        max_characters: The longest; None keeps texts of any length.
    """

    kind: Literal["length"] = "length"
    min_characters: Annotated[int, pydantic.Field(ge=0)] = 1
    max_characters: Annotated[int, pydantic.Field(ge=1)] | None = None

    def __post_init__(self) -> None:
        if self.max_characters is not None and self.max_characters < self.min_characters:
            raise ValueError(f"max_characters {self.max_characters} is below {self.min_characters}")

    def apply(self, document: Document) -> Document | Drop[Literal["too short", "too long"]]:
        """The document itself, or why its length is out of bounds."""
        if len(document.text) < self.min_characters or len(document.text.strip()) < self.min_characters:
            return Drop("too short")
        if self.max_characters is not None and len(document.text) > self.max_characters:
            return Drop("too long")
        return document
