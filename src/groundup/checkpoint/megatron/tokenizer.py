"""The tokenizer of a Megatron-LM checkpoint: beside it, or where its args say."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from groundup.core.errors import DataError
from groundup.tokens.tokenizer.base import Tokenizer
from groundup.tokens.tokenizer.load_tokenizer import load_gpt2_files, load_tokenizer, tokenizer_folder

FOLDER = "tokenizer"
"""Where ``write_megatron`` puts it, beside the tracker file."""


def tokenizer_of(args: Mapping[str, Any], *folders: Path) -> Tokenizer:
    """The tokenizer in one of the folders, or else the one whose files the args name.

    Raises:
        DataError: There is none: another would give wrong ids without a word.
    """
    if beside := folder_of_tokenizer(*folders):
        return load_tokenizer(beside)
    vocab_file, merge_file, model = (args.get(key) for key in ("vocab_file", "merge_file", "tokenizer_model"))
    if vocab_file and merge_file and Path(vocab_file).is_file() and Path(merge_file).is_file():
        return load_gpt2_files(Path(vocab_file), Path(merge_file))
    if model and Path(model).exists():
        return load_tokenizer(Path(model))
    named = " and ".join(str(name) for name in (vocab_file, merge_file, model) if name)
    raise DataError(
        f"has no tokenizer beside it; its args name {args.get('tokenizer_type', 'none')}"
        + (f" of {named}, not on this machine" if named else ""),
        where=folders[0],
        fix="Name it: --tokenizer FOLDER (GPT-2's own: --tokenizer gpt2).",
    )


def folder_of_tokenizer(*folders: Path) -> Path | None:
    """The folder in or beside a checkpoint that has a tokenizer; None where none has."""
    candidates = (place for folder in folders for place in (folder / FOLDER, folder, folder.parent / FOLDER))
    return next((found for place in candidates if (found := tokenizer_folder(place))), None)
