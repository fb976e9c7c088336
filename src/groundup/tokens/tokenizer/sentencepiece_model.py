"""Reads a SentencePiece ``tokenizer.model``: its pieces, and how it normalizes text.

The file is a protocol buffer (sentencepiece_model.proto). The few fields that matter are read here, so
that nobody needs protobuf's library, whose version must fit the generated code.
"""

import dataclasses
import enum
import struct
from pathlib import Path

from groundup.core.errors import DataError


class PieceType(enum.IntEnum):
    """ModelProto.SentencePiece.Type."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


class ModelType(enum.IntEnum):
    """TrainerSpec.ModelType."""

    UNIGRAM = 1
    BPE = 2
    WORD = 3
    CHAR = 4


@dataclasses.dataclass(frozen=True, slots=True)
class Piece:
    """An entry of the vocabulary; its id is its place."""

    text: str
    score: float
    type: PieceType


@dataclasses.dataclass(frozen=True, kw_only=True)
class SentencePieceModel:
    """The content of a model file.

    Attributes:
        content: The file itself.
        pieces: The vocabulary.
        type: How text is cut into pieces.
        byte_fallback: Whether characters that are no pieces become their bytes.
        normalizer: Name of the rule by which text is normalised.
        changes_characters: Whether that rule changes any.
        add_dummy_prefix: Whether a space is put before each text.
        remove_extra_whitespaces: Whether spaces at both ends go, and repeated ones become one.
        escape_whitespaces: Whether a space is written as U+2581.
        whitespace_as_suffix: Whether the space belongs to the word before it.
    """

    content: bytes
    pieces: tuple[Piece, ...]
    type: ModelType
    byte_fallback: bool
    normalizer: str
    changes_characters: bool
    add_dummy_prefix: bool
    remove_extra_whitespaces: bool
    escape_whitespaces: bool
    whitespace_as_suffix: bool

    @classmethod
    def read(cls, path: Path) -> "SentencePieceModel":
        """Reads a model file.

        Raises:
            DataError: The file is not one.
        """
        content = path.read_bytes()
        try:
            return cls._parse(content)
        except (ValueError, LookupError, struct.error) as error:
            raise DataError(
                f"is not a SentencePiece model ({error})",
                where=path,
                fix="Give the tokenizer.model that came with the weights; it may be a Git LFS pointer.",
            ) from None

    @classmethod
    def _parse(cls, content: bytes) -> "SentencePieceModel":
        model = _fields(content)
        if 1 not in model or 2 not in model:
            raise ValueError("no pieces or no trainer's settings in it")
        trainer = _fields(_message(model[2][-1]))
        normalizer = _fields(_message(model[3][-1])) if 3 in model else {}
        return cls(
            content=content,
            pieces=tuple(_piece(_message(piece)) for piece in model[1]),
            type=ModelType(_number(trainer, 3, ModelType.UNIGRAM)),
            byte_fallback=bool(_number(trainer, 35, 0)),
            normalizer=_message(normalizer[1][-1]).decode() if 1 in normalizer else "",
            changes_characters=bool(normalizer[2][-1]) if 2 in normalizer else False,
            add_dummy_prefix=bool(_number(normalizer, 3, 1)),
            remove_extra_whitespaces=bool(_number(normalizer, 4, 1)),
            escape_whitespaces=bool(_number(normalizer, 5, 1)),
            whitespace_as_suffix=bool(_number(trainer, 24, 0)),
        )


def _piece(message: bytes) -> Piece:
    fields = _fields(message)
    score = struct.unpack("<f", _message(fields[2][-1]))[0] if 2 in fields else 0.0
    return Piece(
        text=_message(fields[1][-1]).decode(),
        score=score,
        type=PieceType(_number(fields, 3, PieceType.NORMAL)),
    )


def _message(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise ValueError("a number where text belongs")
    return value


def _number(fields: dict[int, list[int | bytes]], number: int, default: int) -> int:
    value = fields[number][-1] if number in fields else default
    if isinstance(value, bytes):
        raise ValueError("text where a number belongs")
    return value


def _fields(message: bytes) -> dict[int, list[int | bytes]]:
    """Parses a protocol buffer message: field number -> values, those of 4 and 8 bytes as bytes.

    https://protobuf.dev/programming-guides/encoding
    """
    fields: dict[int, list[int | bytes]] = {}
    place = 0
    while place < len(message):
        tag, place = _varint(message, place)
        value: int | bytes
        match tag & 7:
            case 0:
                value, place = _varint(message, place)
            case 1 | 2 | 5 as wire:
                size = {1: 8, 5: 4}.get(wire)
                if size is None:
                    size, place = _varint(message, place)
                value = message[place : place + size]
                if len(value) != size:
                    raise ValueError("it ends early")
                place += size
            case wire:
                raise ValueError(f"unknown wire type {wire} at byte {place}")
        fields.setdefault(tag >> 3, []).append(value)
    return fields


def _varint(message: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[place]
        place += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, place
        shift += 7
