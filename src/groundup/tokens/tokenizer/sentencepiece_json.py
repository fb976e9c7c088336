"""A SentencePiece model as a ``tokenizer.json``, where both give the same ids for every text.

A BPE model joins the two neighbours whose joined text is the piece of highest score: by ranks, so merges
do the same (``merges.py``; the scores must differ, which decides between neighbours). A unigram model
adds up scores in 32 bits where ``tokenizers`` has 64, and normalisation rules are read in slightly
different ways; so these are not converted.
"""

from typing import Any

from groundup.tokens.tokenizer.bpe_merges import merges_of
from groundup.tokens.tokenizer.sentencepiece_model import ModelType, PieceType, SentencePieceModel

SPACE = "\u2581"
"""What stands for a space in the pieces."""


def obstacle(model: SentencePieceModel) -> str:
    """Why a model has no ``tokenizer.json`` that is the same in every case; empty when it has."""
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
    """The content of the ``tokenizer.json`` of a model without ``obstacle``."""
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
    """Superfluous spaces, the prefix, U+2581 for spaces, none at the end: the order of normalizer.cc."""
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
