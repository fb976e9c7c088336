"""The tokens that a model is measured on: a split of a tokenized dataset, or texts tokenized on the fly."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from groundup.core.errors import ConfigError, DataError
from groundup.core.manifest import Manifest
from groundup.corpus.bad_records import BadRecordPolicy, BadRecords
from groundup.corpus.read import read_documents
from groundup.tokens.files.indexed import IndexedDataset, bin_path, idx_path, strip_ending
from groundup.tokens.files.manifests import manifest_path
from groundup.tokens.samples.plan import split_ranges
from groundup.tokens.tokenizer import Tokenizer

SplitName = Literal["train", "validation", "test", "all"]


def open_tokens(
    data: Sequence[Path],
    tokenizer: Tokenizer,
    *,
    split: str = "969,30,1",
    split_name: SplitName = "all",
    text_key: str = "text",
    bad_records: BadRecordPolicy | None = None,
) -> npt.NDArray[Any]:
    """All tokens of the data, one document behind the other.

    Args:
        data: One prefix of ``.bin`` and ``.idx`` files, or texts: files, folders and globs.
        tokenizer: The model's.
        split: Shares of train, validation and test over the documents of a prefix.
        split_name: Which of them; texts have no splits.
        text_key: The JSON field that holds the text.
        bad_records: What to do with records that cannot be read; by default they are left out and counted.

    Raises:
        ConfigError: A split is asked of texts.
        DataError: Nothing is there, it is malformed or empty, or was built with another tokenizer.
    """
    if len(data) == 1 and _is_dataset(data[0]):
        return _open_dataset(data[0], tokenizer, split, split_name)
    if split_name != "all":
        raise ConfigError(
            f"texts have no {split_name} split",
            where="--split-name",
            fix="Leave it out, or name a prefix of .bin and .idx files.",
        )
    return _tokenize(data, tokenizer, text_key, bad_records or BadRecordPolicy())


def _is_dataset(path: Path) -> bool:
    prefix = strip_ending(path)
    return path.suffix in (".bin", ".idx") or idx_path(prefix).is_file() or bin_path(prefix).is_file()


def _open_dataset(path: Path, tokenizer: Tokenizer, split: str, split_name: SplitName) -> npt.NDArray[Any]:
    indexed = IndexedDataset(path)
    described = manifest_path(indexed.prefix)
    if described.is_file():
        recorded = Manifest.read(described, "tokens").about["tokenizer"]["fingerprint"]
        if recorded != tokenizer.fingerprint:
            raise DataError(
                f"was built with the tokenizer {recorded}, the model has {tokenizer.fingerprint}",
                where=indexed.prefix,
                fix="Build it again with the model's tokenizer, or name the texts themselves.",
            )
    tokens = indexed.tokens
    if split_name != "all":
        begin, end = split_ranges(split, indexed.num_sequences)[split_name]
        tokens = tokens[indexed.token_begin(begin) : indexed.token_begin(end)]
    if len(tokens) < 2:
        raise DataError(
            f"its {split_name} split ({split}) has {len(tokens)} tokens; predicting needs at least two",
            where=indexed.prefix,
            fix="Choose another split, or add text.",
        )
    return tokens


def _tokenize(
    data: Sequence[Path], tokenizer: Tokenizer, text_key: str, policy: BadRecordPolicy
) -> npt.NDArray[Any]:
    """The documents as one stream, each closed by the end-of-document id."""
    end = np.array([tokenizer.end_of_document_id], dtype=np.uint32)
    pieces: list[npt.NDArray[np.uint32]] = []
    with BadRecords(policy) as bad_records:
        for document in read_documents(data, text_key=text_key, bad_records=bad_records):
            ids = tokenizer.encode_array(document.text)
            if ids.size:
                pieces += [ids, end]
    if not pieces:
        raise DataError(
            "there is no text in it", where=", ".join(map(str, data)), fix="Name a file or folder with text."
        )
    return np.concatenate(pieces)
