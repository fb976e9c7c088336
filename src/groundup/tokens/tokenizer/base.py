"""What a tokenizer is."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from groundup import __version__
from groundup.core.config_class import config
from groundup.core.manifest import FileRecord


@config
class TokenizerManifest:
    """What a folder's tokenizer was trained on; fields as of every manifest, of which most stay empty."""

    kind: Literal["tokenizer"] = "tokenizer"
    fingerprint: str
    inputs: dict[str, str]
    counts: dict[str, int] = dataclasses.field(default_factory=dict)
    files: dict[str, FileRecord] = dataclasses.field(default_factory=dict)
    about: dict[str, str] = dataclasses.field(default_factory=dict)
    format_version: Literal[1] = 1
    groundup_version: str = __version__


class Tokenizer(Protocol):
    """Text <-> ids, the same for every implementation."""

    vocab_size: int
    """Number of ids, special tokens included, without padding."""
    end_of_document_id: int
    """The id that closes a document."""

    @property
    def kind(self) -> str:
        """What sort of tokenizer it is, in words."""
        ...

    @property
    def special_tokens(self) -> Mapping[str, int]:
        """Name -> id of the tokens that stand for no text."""
        ...

    @property
    def fingerprint(self) -> str:
        """Hash of everything that decides the ids: vocabulary, merges, special tokens."""
        ...

    def encode(self, text: str) -> list[int]:
        """The ids of a text; special tokens written in it are ordinary text."""
        ...

    def encode_array(self, text: str) -> npt.NDArray[np.uint32]:
        """The ids of a text as uint32 [num_tokens]."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids; special tokens by their names, invalid UTF-8 as U+FFFD."""
        ...

    def token_bytes(self, id: int) -> bytes:  # noqa: A002
        """The bytes of text that an id stands for; none for a special token."""
        ...

    def save(self, folder: Path) -> None:
        """Writes a folder that ``load_tokenizer`` reads, and ``transformers.AutoTokenizer``.

        The latter not where no ``tokenizer.json`` says the same: some SentencePiece models.
        """
        ...
