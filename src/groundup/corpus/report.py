"""What building a corpus read, kept and dropped, counted as it goes and kept in the manifest."""

import dataclasses
from pathlib import Path

from groundup.core.config_class import NotNegative, config
from groundup.corpus.bad_records import BadRecordCounts, BadRecords

_NUM_EXAMPLES = 3


@config
class Dropped:
    """The documents that one rule dropped for one reason.

    Attributes:
        rule: The step's ``kind``, or ``exact_duplicate`` or ``empty``.
        reason: Why.
        documents: How many.
        bytes: Their text as read, UTF-8.
        examples: The ids of the first three.
    """

    rule: str
    reason: str
    documents: NotNegative
    bytes: NotNegative
    examples: tuple[str, ...]


@config
class CorpusCounts:
    """What a corpus manifest counts; see ``CorpusReport``."""

    documents_read: NotNegative
    bytes_read: NotNegative
    documents: NotNegative
    bytes: NotNegative
    edited: dict[str, NotNegative]
    dropped: tuple[Dropped, ...]
    bad_records: BadRecordCounts


@dataclasses.dataclass(frozen=True, kw_only=True)
class CorpusReport:
    """What a corpus holds and what became of the rest. Bytes are of the texts alone, in UTF-8.

    Attributes:
        output_dir: The corpus folder.
        fingerprint: Of its config and inputs.
        documents_read: Documents in the sources, without bad records.
        bytes_read: Of those.
        documents: Documents kept.
        bytes: Of those, after editing.
        edited: Step -> how many documents it changed.
        dropped: By rule and reason.
        bad_records: How many records could not be read.
        bad_by_reason: Reason -> how many.
        reused: The corpus was there already and nothing was done.
    """

    output_dir: Path
    fingerprint: str
    documents_read: int
    bytes_read: int
    documents: int
    bytes: int
    edited: dict[str, int]
    dropped: tuple[Dropped, ...]
    bad_records: int
    bad_by_reason: dict[str, int]
    reused: bool

    @property
    def documents_path(self) -> Path:
        """The documents, one JSON object a line, compressed with Zstandard."""
        return self.output_dir / "documents.jsonl.zst"

    @classmethod
    def from_counts(
        cls, output_dir: Path, fingerprint: str, counts: CorpusCounts, *, reused: bool
    ) -> "CorpusReport":
        """The report that a manifest's counts give."""
        return cls(
            output_dir=output_dir,
            fingerprint=fingerprint,
            documents_read=counts.documents_read,
            bytes_read=counts.bytes_read,
            documents=counts.documents,
            bytes=counts.bytes,
            edited=counts.edited,
            dropped=counts.dropped,
            bad_records=counts.bad_records.bad,
            bad_by_reason=counts.bad_records.by_reason,
            reused=reused,
        )

    def table(self) -> str:
        """The report as a few aligned lines: documents, bytes, share of the bytes read."""
        edited = self.bytes - (self.bytes_read - sum(dropped.bytes for dropped in self.dropped))
        rows = [("read", f"{self.documents_read:,}", f"{self.bytes_read:,}", "")]
        rows += [
            (
                f"dropped, {entry.rule}: {entry.reason}",
                f"-{entry.documents:,}",
                f"-{entry.bytes:,}" if entry.bytes else "0",
                "e.g. " + ", ".join(entry.examples[:2]),
            )
            for entry in self.dropped
        ]
        if edited:
            by_step = ", ".join(f"{step} {count:,}" for step, count in self.edited.items() if count)
            rows.append(("edited", "", f"{edited:+,}", f"documents: {by_step}"))
        share = f"{self.bytes / self.bytes_read:.1%} of the bytes" if self.bytes_read else ""
        rows.append(("kept", f"{self.documents:,}", f"{self.bytes:,}", share))
        if self.bad_records:
            reasons = ", ".join(f"{reason}: {count:,}" for reason, count in self.bad_by_reason.items())
            rows.append(("bad records", f"{self.bad_records:,}", "", reasons))
        rows.insert(0, ("", "documents", "bytes", ""))
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        return "\n".join(
            f"{row[0]:<{widths[0]}}  {row[1]:>{widths[1]}}  {row[2]:>{widths[2]}}  {row[3]}".rstrip()
            for row in rows
        )


class Tally:
    """Counts while documents pass."""

    def __init__(self) -> None:
        self.documents_read = 0
        self.bytes_read = 0
        self.documents = 0
        self.bytes = 0
        self.edited: dict[str, int] = {}
        self._dropped: dict[tuple[str, str], tuple[int, int, list[str]]] = {}

    def drop(self, rule: str, reason: str, document_id: str, size_bytes: int) -> None:
        """Counts a dropped document."""
        documents, total, examples = self._dropped.get((rule, reason), (0, 0, []))
        if documents < _NUM_EXAMPLES:
            examples.append(document_id)
        self._dropped[rule, reason] = (documents + 1, total + size_bytes, examples)

    def edit(self, rule: str) -> None:
        """Counts a document that a step changed."""
        self.edited[rule] = self.edited.get(rule, 0) + 1

    def counts(self, bad_records: BadRecords) -> CorpusCounts:
        """Everything counted, for the manifest."""
        return CorpusCounts(
            documents_read=self.documents_read,
            bytes_read=self.bytes_read,
            documents=self.documents,
            bytes=self.bytes,
            edited=dict(sorted(self.edited.items())),
            dropped=tuple(
                Dropped(rule=rule, reason=reason, documents=count, bytes=size, examples=tuple(examples))
                for (rule, reason), (count, size, examples) in sorted(self._dropped.items())
            ),
            bad_records=bad_records.counts(),
        )
