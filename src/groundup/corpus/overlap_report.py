"""How much of the items of evaluation tasks stands in a corpus, as its manifest says."""

from collections.abc import Iterable, Sequence

from groundup.core.config import config
from groundup.core.config_class import NotNegative, Positive


@config
class EvaluationOverlap:
    """What a corpus holds of one file of evaluation items.

    Attributes:
        file: As it was named.
        task: The kind of its task; empty for a file of no task.
        checksum: Of its content, whether it is compressed or not.
        items: Items in it.
        max_ngram: Words that an item and a document share at least; shorter items count with all their words.
        min_ngram: Items of fewer words were not looked for.
        common_count: N-grams that stand so often in the corpus are common language, and were not cut out.
        found: The items that shared such words with the corpus before it was cut; ``:17`` is line 17.
        left: Those of them that still do.
        documents: Documents that held some of them.
        documents_cut: Of these, those that were kept without what they shared.
        documents_dropped: Of these, those of which too little was left.
    """

    file: str
    task: str
    checksum: str
    items: NotNegative
    max_ngram: Positive
    min_ngram: Positive
    common_count: Positive
    found: tuple[str, ...]
    left: tuple[str, ...]
    documents: NotNegative
    documents_cut: NotNegative
    documents_dropped: NotNegative

    def describe(self) -> str:
        """One line for a report."""
        name = f"{self.task} ({self.file})" if self.task else self.file
        parts = [f"{len(self.found):,} of {self.items:,} items overlap by {self.max_ngram} words"]
        if self.documents:
            cut, dropped = self.documents_cut, self.documents_dropped
            parts.append(f"{self.documents:,} documents: {cut:,} cut, {dropped:,} dropped")
        if self.left:
            parts.append(f"{len(self.left):,} still do")
        return f"{name}: {'; '.join(parts)}"


Overlaps = tuple[EvaluationOverlap, ...]


def joint_overlaps(sources: Sequence[Overlaps | None]) -> Overlaps | None:
    """What several corpora hold together; None where of one of them nothing is known.

    A file with which only some of them were compared, or not by the same rule, is left out.
    """
    if not sources or any(overlaps is None for overlaps in sources):
        return None
    by_rule = [
        {(entry.checksum, entry.max_ngram, entry.min_ngram): entry for entry in overlaps or ()}
        for overlaps in sources
    ]
    known = [key for key in by_rule[0] if all(key in entries for entries in by_rule)]
    return tuple(_joined([entries[key] for entries in by_rule]) for key in known)


def place_order(place: str) -> tuple[int, str]:
    """A key that sorts the places of items as they stand in their file."""
    digits = "".join(filter(str.isdigit, place))
    return int(digits or 0), place


def _joined(entries: Sequence[EvaluationOverlap]) -> EvaluationOverlap:
    first = entries[0]
    if len(entries) == 1:
        return first

    def union(places: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
        return tuple(sorted({place for some in places for place in some}, key=place_order))

    return EvaluationOverlap(
        file=first.file,
        task=first.task,
        checksum=first.checksum,
        items=first.items,
        max_ngram=first.max_ngram,
        min_ngram=first.min_ngram,
        common_count=max(entry.common_count for entry in entries),
        found=union(entry.found for entry in entries),
        left=union(entry.left for entry in entries),
        documents=sum(entry.documents for entry in entries),
        documents_cut=sum(entry.documents_cut for entry in entries),
        documents_dropped=sum(entry.documents_dropped for entry in entries),
    )
