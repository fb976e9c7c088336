"""Where a dataset is cut into parts: between documents, by counts or by the splits of training."""

import bisect
import dataclasses

from groundup.core.errors import ConfigError, DataError
from groundup.tokens.files.indexed import IndexedDataset
from groundup.tokens.samples.plan import split_ranges


@dataclasses.dataclass(frozen=True, kw_only=True)
class Division:
    """Where to cut; exactly one of these is set.

    Attributes:
        parts: Into so many parts of about equally many tokens.
        documents: After so many documents each.
        tokens: After the document with which a part reaches so many tokens.
        split: Into train, validation and test, rounded as in training, e.g. "969,30,1".
    """

    parts: int = 0
    documents: int = 0
    tokens: int = 0
    split: str = ""

    def __post_init__(self) -> None:
        numbers = (self.parts, self.documents, self.tokens)
        if min(numbers) < 0 or sum(map(bool, (*numbers, self.split))) != 1:
            raise ConfigError(
                "where to cut: it takes one of parts, documents, tokens and split",
                where="command line",
                fix="Give one of them, e.g. --parts 8.",
            )


def cut_documents(data: IndexedDataset, division: Division) -> dict[str, tuple[int, int]]:
    """Name -> recorded documents [begin, end) of each part; a split that would be empty is left out.

    Raises:
        DataError: There are no documents.
        ConfigError: More parts than documents, or a split that would cut a document.
    """
    total = data.num_recorded_documents
    if not total:
        raise DataError("has no documents to divide", where=data.prefix)
    if division.split:
        return {name: cut for name, cut in _split_cuts(data, division.split).items() if cut[0] < cut[1]}
    if division.parts:
        ends = _equal_ends(data, division.parts)
    elif division.documents:
        ends = [*range(division.documents, total, division.documents), total]
    else:
        ends = _ends_by_tokens(data, division.tokens)
    begins = [0, *ends[:-1]]
    return {f"{number:05d}": cut for number, cut in enumerate(zip(begins, ends, strict=True))}


def tokens_before(data: IndexedDataset, document: int) -> int:
    """Number of tokens before a recorded document of ``.idx``."""
    return data.token_begin(int(data.document_ends[document]))


def _equal_ends(data: IndexedDataset, parts: int) -> list[int]:
    total = data.num_recorded_documents
    if parts > total:
        raise ConfigError(
            f"{parts:,} parts of {total:,} documents",
            where="parts",
            fix=f"Give {total:,} or less.",
        )
    ends = [0]
    for number in range(1, parts):
        target = data.num_tokens * number // parts
        end = bisect.bisect_left(range(total + 1), target, key=lambda at: tokens_before(data, at))
        ends.append(min(max(end, ends[-1] + 1), total - (parts - number)))
    return [*ends[1:], total]


def _ends_by_tokens(data: IndexedDataset, tokens: int) -> list[int]:
    total = data.num_recorded_documents
    ends = [0]
    while ends[-1] < total:
        target = tokens_before(data, ends[-1]) + tokens
        end = bisect.bisect_left(range(total), target, key=lambda at: tokens_before(data, at))
        ends.append(max(end, ends[-1] + 1))
    return ends[1:]


def _split_cuts(data: IndexedDataset, split: str) -> dict[str, tuple[int, int]]:
    """The splits of training, which are counted in sequences, as ranges of recorded documents."""
    cuts = {}
    begin = 0
    for name, (_, last) in split_ranges(split, data.num_sequences).items():
        end = (
            bisect.bisect_left(data.document_ends, last)
            if last < data.num_sequences
            else data.num_recorded_documents
        )
        if data.document_ends[end] != last:
            raise ConfigError(
                f"{split} ends {name} after sequence {last:,}, within document {end - 1:,}: this file has"
                " several sequences a document",
                where=data.prefix,
                fix="Divide it by --parts, --documents or --tokens.",
            )
        cuts[name] = (begin, end)
        begin = end
    return cuts
