"""What building a corpus read, kept and dropped, counted as it goes and kept in the manifest."""

import collections
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from groundup.corpus.corpus_manifest import CorpusCounts, CorpusManifest
from groundup.corpus.overlap_report import Overlaps

_NUM_EXAMPLES = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class CorpusReport:
    """What a corpus holds and what became of the rest. Bytes are of the texts alone, in UTF-8.

    Attributes:
        output_dir: The corpus folder.
        fingerprint: Of its config and inputs.
        counts: What was read, kept and dropped.
        files: Names of the files of documents.
        reused: The corpus was there already and nothing was done.
        overlaps: What it holds of the items of evaluation tasks.
    """

    output_dir: Path
    fingerprint: str
    counts: CorpusCounts
    files: tuple[str, ...]
    reused: bool
    overlaps: Overlaps = ()

    @classmethod
    def of(cls, output_dir: Path, manifest: CorpusManifest, *, reused: bool) -> "CorpusReport":
        """The report that a manifest gives."""
        return cls(
            output_dir=output_dir,
            fingerprint=manifest.fingerprint,
            counts=manifest.counts,
            files=tuple(manifest.documents),
            reused=reused,
            overlaps=manifest.overlaps or (),
        )

    @property
    def documents_paths(self) -> list[Path]:
        """The files of documents: JSON lines compressed with Zstandard, or Parquet."""
        return [self.output_dir / name for name in self.files]

    @property
    def documents_glob(self) -> Path:
        """What means these files on a command line."""
        paths = self.documents_paths
        return paths[0] if len(paths) == 1 else self.output_dir / f"documents-*{''.join(paths[0].suffixes)}"

    def table(self) -> str:
        """The report as a few aligned lines: documents, bytes, share of the bytes read."""
        counts, bad = self.counts, self.counts.bad_records
        edited = counts.bytes - (counts.bytes_read - sum(dropped.bytes for dropped in counts.dropped))
        rows = [("read", f"{counts.documents_read:,}", f"{counts.bytes_read:,}", "")]
        rows += [
            (
                f"dropped, {entry.rule}: {entry.reason}",
                f"-{entry.documents:,}",
                f"-{entry.bytes:,}" if entry.bytes else "0",
                "e.g. " + ", ".join(entry.examples[:2]),
            )
            for entry in counts.dropped
        ]
        if edited:
            by_step = ", ".join(f"{step} {count:,}" for step, count in counts.edited.items() if count)
            rows.append(("edited", "", f"{edited:+,}", f"documents: {by_step}"))
        share = f"{counts.bytes / counts.bytes_read:.1%} of the bytes" if counts.bytes_read else ""
        rows.append(("kept", f"{counts.documents:,}", f"{counts.bytes:,}", share))
        if bad.bad:
            reasons = ", ".join(f"{reason}: {count:,}" for reason, count in bad.by_reason.items())
            rows.append(("bad records", f"{bad.bad:,}", "", reasons))
        rows.insert(0, ("", "documents", "bytes", ""))
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        lines = [
            f"{row[0]:<{widths[0]}}  {row[1]:>{widths[1]}}  {row[2]:>{widths[2]}}  {row[3]}".rstrip()
            for row in rows
        ]
        lines += ["", *(overlap.describe() for overlap in self.overlaps)] if self.overlaps else []
        return "\n".join(lines)


class Tally:
    """Counts what happens to documents, in one task or, added up, in all."""

    def __init__(self) -> None:
        self.documents = 0
        self.bytes = 0
        self.edited: dict[str, int] = {}
        self._dropped: dict[tuple[str, str], tuple[int, int, list[str], collections.Counter[str]]] = {}

    def keep(self, size_bytes: int) -> None:
        """Counts a document that is kept."""
        self.documents += 1
        self.bytes += size_bytes

    def drop(self, rule: str, reason: str, document_id: str, size_bytes: int, detail: str = "") -> None:
        """Counts a dropped document."""
        self._drop(rule, reason, 1, size_bytes, [document_id], {detail: 1} if detail else {})

    def edit(self, rule: str) -> None:
        """Counts a document that a filter changed."""
        self.edited[rule] = self.edited.get(rule, 0) + 1

    def add(self, result: Mapping[str, Any]) -> None:
        """Adds what the ``counts`` of a task gave."""
        self.documents += result["documents"]
        self.bytes += result["bytes"]
        for rule, count in result["edited"].items():
            self.edited[rule] = self.edited.get(rule, 0) + count
        for entry in result["dropped"]:
            self._drop(**entry)

    def counts(self) -> dict[str, Any]:
        """Everything counted, as JSON-like values."""
        return {
            "documents": self.documents,
            "bytes": self.bytes,
            "edited": dict(sorted(self.edited.items())),
            "dropped": [
                {
                    "rule": rule,
                    "reason": reason,
                    "documents": count,
                    "bytes": size,
                    "examples": examples,
                    "details": dict(sorted(details.items())),
                }
                for (rule, reason), (count, size, examples, details) in sorted(self._dropped.items())
            ],
        }

    def _drop(
        self,
        rule: str,
        reason: str,
        documents: int,
        bytes: int,  # noqa: A002  # the name in the manifest
        examples: list[str],
        details: Mapping[str, int],
    ) -> None:
        count, size, shown, found = self._dropped.get((rule, reason), (0, 0, [], collections.Counter()))
        found.update(details)
        shown = [*shown, *examples][:_NUM_EXAMPLES]
        self._dropped[rule, reason] = (count + documents, size + bytes, shown, found)
