"""SentencePiece's ``tokenizer.model``, as Llama 1 and 2 have it, through the sentencepiece library."""

import functools
import hashlib
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from groundup.core.errors import DataError, MachineError
from groundup.core.files import atomic_write
from groundup.core.log import logger
from groundup.core.manifest import fingerprint
from groundup.core.vocabulary import not_in_vocabulary
from groundup.tokens.tokenizer.bpe import whole_text, write_tokenizer
from groundup.tokens.tokenizer.bpe_merges import merges_of
from groundup.tokens.tokenizer.huggingface import document_fingerprint
from groundup.tokens.tokenizer.sentencepiece_model import ModelType, Piece, PieceType, SentencePieceModel


class SentencePieceTokenizer:
    """A ``Tokenizer`` on ``sentencepiece``: 1.5 to 9 times as fast as its model in ``tokenizers``.

    As Megatron-LM's GPTSentencePieceTokenizer does, it puts no begin token before a text, and the
    end-of-document id is the model's end-of-sentence id (``</s>``). Its SentencePieceTokenizer, for T5,
    adds ids of its own behind the model's: that is not this one. Control pieces written in a text are
    ordinary text.

    ``decode(encode(text))`` is the text as the model normalises it: text itself with Llama's models,
    which change nothing; others fold spaces or compatibility characters.

    Args:
        path: The model file.

    Raises:
        DataError: It is not a model, or has no end-of-sentence piece.
        MachineError: The sentencepiece library is not installed.
    """

    def __init__(self, path: Path) -> None:
        try:
            import sentencepiece
        except ModuleNotFoundError:
            raise MachineError(
                "is a SentencePiece model, and the sentencepiece library is not installed",
                where=path,
                fix="pip install 'groundup[sentencepiece]'",
            ) from None
        self.model = SentencePieceModel.read(path)
        try:
            self._processor = sentencepiece.SentencePieceProcessor(model_proto=self.model.content)
        except (RuntimeError, ValueError) as error:
            raise DataError(f"the sentencepiece library cannot read it ({error})", where=path) from None
        end = self._processor.eos_id()
        if end < 0:
            raise DataError(
                "has no end-of-sentence piece, which would close the documents",
                where=path,
                fix="Train the model with an eos_id.",
            )
        self.end_of_document_id: int = end
        self.vocab_size = len(self.model.pieces)

    @property
    def kind(self) -> str:
        """What sort of tokenizer it is, in words."""
        names = {ModelType.BPE: "BPE", ModelType.UNIGRAM: "unigram"}
        fallback = " with byte fallback" if self.model.byte_fallback else ""
        return f"SentencePiece {names.get(self.model.type, self.model.type.name.lower())}{fallback}"

    @functools.cached_property
    def special_tokens(self) -> dict[str, int]:
        """Name -> id of the pieces that stand for no text."""
        kinds = (PieceType.CONTROL, PieceType.UNKNOWN)
        return {piece.text: number for number, piece in enumerate(self.model.pieces) if piece.type in kinds}

    @functools.cached_property
    def _document(self) -> dict[str, Any] | None:
        return None if obstacle(self.model) else tokenizer_json(self.model)

    @functools.cached_property
    def fingerprint(self) -> str:
        """Hash of the model: that of its ``tokenizer.json`` where ``save`` writes one, else of the file."""
        if self._document is not None:
            return document_fingerprint(self._document)
        return fingerprint(["sentencepiece", hashlib.sha256(self.model.content).hexdigest()])

    def encode(self, text: str) -> list[int]:
        """The ids of a text; control pieces written in it are ordinary text."""
        ids: list[int] = self._processor.encode(whole_text(text))
        return ids

    def encode_array(self, text: str) -> npt.NDArray[np.uint32]:
        """The ids of a text as uint32 [num_tokens]."""
        ids: npt.NDArray[np.int32] = self._processor.encode(whole_text(text), return_type="numpy")
        return ids.view(np.uint32)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids; control pieces by their names, invalid UTF-8 as U+FFFD.

        What stands between control pieces is decoded by itself, as it was encoded: without the space
        that the model puts before each text.
        """
        pieces = self.model.pieces
        parts = []
        for is_control, run in itertools.groupby(ids, self._is_control):
            numbers = list(run)
            if is_control:
                parts += [pieces[number].text for number in numbers]
            else:
                parts.append(self._processor.decode(numbers))
        return "".join(parts)

    def _is_control(self, number: int) -> bool:
        return self._piece(number).type == PieceType.CONTROL

    def _piece(self, number: int) -> Piece:
        if not 0 <= number < self.vocab_size:
            raise not_in_vocabulary(number, self.vocab_size)
        return self.model.pieces[number]

    def token_bytes(self, id: int) -> bytes:  # noqa: A002  # the protocol's name
        """The bytes of text that an id stands for; none for control pieces and for the unknown one."""
        piece = self._piece(id)
        if piece.type in (PieceType.CONTROL, PieceType.UNKNOWN):
            return b""
        if piece.type == PieceType.BYTE:  # <0xE4>
            return bytes([int(piece.text[3:5], 16)])
        return bytes(piece.text.replace(SPACE, " ").encode())

    def save(self, folder: Path) -> None:
        """Writes ``tokenizer.model``, and for transformers a ``tokenizer.json`` where that is the same.

        Where it is not, the folder is for SentencePiece's readers only, and a log line says why.
        """
        with atomic_write(folder / "tokenizer.model") as file:
            file.write(self.model.content)
        if self._document is None:
            (folder / "tokenizer.json").unlink(missing_ok=True)  # another tokenizer's, which would win
            logger.warning(
                "%s: tokenizer.model alone, since no tokenizer.json gives the same ids for every text (%s);"
                " transformers converts it by rules of its own: other ids are likely",
                folder,
                obstacle(self.model),
            )
            return
        settings: dict[str, Any] = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": False,
            "model_max_length": 10**30,  # what transformers writes for "unlimited"
        }
        for name in ("bos", "eos", "unk", "pad"):
            number = getattr(self._processor, f"{name}_id")()
            if number >= 0:
                settings[f"{name}_token"] = self.model.pieces[number].text
        end = self.model.pieces[self.end_of_document_id].text
        write_tokenizer(folder, self._document, settings, end)


SPACE = "\u2581"
"""What stands for a space in the pieces."""


def obstacle(model: SentencePieceModel) -> str:
    """Returns why a model has no equivalent ``tokenizer.json``; empty when it has one."""
    if model.type != ModelType.BPE:
        return f"a {model.type.name.lower()} model"
    if model.changes_characters:
        return f"its normalisation, {model.normalizer}, changes characters"
    if not model.escape_whitespaces or model.whitespace_as_suffix:
        return "it treats spaces in an unusual way"
    if any(piece.type in (PieceType.USER_DEFINED, PieceType.UNUSED) for piece in model.pieces):
        return "it has user-defined or unused pieces"
    joined = [piece for piece in model.pieces if piece.type == PieceType.NORMAL and len(piece.text) > 1]
    letters = {piece.text for piece in model.pieces if piece.type == PieceType.NORMAL}
    if not letters.issuperset(character for piece in joined for character in piece.text):
        return "a piece has a character that is no piece"
    if len({piece.score for piece in joined}) < len(joined):
        return "pieces with equal scores"
    return ""


def tokenizer_json(model: SentencePieceModel) -> dict[str, Any]:
    """Returns the content of the ``tokenizer.json`` of a model without ``obstacle``."""
    normal = [piece for piece in model.pieces if piece.type == PieceType.NORMAL]
    by_score = sorted(normal, key=lambda piece: -piece.score)
    merges = merges_of({piece.text: rank for rank, piece in enumerate(by_score)})
    unknown = next(piece.text for piece in model.pieces if piece.type == PieceType.UNKNOWN)
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": number, "content": piece.text, **flags}
            for number, piece in enumerate(model.pieces)
            if piece.type in (PieceType.UNKNOWN, PieceType.CONTROL)
        ],
        "normalizer": {"type": "Sequence", "normalizers": _normalizers(model)},
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": _decoders(model)},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": unknown,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": model.byte_fallback,
            "ignore_merges": False,
            "vocab": {piece.text: number for number, piece in enumerate(model.pieces)},
            "merges": [list(merge) for merge in merges],
        },
    }


def _normalizers(model: SentencePieceModel) -> list[dict[str, Any]]:
    """Returns the normalizers in the order of normalizer.cc: extra spaces, prefix, U+2581 for spaces, end."""
    steps = [{"type": "Replace", "pattern": {"String": " "}, "content": SPACE}]
    if model.add_dummy_prefix:
        steps.insert(0, {"type": "Prepend", "prepend": SPACE})
    if model.remove_extra_whitespaces:
        spaces = {"type": "Replace", "pattern": {"Regex": r"\A +| +\z|(?<= ) +"}, "content": ""}
        written_out = {"type": "Replace", "pattern": {"Regex": SPACE + r"+\z"}, "content": ""}
        steps = [spaces, *steps, written_out]
    return steps


def _decoders(model: SentencePieceModel) -> list[dict[str, Any]]:
    steps: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if model.add_dummy_prefix or model.remove_extra_whitespaces:
        steps.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return steps
