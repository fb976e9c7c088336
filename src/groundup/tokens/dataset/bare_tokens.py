"""nanoGPT's ``train.bin`` and ``val.bin``: bare uint16 tokens, made data sets by an index beside them.

Megatron-LM's ``.bin`` is the same bytes, so that nothing is copied: an ``.idx`` says where documents end, a
manifest what they are, and where the data set is to lie elsewhere the tokens are linked there. Sources:
data/openwebtext/prepare.py and data/shakespeare_char/prepare.py of nanoGPT (3adf61e).
"""

import contextlib
import filecmp
import os
import tempfile
from pathlib import Path

import numpy as np
import numpy.typing as npt

from groundup.core.errors import DataError
from groundup.core.files import temporary_path
from groundup.core.manifest import fingerprint
from groundup.core.progress import Progress
from groundup.core.vocabulary import require_token_ids
from groundup.tokens.dataset.dataset_manifest import describe_dataset
from groundup.tokens.dataset.indexed import bin_path, idx_path, sample_checksum
from groundup.tokens.dataset.indexed_writer import write_index
from groundup.tokens.tokenizer.base import Tokenizer
from groundup.tokens.tokenizer.word_list import end_ids

NAMES = ("train", "val")
"""Of the files that prepare.py writes, without ending."""
_DTYPE = np.dtype("<u2")
_CHUNK = 1 << 24
_LONGEST = np.iinfo(np.int32).max


def is_bare_tokens(folder: Path) -> bool:
    """Whether a folder holds what nanoGPT's prepare.py writes."""
    return (folder / "train.bin").is_file()


def index_bare_tokens(source: Path, prefix: Path, tokenizer: Tokenizer) -> None:
    """Makes a data set of a file of bare tokens: writes index, manifest and tokenizer, links the tokens.

    A document ends with the tokenizer's end-of-document id. Where that is text or nowhere in the file, all
    of it is one document.

    Args:
        source: The file.
        prefix: Of the data set; tokens that lie there already stay.
        tokenizer: That made the tokens.

    Raises:
        DataError: The tokens are not the tokenizer's, or something else lies at the prefix.
    """
    size = source.stat().st_size
    if not size or size % _DTYPE.itemsize:
        raise DataError(
            f"holds {size:,} bytes, not a number of uint16 tokens", where=source, fix="Prepare it again."
        )
    tokens = np.memmap(source, _DTYPE, "r").view(np.ndarray)
    prefix.parent.mkdir(parents=True, exist_ok=True)
    lengths = _document_lengths(tokens, tokenizer, source)
    _link(source, bin_path(prefix))
    with tempfile.NamedTemporaryFile(dir=prefix.parent, prefix=".lengths-") as file:
        file.write(lengths.astype("<i4").data)
        file.flush()
        written = temporary_path(idx_path(prefix))
        write_index(written, _DTYPE, [Path(file.name)])
        _put(written, idx_path(prefix))
    ends = end_ids(tokenizer)
    describe_dataset(
        prefix,
        tokenizer,
        inputs={source.name: fingerprint([len(tokens), sample_checksum(tokens, 4)])},
        about={"append_end_of_document": bool(ends and tokens[-1] == ends[0])},
    )


def _document_lengths(
    tokens: npt.NDArray[np.uint16], tokenizer: Tokenizer, source: Path
) -> npt.NDArray[np.int64]:
    ends = end_ids(tokenizer)
    found = [np.zeros(1, np.int64)]
    with Progress(f"find the documents of {source}", len(tokens), "tokens") as progress:
        for begin in range(0, len(tokens), _CHUNK):
            chunk = tokens[begin : begin + _CHUNK]
            require_token_ids(
                chunk,
                tokenizer.vocab_size,
                place=lambda index, begin=begin: f"token {begin + index:,}",
                where=source,
            )
            if ends:
                found.append(np.flatnonzero(chunk == ends[0]) + (begin + 1))
            progress.add(len(chunk))
    borders = np.unique(np.append(np.concatenate(found), len(tokens)))
    lengths = np.diff(borders)
    if lengths.max() > _LONGEST:
        raise DataError(
            f"a document has {int(lengths.max()):,} tokens, at most {_LONGEST:,} are possible",
            where=source,
            fix="Its documents end with another id: name their tokenizer.",
        )
    return lengths


def _put(written: Path, index: Path) -> None:
    if index.is_file() and not filecmp.cmp(written, index, shallow=False):
        written.unlink()
        raise DataError(
            "is there already and says otherwise where documents end",
            where=index,
            fix="Train on it as it is, or name another folder: --out.",
        )
    written.replace(index)


def _link(source: Path, target: Path) -> None:
    """Gives the tokens their name: another of the same file or, on another file system, a link to it."""
    if target.exists():
        if target.samefile(source):
            return
        raise DataError("is there already", where=target, fix="Name another folder: --out.")
    with contextlib.suppress(OSError):
        os.link(source, target)
        return
    target.symlink_to(source.resolve())
