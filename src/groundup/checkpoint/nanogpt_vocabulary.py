"""Which tokenizer a nanoGPT run had: its ``meta.pkl``, or GPT-2's, as its sample.py takes it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from groundup.checkpoint.safe_pickle.unpickle import load_plain_pickle
from groundup.core.errors import CheckpointError, DataError
from groundup.tokens.tokenizer.base import Tokenizer
from groundup.tokens.tokenizer.load_tokenizer import load_tokenizer
from groundup.tokens.tokenizer.word_list import WordListTokenizer

META = "meta.pkl"
_GPT2_SIZES = (50257, 50304)  # as released, and rounded up by train.py


def read_meta(path: Path) -> WordListTokenizer:
    """The tokenizer of a ``meta.pkl``, which is a pickle: nothing in it is run.

    Raises:
        CheckpointError: It is damaged, wants to run something, or is no vocabulary of characters.
    """
    meta = load_plain_pickle(path)
    characters = meta.get("itos") if isinstance(meta, dict) else None
    if not isinstance(characters, dict) or not characters:
        raise CheckpointError(
            "holds no itos, the characters by their ids", where=path, fix="Prepare it again."
        )
    given = [characters.get(number) for number in range(len(characters))]
    words = [word for word in given if isinstance(word, str) and len(word) == 1]
    if len(set(words)) < len(given):
        raise CheckpointError(
            "its itos is not one character for each id from 0 on",
            where=path,
            fix="Other vocabularies are read as files of a tokenizer: --tokenizer.",
        )
    return WordListTokenizer("characters", words)


def tokenizer_of_run(content: Mapping[str, Any], path: Path, data: Path | None = None) -> Tokenizer:
    """The tokenizer of a checkpoint's model: that of its data set's ``meta.pkl``, else GPT-2's.

    Args:
        content: Of the checkpoint.
        path: The file or its folder.
        data: The folder of the data set; by default ``data/DATASET`` beside the checkpoint's folder or here.

    Raises:
        CheckpointError: The ``meta.pkl`` is damaged.
        DataError: There is none, and the vocabulary is not of GPT-2's size.
        MachineError: GPT-2's files are not here and cannot be downloaded.
    """
    settings = content.get("config")
    dataset = settings.get("dataset") if isinstance(settings, dict) else None
    size = content["model_args"].get("vocab_size")
    folder = (path if path.is_dir() else path.parent).absolute().parent
    places = [data] if data else []
    if isinstance(dataset, str) and not data:
        places = [base / "data" / dataset for base in (folder, Path())]
    for place in places:
        if (place / META).is_file():
            return read_meta(place / META)
    if size in _GPT2_SIZES:
        return load_tokenizer("gpt2")
    looked = f" in {places[0]}" if places else ""
    raise DataError(
        f"has a vocabulary of {size} ids, which is not GPT-2's, and there is no {META}{looked}",
        where=path,
        fix="Name the folder of its data (--data) or its tokenizer (--tokenizer).",
    )
