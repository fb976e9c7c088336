"""Drops texts that are too short or too long, in characters, words or tokens."""

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from groundup.core.config import config
from groundup.core.config_class import NotNegative, Positive
from groundup.core.errors import ConfigError
from groundup.corpus.document import Document
from groundup.corpus.filter import Drop
from groundup.corpus.split_words import split_words

if TYPE_CHECKING:
    import tokenizers

_CHARACTERS_PER_TOKEN = 16
"""A prefix of so many times the smallest length shows that a long text is long enough."""


@config
class Length:
    """Keeps texts of a length within bounds; None is no bound.

    Attributes:
        min_characters: The fewest characters, without white space at the ends.
        max_characters: The most characters.
        min_words: The fewest words between white space.
        max_words: The most words.
        min_tokens: The fewest tokens; OpenWebText kept texts of 128 tokens of GPT-2.
        max_tokens: The most tokens.
        tokenizer: Folder with ``tokenizer.json``, or with GPT-2's ``vocab.json`` and ``merges.txt``.
    """

    kind: Literal["length"] = "length"
    min_characters: NotNegative = 1
    max_characters: Positive | None = None
    min_words: NotNegative = 0
    max_words: Positive | None = None
    min_tokens: NotNegative = 0
    max_tokens: Positive | None = None
    tokenizer: Path | None = None

    def __post_init__(self) -> None:
        for unit in ("characters", "words", "tokens"):
            least, most = getattr(self, f"min_{unit}"), getattr(self, f"max_{unit}")
            if most is not None and most < least:
                raise ValueError(f"max_{unit} {most} is below min_{unit} {least}")
        if self._counts_tokens and self.tokenizer is None:
            raise ValueError(
                "min_tokens and max_tokens count by a tokenizer. Name the folder of a tokenizer:"
                " length.tokenizer=FOLDER, or in a recipe tokenizer: FOLDER."
            )

    @property
    def _counts_tokens(self) -> bool:
        return self.min_tokens > 0 or self.max_tokens is not None

    def apply(self, document: Document) -> Document | Drop[Literal["too short", "too long"]]:
        """Returns the document itself, or why its length is out of bounds."""
        text = document.text
        if len(text) < self.min_characters or len(text.strip()) < self.min_characters:
            return Drop("too short")
        if self.max_characters is not None and len(text) > self.max_characters:
            return Drop("too long")
        if self.min_words or self.max_words is not None:
            words = len(split_words(text))
            if words < self.min_words:
                return Drop("too short")
            if self.max_words is not None and words > self.max_words:
                return Drop("too long")
        return self._by_tokens(document) if self._counts_tokens else document

    def _by_tokens(self, document: Document) -> Document | Drop[Literal["too short", "too long"]]:
        assert self.tokenizer is not None
        tokenizer, text = _load(self.tokenizer), document.text
        if self.max_tokens is None:
            begin = text[: _CHARACTERS_PER_TOKEN * self.min_tokens]
            # A word that the cut tears may have some tokens more than it has within the whole text.
            if len(begin) < len(text) and _count(tokenizer, begin) > 2 * self.min_tokens:
                return document
        count = _count(tokenizer, text)
        if count < self.min_tokens:
            return Drop("too short")
        return Drop("too long") if self.max_tokens is not None and count > self.max_tokens else document


def _count(tokenizer: "tokenizers.Tokenizer", text: str) -> int:
    return len(tokenizer.encode(text, add_special_tokens=False).ids)


@functools.cache
def _load(folder: Path) -> "tokenizers.Tokenizer":
    """Loads a tokenizer once in each process, for counting alone."""
    import tokenizers  # here: processes are not forked from one that has loaded it

    whole, vocab, merges = (folder / name for name in ("tokenizer.json", "vocab.json", "merges.txt"))
    try:
        if whole.is_file():
            return tokenizers.Tokenizer.from_file(str(whole))
        tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE.from_file(str(vocab), str(merges)))
    except Exception as error:  # the library raises no other class
        raise ConfigError(
            f"holds no tokenizer ({error})",
            where=folder,
            fix="Name a folder with tokenizer.json, or with vocab.json and merges.txt.",
        ) from None
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    return tokenizer
