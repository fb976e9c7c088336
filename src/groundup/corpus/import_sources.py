"""The first stage of a recipe: reads files of any kind, and the Python library, into shards of documents."""

import array
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import pydantic

from groundup.core.config import config
from groundup.core.errors import DataError
from groundup.core.executor.tasks import Done, Report
from groundup.core.files import atomic_write
from groundup.corpus.bad_records import BadRecordPolicy, BadRecords, Offender
from groundup.corpus.corpus_manifest import shard_name
from groundup.corpus.cut import cut_document
from groundup.corpus.document import Document, text_bytes
from groundup.corpus.duplicate_ids import id_hash, ids_path
from groundup.corpus.extraction.limits import ExtractionFailure
from groundup.corpus.extraction.page_reader import PageExtractor, PageReading
from groundup.corpus.line_blocks import count_lines
from groundup.corpus.profile import ProfileTally
from groundup.corpus.python_library import find_python_library, read_python_library
from groundup.corpus.read_documents import read_range
from groundup.corpus.recorded import CorpusManifests
from groundup.corpus.shard import Shard, write_shard
from groundup.corpus.source_ranges import ShardSources, SourceRange
from groundup.corpus.sources import SourceFile, find_source_files
from groundup.corpus.stage import Phase, Phases, Stage, StageRun

_COLLECT = BadRecordPolicy(action="quarantine", max_bad=1.0)
_SKIP = BadRecordPolicy(action="skip", max_bad=1.0)

_OnFailure = Callable[[Document, ExtractionFailure], None]


class ReadReport(NamedTuple):
    """What a task has read since its last report."""

    read_bytes: int
    good: int
    bad: list[Offender]


@config
class Import(Stage):
    """Reads text files (each a document), JSONL, Parquet and Arrow (each line or row), and pages.

    Text, JSONL, WARC and HTML also with .gz or .zst; of a page, the main text.

    Attributes:
        sources: Files, folders and globs.
        python_library: Read the standard library of the running Python, before the sources.
        text_key: The field of a JSON object, or the column, that holds the text.
        cut_characters: Cut longer documents into parts of at most so many characters; 0 keeps them whole.
        pages: How pages become documents.
    """

    kind: Literal["import"] = "import"
    sources: tuple[Path, ...] = ()
    python_library: bool = False
    text_key: str = "text"
    cut_characters: Annotated[int, pydantic.Field(ge=0)] = 0
    pages: PageReading = PageReading()

    def __post_init__(self) -> None:
        if not self.sources and not self.python_library:
            raise ValueError(
                "there is nothing to read: name a source, or take the Python library (--python-library)"
            )

    @property
    def is_barrier(self) -> bool:
        """False: a shard depends on its own files."""
        return False

    def find_files(self, leave_out: Path) -> tuple[list[SourceFile], list[SourceFile]]:
        """The files of the library, and those that the sources mean."""
        library = find_python_library() if self.python_library else []
        if not self.sources:
            return library, []
        return library, find_source_files(self.sources, leave_out=leave_out, only_pages=self.pages.only)

    @property
    def settings(self) -> dict[str, Any]:
        """All but the sources: the files that they mean count, not their names."""
        settings = super().settings
        del settings["sources"]
        return settings

    def phases(self, run: StageRun) -> Phases:
        """Lines are counted where large files are cut; then every shard is read."""
        cut_files = {
            source.file for shard in run.sources for source in shard.ranges if source.is_range_of_lines
        }
        counted = [source for shard in run.sources for source in shard.ranges if source.file in cut_files]
        lines: list[dict[str, Any]] = []
        if counted:
            lines = yield Phase(
                name="count lines",
                tasks=[run.task("lines", number, source) for number, source in enumerate(counted)],
                work=_count_lines,
                total_bytes=sum(source.size_bytes for source in counted),
                for_every_rank=True,
            )
        known = _with_lines(run.sources, counted, [result["lines"] for result in lines])
        yield Phase(
            name="import",
            tasks=run.last_tasks(list(zip(known, run.outputs, strict=True))),
            work=ReadShard(self, run.quarantine),
            total_bytes=sum(shard.size_bytes for shard in run.sources),
        )


@dataclasses.dataclass(frozen=True, slots=True)
class ReadShard:
    """The work of reading a shard."""

    stage: Import
    quarantine: bool

    def __call__(self, task_input: tuple[ShardSources, Shard], report: Report) -> Done:
        """Writes the shard, and beside it its bad records where they are kept."""
        sources, shard = task_input
        quarantine = shard.folder / quarantine_name(shard)
        fresh: list[Offender] = []
        policy = _COLLECT if self.quarantine else _SKIP
        bad = BadRecords(policy, quarantine_path=quarantine, on_bad=fresh.append)
        quarantine.unlink(missing_ok=True)
        reported = 0

        def on_read(size: int) -> None:
            nonlocal reported
            report(ReadReport(size, bad.good - reported, fresh.copy()))
            reported = bad.good
            fresh.clear()

        bytes_read = documents_read = 0
        hashes = array.array("Q")
        profile = ProfileTally()
        with write_shard(shard, keep_dropped=False) as out:

            def drop(document: Document, failure: ExtractionFailure) -> None:
                nonlocal documents_read
                documents_read += 1
                out.drop(document, "extract", failure.reason)

            for document in self._documents(sources, bad, on_read, drop):
                documents_read += 1
                bytes_read += text_bytes(document.text)
                profile.count(document)
                out.keep(document)
                hashes.append(id_hash(document.id))
            on_read(0)
            bad.close()
            _require_unchanged(sources)
        done = out.done(
            bad_records=bad.outcome(),
            documents_read=documents_read,
            bytes_read=bytes_read,
            profile=profile.counts(),
        )
        with atomic_write(ids_path(shard)) as file:
            file.write(hashes.tobytes())
        kept = [quarantine.name] if quarantine.is_file() else []
        return dataclasses.replace(done, files=[*done.files, ids_path(shard).name, *kept])

    def _documents(
        self, sources: ShardSources, bad: BadRecords, on_read: Report, on_failure: _OnFailure
    ) -> Iterator[Document]:
        whole = itertools.chain(
            read_python_library(list(sources.library), bad_records=bad, on_read=on_read),
            self._of_ranges(sources.ranges, bad, on_read, on_failure),
        )
        limit = self.stage.cut_characters
        for document in whole:
            yield from cut_document(document, limit) if limit else (document,)

    def _of_ranges(
        self, ranges: Sequence[SourceRange], bad: BadRecords, on_read: Report, on_failure: _OnFailure
    ) -> Iterator[Document]:
        manifests = CorpusManifests()
        with PageExtractor(self.stage.pages) as pages:
            for source in ranges:
                yield from read_range(
                    source,
                    text_key=self.stage.text_key,
                    bad_records=bad,
                    on_read=on_read,
                    recorded=manifests.hold(source.file),
                    pages=pages,
                    on_failure=on_failure,
                )


def quarantine_name(shard: Shard) -> str:
    """The file of the bad records of a shard."""
    return f"{shard_name('quarantine', shard.number, shard.total)}.jsonl"


def _count_lines(source: SourceRange, report: Report) -> Done:
    return Done(files=[], result={"lines": count_lines(source, report)})


def _with_lines(
    shards: Sequence[ShardSources], counted: Sequence[SourceRange], lines: Sequence[int]
) -> list[ShardSources]:
    """The same with the lines before each range of a plain file, which its documents are named by."""
    before: dict[SourceRange, int] = {}
    total = 0
    for source, count in zip(counted, lines, strict=True):
        total = total if source.begin else 1
        before[source] = total if source.begin else 0
        total += count
    return [
        dataclasses.replace(
            shard,
            ranges=tuple(
                dataclasses.replace(source, lines_before=before.get(source, source.lines_before))
                for source in shard.ranges
            ),
        )
        for shard in shards
    ]


def _require_unchanged(sources: ShardSources) -> None:
    for file in (*sources.library, *(source.file for source in sources.ranges)):
        status = file.path.stat()
        if (status.st_size, status.st_mtime_ns) != (file.size_bytes, file.mtime_ns):
            raise DataError("was changed while it was read", where=file.path, fix="Run the command again.")
