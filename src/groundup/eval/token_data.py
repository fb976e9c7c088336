"""The tokens that a model is measured on: a split of token files, or texts tokenized on the fly."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from groundup.checkpoint.native.contents import read_checkpoint_manifest
from groundup.checkpoint.native.folder import is_checkpoint
from groundup.core.errors import ConfigError, DataError
from groundup.core.vocabulary import require_same_tokenizer
from groundup.corpus.bad_records import BadRecordPolicy, BadRecords
from groundup.corpus.read_documents import read_documents
from groundup.tokens.dataset.dataset_manifest import recorded_tokenizer
from groundup.tokens.dataset.open import names_token_files, open_source, token_files
from groundup.tokens.dataset.token_source import Tokens
from groundup.tokens.sampling.data_config import DataConfig
from groundup.tokens.sampling.splits import open_splits
from groundup.tokens.tokenizer.base import Tokenizer

SplitName = Literal["train", "validation", "test", "all"]


def open_tokens(
    data: Sequence[Path],
    tokenizer: Tokenizer,
    *,
    split: str = DataConfig.split,
    split_name: SplitName = "all",
    text_key: str = "text",
    bad_records: BadRecordPolicy | None = None,
) -> Tokens:
    """Opens all tokens of the data, one document behind the other.

    Args:
        data: One path of token files, as a run takes it, or texts: files, folders and globs.
        tokenizer: The model's.
        split: Shares of train, validation and test over the documents of token files, unless their names
            tell their split.
        split_name: Which of them; texts have no splits.
        text_key: The JSON field that holds the text.
        bad_records: What to do with records that cannot be read; by default they are left out and counted.

    Raises:
        ConfigError: A split is asked of texts.
        DataError: Nothing is there, it is malformed or empty, or was built with another tokenizer.
    """
    datasets = [path for path in data if names_token_files(path)]
    if datasets and len(data) > 1:
        raise DataError(
            "are token files, of which one path is taken, and nothing besides",
            where=", ".join(map(str, datasets)),
            fix="Name those of one folder by a quoted glob, e.g. 'folder/*.npy'.",
        )
    if datasets:
        return _open_dataset(datasets[0], tokenizer, split, split_name)
    if split_name != "all":
        raise ConfigError(
            f"texts have no {split_name} split",
            where="perplexity.split_name",
            fix="Leave it out, or name token files.",
        )
    return _tokenize(data, tokenizer, text_key, bad_records or BadRecordPolicy())


def split_of_run(source: Path) -> str:
    """Returns the split that a checkpoint's run was trained with; the default one for other models."""
    if not is_checkpoint(source):
        return DataConfig.split
    data = read_checkpoint_manifest(source).about.config.get("data", {})  # converted models have none
    return str(data.get("split", DataConfig.split))


def _open_dataset(path: Path, tokenizer: Tokenizer, split: str, split_name: SplitName) -> Tokens:
    for file in token_files(path):
        if recorded := recorded_tokenizer(file):
            require_same_tokenizer(
                recorded,
                tokenizer.fingerprint,
                where=file,
                what="was built with",
                other="the model has",
                fix="Build it again with the model's tokenizer, or name the texts themselves.",
            )
    tokens = open_source(path).tokens
    if split_name != "all":
        config = DataConfig(path=path, split=split, opening_id=tokenizer.end_of_document_id)
        source_splits = open_splits(config, seed=0).source_splits[split_name]
        if not source_splits:
            raise DataError(
                f"none of its files is named as one of {split_name}",
                where=path,
                fix="Choose another split, or name the files themselves by a quoted glob.",
            )
        tokens = source_splits[0].tokens
    if len(tokens) < 2:
        part = "it" if split_name == "all" else f"its {split_name} split ({split})"
        raise DataError(
            f"{part} has {len(tokens)} tokens; predicting needs at least two",
            where=path,
            fix="Choose another split, or add text.",
        )
    return tokens


def _tokenize(
    data: Sequence[Path], tokenizer: Tokenizer, text_key: str, policy: BadRecordPolicy
) -> npt.NDArray[Any]:
    """Tokenizes documents into one stream, each closed by the end-of-document id."""
    end = np.array([tokenizer.end_of_document_id], dtype=np.uint32)
    pieces: list[npt.NDArray[np.uint32]] = []
    with BadRecords(policy, key_setting="perplexity.text_key") as bad_records:
        for document in read_documents(data, text_key=text_key, bad_records=bad_records):
            ids = tokenizer.encode_array(document.text)
            if ids.size:
                pieces += [ids, end]
    if not pieces:
        raise DataError(
            "there is no text in it", where=", ".join(map(str, data)), fix="Name a file or folder with text."
        )
    return np.concatenate(pieces)
