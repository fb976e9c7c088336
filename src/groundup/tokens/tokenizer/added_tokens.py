"""Tokens added to GPT-2's two files, in ``added_tokens.json`` and ``tokenizer_config.json`` beside them.

``transformers`` gives them ids behind the vocabulary's, which a chat model's embedding has rows for.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from groundup.core.errors import DataError
from groundup.core.files import read_json
from groundup.tokens.tokenizer.bpe import ByteLevelBpe

_FLAGS = ("single_word", "lstrip", "rstrip", "normalized")


@dataclasses.dataclass(frozen=True, kw_only=True)
class AddedToken:
    """One token beside a vocabulary.

    Attributes:
        content: Its text.
        id: Its id.
        special: Whether it stands for no text; any other is matched in ordinary text.
        flags: How it is matched, as a ``tokenizer.json`` has it.
    """

    content: str
    id: int
    special: bool
    flags: Mapping[str, bool]


def read_added_tokens(folder: Path, settings: Mapping[str, Any]) -> list[AddedToken]:
    """The tokens that a folder adds to its vocabulary, each once.

    Args:
        folder: With ``added_tokens.json``, perhaps.
        settings: Its ``tokenizer_config.json``, which knows more of them and wins.

    Raises:
        DataError: They are no tokens with ids.
    """
    path = folder / "added_tokens.json"
    decoder: Any = settings.get("added_tokens_decoder") or {}
    named: Any = read_json(path) if path.is_file() else {}
    where = path
    try:
        found = {token: _plain(token, number) for token, number in named.items()}
        where = folder / "tokenizer_config.json"
        found |= {entry["content"]: _described(number, entry) for number, entry in decoder.items()}
    except (AttributeError, KeyError, TypeError, ValueError):
        raise DataError("its added tokens are not tokens with ids", where=where) from None
    return list(found.values())


def with_added(bpe: ByteLevelBpe, added: list[AddedToken], where: Path) -> ByteLevelBpe:
    """The tokenizer with the tokens that stand for no text among its special ones.

    Raises:
        DataError: A token's id is another's, or the token has another id in the vocabulary.
    """
    tokens = {**bpe.vocab, **bpe.specials}
    owners = {number: token for token, number in tokens.items()}
    for token in added:
        owner, known = owners.get(token.id, token.content), tokens.get(token.content, token.id)
        if owner != token.content or known != token.id:
            why = (
                f"which is that of {owner!r}"
                if owner != token.content
                else f"in the vocabulary it is {known}"
            )
            raise DataError(
                f"the added token {token.content!r} has the id {token.id}, {why}",
                where=where,
                fix="Put the files of one tokenizer into the folder.",
            )
    new = {token.content: token.id for token in added if token.special and token.content not in bpe.vocab}
    return dataclasses.replace(bpe, specials={**bpe.specials, **new})


def document_with(bpe: ByteLevelBpe, added: list[AddedToken]) -> dict[str, Any] | None:
    """The ``tokenizer.json`` where some are matched in ordinary text; None where none is."""
    matched = [token for token in added if not token.special and token.content not in bpe.vocab]
    if not matched:
        return None
    document = bpe.document()
    document["added_tokens"] += [
        {"id": token.id, "content": token.content, **token.flags, "special": False} for token in matched
    ]
    document["added_tokens"].sort(key=lambda token: token["id"])
    document["model"]["vocab"] |= {token.content: token.id for token in matched}  # else they get other ids
    return document


def _plain(token: str, number: Any) -> AddedToken:
    return AddedToken(content=token, id=_id(number), special=True, flags=dict.fromkeys(_FLAGS, False))


def _described(number: str, entry: Mapping[str, Any]) -> AddedToken:
    flags = {flag: bool(entry.get(flag, False)) for flag in _FLAGS}
    return AddedToken(
        content=str(entry["content"]),
        id=_id(int(number)),
        special=bool(entry.get("special", True)),
        flags=flags,
    )


def _id(number: Any) -> int:
    if type(number) is not int or number < 0:
        raise ValueError(number)
    return number
