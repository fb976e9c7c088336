"""Cleaning a list of URLs: well-formed ones of pages, each once, in the order of the input."""

import collections
import dataclasses
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Literal

import orjson

from groundup import __version__
from groundup.core.compressed import open_decompressed
from groundup.core.config_class import config
from groundup.core.errors import DataError
from groundup.core.files import atomic_write
from groundup.core.manifest import FileRecord, describe_files, fingerprint, write_manifest
from groundup.core.progress import Progress
from groundup.corpus.digest_set import DigestSet, digests
from groundup.corpus.sources import JSON_ENDINGS, content_ending, find_source_files, form_of
from groundup.corpus.urls import RejectedUrl, UrlRules

_BATCH_LINES = 1 << 16
_MAX_LINE_BYTES = 1 << 16
_NUM_EXAMPLES = 3
_SHOWN_CHARACTERS = 100
STDIN = Path("-")


@config
class UrlListManifest:
    """What a cleaned list was made from."""

    kind: Literal["urls"] = "urls"
    fingerprint: str
    inputs: dict[str, str]
    counts: dict[str, int]
    files: dict[str, FileRecord]
    format_version: Literal[1] = 1
    groundup_version: str = __version__


@dataclasses.dataclass(frozen=True, slots=True)
class UrlReport:
    """What became of the lines of a list.

    Attributes:
        lines: All that were neither blank nor comments.
        kept: URLs written.
        rejected: Reason -> how many.
        examples: Reason -> the first three lines.
    """

    lines: int
    kept: int
    rejected: dict[str, int]
    examples: dict[str, list[str]]

    def table(self) -> str:
        """A line for each reason, the most frequent first, with examples."""
        rows = [("lines", self.lines, "")]
        rows += [(reason, -count, "  ".join(self.examples[reason])) for reason, count in self._by_count()]
        rows.append(("kept", self.kept, f"{self.kept / self.lines:.1%}" if self.lines else ""))
        width = max(len(name) for name, _, _ in rows)
        return "\n".join(f"{name:<{width}}  {count:>12,}  {note}".rstrip() for name, count, note in rows)

    def _by_count(self) -> list[tuple[str, int]]:
        return sorted(self.rejected.items(), key=lambda item: (-item[1], item[0]))


def clean_url_list(sources: Sequence[Path], output: Path, rules: UrlRules) -> UrlReport:
    """Writes the URLs of the sources that the rules keep, one a line, and a manifest beside them.

    Memory: 8 bytes a distinct URL. The output depends on the sources' lines and their order alone.

    Args:
        sources: Files (.gz and .zst too), folders and globs; ``-`` is stdin. JSON lines hold it under "url".
        output: The list to write; left as it was when anything fails.
        rules: Which URLs are kept.

    Raises:
        DataError: A source is missing or damaged, or no URL is left.
    """
    rejected: collections.Counter[str] = collections.Counter()
    examples: dict[str, list[str]] = {}

    def reject(reason: str, line: str) -> None:
        rejected[reason] += 1
        if len(examples.setdefault(reason, [])) < _NUM_EXAMPLES:
            examples[reason].append(ascii(line.strip())[1:-1][:_SHOWN_CHARACTERS])

    inputs: dict[str, str] = {}
    seen = DigestSet()
    kept = 0
    with Progress("urls", 0, "lines") as progress, atomic_write(output) as file:
        for lines in _batches(_lines(sources, inputs)):
            urls: list[str] = []
            for line in lines:
                try:
                    urls.append(rules.clean(line))
                except RejectedUrl as refusal:
                    reject(refusal.reason, line)
            is_new = seen.add(digests([rules.key(url) for url in urls]))
            for url, new in zip(urls, is_new.tolist(), strict=True):
                if not new:
                    reject("duplicate", url)
            chosen = [url for url, new in zip(urls, is_new.tolist(), strict=True) if new]
            kept += len(chosen)
            file.write("".join(f"{url}\n" for url in chosen).encode())
            progress.add(len(lines))
        report = UrlReport(kept + rejected.total(), kept, dict(rejected), examples)
        if not kept:
            raise _nothing_left(report, sources)
    counts = {"lines": report.lines, "kept": kept, **rejected}
    write_manifest(
        output.with_name(f"{output.name}.manifest.json"),
        UrlListManifest(
            fingerprint=_fingerprint(rules, inputs),
            inputs=inputs,
            counts=counts,
            files=describe_files(output.parent, [output.name]),
        ),
    )
    return report


def _fingerprint(rules: UrlRules, inputs: dict[str, str]) -> str:
    settings = dataclasses.asdict(rules)
    ordered = {
        name: sorted(value) if isinstance(value, frozenset) else value for name, value in settings.items()
    }
    return fingerprint({"rules": ordered, "inputs": inputs})


def _nothing_left(report: UrlReport, sources: Sequence[Path]) -> DataError:
    where = ", ".join(str(source) for source in sources)
    if not report.lines:
        return DataError(
            "no line holds a URL: all are blank or comments", where=where, fix="Name another list."
        )
    reasons = "; ".join(
        f"{reason}: {count:,}, such as {report.examples[reason][0]}"
        for reason, count in sorted(report.rejected.items(), key=lambda item: -item[1])
    )
    return DataError(
        f"none of {report.lines:,} lines is kept ({reasons})",
        where=where,
        fix="One URL a line is expected, beginning with http:// or https://.",
    )


def _batches(lines: Iterator[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    for line in lines:
        batch.append(line)
        if len(batch) == _BATCH_LINES:
            yield batch
            batch = []
    if batch:
        yield batch


def _lines(sources: Sequence[Path], inputs: dict[str, str]) -> Iterator[str]:
    """The lines of all sources that are neither blank nor comments; ``inputs`` is told of each file."""
    if STDIN in sources:
        inputs["stdin"] = ""
        yield from url_lines(sys.stdin.buffer, is_json=False)
    if not (named := [source for source in sources if source != STDIN]) and sources:
        return
    for source in find_source_files(named):
        if form_of(source.path) in ("rows", "warc"):
            raise DataError(
                f"{content_ending(source.path)[1:]} holds no list of URLs",
                where=source.path,
                fix='Write one URL a line, or JSON lines with "url".',
            )
        inputs[ascii(str(source.path))[1:-1]] = f"{source.size_bytes} bytes, changed {source.mtime_ns} ns"
        with open_decompressed(source.path) as stream:
            yield from url_lines(stream, is_json=content_ending(source.path) in JSON_ENDINGS)


def url_lines(stream: IO[bytes], *, is_json: bool) -> Iterator[str]:
    """Each line with a URL; what is not UTF-8 or too long is cut and marked, so that it is malformed."""
    while line := stream.readline(_MAX_LINE_BYTES):
        is_cut = not line.endswith(b"\n")
        while is_cut and (rest := stream.readline(_MAX_LINE_BYTES)):
            is_cut = not rest.endswith(b"\n")
        if not (line := line.strip()) or (not is_json and line.startswith(b"#")):
            continue
        text = line.decode("utf-8", "replace").removeprefix("\ufeff")
        yield _url_field(line) or text if is_json else text


def _url_field(line: bytes) -> str:
    """The field "url" of a JSON line; empty where it has none."""
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError:
        return ""
    url = record.get("url") if isinstance(record, dict) else None
    return url if isinstance(url, str) else ""
