"""From a sample back to its documents: which they are, their tokens in it, and where they came from."""

import dataclasses
from collections.abc import Iterator

from groundup.tokens.dataset.document_sources import DocumentSource, DocumentSources, document_sources_path
from groundup.tokens.dataset.flat import FlatShards
from groundup.tokens.dataset.indexed import IndexedDataset
from groundup.tokens.dataset.indexed_shards import IndexedShards
from groundup.tokens.dataset.token_source import TokenSource
from groundup.tokens.sampling.dataset import Samples


@dataclasses.dataclass(frozen=True, kw_only=True)
class DocumentRange:
    """The part of a document that lies in a sample.

    Attributes:
        source: Holds the document.
        document: Its number in the source.
        begin: Its first token here, counted from the document's first.
        end: Behind its last token here.
        length: Tokens of the whole document.
        ids: Its tokens here.
        came_from: Where the document came from; None when that is not recorded.
    """

    source: TokenSource
    document: int
    begin: int
    end: int
    length: int
    ids: list[int]
    came_from: DocumentSource | None


def trace_sample(samples: Samples, index: int, *, ordered: bool = False) -> list[DocumentRange]:
    """The documents of one sample, in their order in it.

    Args:
        samples: Of a split.
        index: In the order of training: epoch x samples of an epoch + position.
        ordered: Count in file order instead.

    Raises:
        DataError: The file of document sources is damaged.
    """
    return [
        document_range
        for span in samples.spans(index, ordered=ordered)
        for document_range in _ranges(span.source, span.begin, span.end)
    ]


def trace_document(source: TokenSource, document: int) -> DocumentRange:
    """One whole document.

    Raises:
        IndexError: There is no such document.
    """
    if not 0 <= document < source.num_documents:
        raise IndexError(f"document {document} of {source.num_documents}")
    begin, end = source.token_begin(document), source.token_begin(document + 1)
    return next(_ranges(source, begin, end))


def _ranges(source: TokenSource, begin: int, end: int) -> Iterator[DocumentRange]:
    """The documents among the tokens [begin, end) of a source."""
    first, last = source.documents_at([begin, end - 1]).tolist()
    for document in range(first, last + 1):
        document_begin, document_end = source.token_begin(document), source.token_begin(document + 1)
        here_begin, here_end = max(begin, document_begin), min(end, document_end)
        if here_begin < here_end:
            yield DocumentRange(
                source=source,
                document=document,
                begin=here_begin - document_begin,
                end=here_end - document_begin,
                length=document_end - document_begin,
                ids=source.tokens[here_begin:here_end].tolist(),
                came_from=document_source(source, document),
            )


def document_source(source: TokenSource, document: int) -> DocumentSource | None:
    """Where a document came from; None when that is not recorded (Megatron-LM records nothing)."""
    match source:
        case IndexedDataset() if document_sources_path(source.prefix).is_file():
            return DocumentSources(source.prefix)[document]
        case IndexedShards():
            prefix, inside = source.local_shard_of(document)
            return DocumentSources(prefix)[inside] if document_sources_path(prefix).is_file() else None
        case FlatShards():
            begin = source.token_begin(document)
            number = int(source.tokens.shards_at([begin])[0])
            inside = begin - source.tokens.begins[number]
            return DocumentSource(source=f"{source.shards[number].path}, token {inside:,}", line=0, url="")
    return None
