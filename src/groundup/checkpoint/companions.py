"""Companions: the small files beside a model's weights that say how it is prompted.

They are the tokenizer's own files, the chat template, the names of special tokens and the generation
settings. Every format keeps them in the tokenizer's folder, so ``Companions`` carries them through all
conversions and through training, byte for byte. Whether they agree with the tokenizer and the vocabulary is
checked when a model is opened.
"""

import dataclasses
import functools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from groundup.core.errors import CheckpointError, DataError
from groundup.core.files import read_json, write_json
from groundup.core.log import logger
from groundup.tokens.tokenizer.base import Tokenizer

GENERATION = "generation_config.json"
CHAT_TEMPLATES = "additional_chat_templates"
"""A folder within the tokenizer's, as transformers writes it."""
_DOCUMENT = "tokenizer.json"
_SETTINGS = "tokenizer_config.json"
_SPECIALS = "special_tokens_map.json"
_ADDED = "added_tokens.json"
_OF_TOKENIZER = (_DOCUMENT, "tokenizer.model", _SETTINGS, _SPECIALS, _ADDED)
_TEMPLATES = ("chat_template.jinja", "chat_template.json")
_OBJECTS = (_SETTINGS, _SPECIALS, _ADDED, GENERATION)
_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Companions:
    """Files of a model beside its weights and config: name within the tokenizer's folder -> content."""

    files: Mapping[str, bytes] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def _generation(self) -> dict[str, Any]:
        settings: dict[str, Any] = json.loads(self.files.get(GENERATION, b"{}"))
        return settings

    @property
    def end_ids(self) -> tuple[int, ...]:
        """Returns the ids that end a text, as the generation settings list them."""
        return _as_ids(self._generation.get("eos_token_id"))

    @property
    def chat_template(self) -> str | None:
        """Returns the text of the chat template; None where there is none."""
        source: Any = json.loads(self.files.get(_SETTINGS, b"{}")).get("chat_template")
        if "chat_template.json" in self.files:
            source = json.loads(self.files["chat_template.json"]).get("chat_template", source)
        if "chat_template.jinja" in self.files:
            source = self.files["chat_template.jinja"].decode()
        if isinstance(source, list):  # several by name
            source = {one.get("name"): one.get("template") for one in source}.get("default")
        return source if isinstance(source, str) else None

    def token_ids(self, vocab_size: int) -> dict[str, Any]:
        """Returns the ids of special tokens in the generation settings, for a ``config.json``.

        Padding outside the vocabulary is left out: ``transformers`` takes it for a row of the embedding.
        """
        found = {key: self._generation[key] for key in _IDS if self._generation.get(key) is not None}
        if not 0 <= found.get("pad_token_id", 0) < vocab_size:
            del found["pad_token_id"]
        return found

    def with_generation(self, settings: Mapping[str, Any]) -> "Companions":
        """Returns the same with generation settings, where it has none."""
        given = {key: value for key, value in settings.items() if value is not None}
        if GENERATION in self.files or not given:
            return self
        content = (json.dumps(given, indent=2) + "\n").encode()
        return Companions(files={**self.files, GENERATION: content})

    def with_tokenizer_of(self, other: "Companions") -> "Companions":
        """Returns the companions of the model with another tokenizer, whose companions ``other`` are."""
        kept = {name: content for name, content in self.files.items() if name == GENERATION}
        if not any(_is_template(name) for name in other.files):
            kept |= {name: content for name, content in self.files.items() if _is_template(name)}
        return Companions(files={**other.files, **kept})

    def lost_in(self, other: "Companions") -> list[str]:
        """Lists the files that a copy of them lacks or has with another content."""
        rewritten = {_SETTINGS} if _DOCUMENT not in self.files else set()  # see ``write``
        names = self.files.keys() - rewritten
        return sorted(name for name in names if other.files.get(name) != self.files[name])

    def write(self, folder: Path) -> None:
        """Writes the files beside a tokenizer that is saved already; those of the same name are replaced."""
        settings = folder / _SETTINGS
        saved = read_json(settings) if settings.is_file() else {}
        for name, content in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        if _SETTINGS in self.files and _DOCUMENT not in self.files and "tokenizer_class" in saved:
            # Theirs may name a class that builds the tokenizer anew, by rules of its own.
            write_json(settings, {**read_json(settings), "tokenizer_class": saved["tokenizer_class"]})


def read_companions(folder: Path) -> Companions:
    """Reads the companions that lie in a folder.

    Raises:
        CheckpointError: One is malformed.
    """
    names = [name for name in (*_OF_TOKENIZER, *_TEMPLATES, GENERATION) if (folder / name).is_file()]
    more = sorted((folder / CHAT_TEMPLATES).glob("*.jinja"))
    files = {name: (folder / name).read_bytes() for name in names}
    files |= {f"{CHAT_TEMPLATES}/{path.name}": path.read_bytes() for path in more if path.is_file()}
    for name, content in files.items():
        if name in _OBJECTS:
            _object(folder / name)
        if name.endswith(".jinja"):
            try:
                content.decode()
            except UnicodeDecodeError as error:
                raise CheckpointError(f"is not UTF-8 text ({error})", where=folder / name) from None
    for key, value in (_object(folder / GENERATION) if GENERATION in files else {}).items():
        if key in _IDS:
            require_ids(key, value, folder / GENERATION)
    return Companions(files=files)


def require_agreement(companions: Companions, tokenizer: Tokenizer, vocab_size: int, where: Path) -> None:
    """Checks the companions in the folder ``where`` against the tokenizer and the vocabulary of their model.

    Raises:
        CheckpointError: A token has another id than the tokenizer gives it.
    """
    outside = [number for number in companions.end_ids if not 0 <= number < vocab_size]
    if outside:
        logger.warning(
            "%s: eos_token_id %s is outside the vocabulary of %d ids, so no text ends by it",
            where,
            ", ".join(map(str, outside)),
            vocab_size,
        )
    for name in (_SETTINGS, _SPECIALS, _ADDED):
        content = json.loads(companions.files.get(name, b"{}"))
        unknown = []
        for token, number in _numbered(name, content, where / name):
            agrees = _agrees(tokenizer, token, number)
            if agrees is False:
                raise CheckpointError(
                    f"gives {token!r} the id {number}, which the tokenizer does not",
                    where=where / name,
                    fix="Put the files of one tokenizer into the folder.",
                )
            unknown += [token] if agrees is None else []
        unknown += [token for token in _named(content) if not _knows(tokenizer, token)]
        if unknown:
            logger.warning(
                "%s names special tokens that the tokenizer does not have: %s; transformers adds them behind"
                " its %d ids, groundup does not",
                where / name,
                ", ".join(map(repr, dict.fromkeys(unknown))),
                tokenizer.vocab_size,
            )


def require_ids(key: str, value: Any, where: Path) -> None:
    """Requires an id, null or, for the end of a text, a list of ids.

    Raises:
        CheckpointError: Names the file and the key.
    """
    numbers = value if isinstance(value, list) and key == "eos_token_id" else [value]
    if value is not None and not all(type(number) is int for number in numbers):
        kind = "an id, a list of ids or null" if key == "eos_token_id" else "an id or null"
        raise CheckpointError(f"{key} = {value!r} must be {kind}", where=where, fix="Correct the file.")


def is_companion(name: str) -> bool:
    """Tells whether a file of a tokenizer's folder is a companion."""
    return name in (*_OF_TOKENIZER, GENERATION) or _is_template(name)


def _as_ids(value: Any) -> tuple[int, ...]:
    return () if value is None else tuple(value) if isinstance(value, list) else (value,)


def _is_template(name: str) -> bool:
    return name in _TEMPLATES or name.startswith(f"{CHAT_TEMPLATES}/")


def _object(path: Path) -> dict[str, Any]:
    try:
        content = read_json(path)
    except DataError as error:
        raise CheckpointError(error.what, where=error.where, fix="Correct or delete the file.") from None
    if not isinstance(content, dict):
        raise CheckpointError("is not a JSON object", where=path, fix="Correct or delete the file.")
    return content


def _numbered(name: str, content: Mapping[str, Any], where: Path) -> Iterator[tuple[str, int]]:
    """Yields each token that a file gives an id, and that id."""
    decoder = content.get("added_tokens_decoder") or {} if name == _SETTINGS else {}
    try:
        if name == _ADDED:
            yield from ((token, int(number)) for token, number in content.items())
        yield from ((entry["content"], int(number)) for number, entry in decoder.items())
    except (AttributeError, KeyError, TypeError, ValueError):
        raise CheckpointError("its added tokens are not tokens with ids", where=where) from None


def _named(content: Mapping[str, Any]) -> Iterator[str]:
    """Yields each special token that a file names by its role."""
    for key, value in content.items():
        several = key in ("additional_special_tokens", "extra_special_tokens")
        if not several and not key.endswith("_token"):
            continue
        listed = list(value.values()) if isinstance(value, dict) and several else value
        for token in listed if isinstance(listed, list) else [listed]:
            text = token.get("content") if isinstance(token, dict) else token
            if isinstance(text, str):
                yield text


def _agrees(tokenizer: Tokenizer, token: str, number: int) -> bool | None:
    """Tells whether the tokenizer gives a token this id; None where it has neither."""
    known = tokenizer.special_tokens.get(token)
    if known is not None:
        return known == number
    if not 0 <= number < tokenizer.vocab_size:
        return None
    return tokenizer.decode([number]).strip() == token.replace("\u2581", " ").strip()


def _knows(tokenizer: Tokenizer, token: str) -> bool:
    return token in tokenizer.special_tokens or len(tokenizer.encode(token)) == 1
