"""Cuts long documents into parts, so that a book can be shuffled and split like any other text."""

from collections.abc import Iterator

from groundup.corpus.document import Document

_BREAKS = ("\n\n", "\n", " ")
"""Where a text may be cut, best first."""


def cut_document(document: Document, max_characters: int) -> Iterator[Document]:
    """Parts of at most so many characters that join to the document's text; the document itself if short.

    A part ends behind the last blank line in its second half, else the last line end, else the last
    space, else anywhere. Part ``k`` has the id ``{id}#k``.
    """
    text = document.text
    if len(text) <= max_characters:
        yield document
        return
    begin = part = 0
    while begin < len(text):
        end = _end_of_part(text, begin, max_characters)
        yield Document(
            id=f"{document.id}#{part}",
            url=document.url,
            text=text[begin:end],
            meta={**document.meta, "part": part},
        )
        begin, part = end, part + 1


def _end_of_part(text: str, begin: int, max_characters: int) -> int:
    limit = begin + max_characters
    if limit >= len(text):
        return len(text)
    for mark in _BREAKS:
        found = text.rfind(mark, begin + max_characters // 2, limit)
        if found >= 0:
            return found + len(mark) if found + len(mark) <= limit else limit
    return limit
