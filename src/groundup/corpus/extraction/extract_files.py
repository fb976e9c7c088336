"""From WARC files and folders of HTML to shards of documents."""

import collections
import concurrent.futures
import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

import zstandard

from groundup import __version__
from groundup.core.config_class import Positive, config
from groundup.core.errors import DataError
from groundup.core.executor.local import number_of_workers
from groundup.core.files import atomic_write
from groundup.core.manifest import FileRecord, describe_files, fingerprint, read_manifest, write_manifest
from groundup.core.progress import Progress
from groundup.corpus.document import Document, to_json_line
from groundup.corpus.extraction.main_text import Engine, WebPage, extract_document, require_engine
from groundup.corpus.extraction.worker_pool import ExtractionFailure, ExtractionLimits, ExtractionPool
from groundup.corpus.html_folder import HTML_ENDINGS, read_html
from groundup.corpus.page_outcomes import DOCUMENT, Outcome, OutcomeCounts
from groundup.corpus.sources import SourceFile, content_ending, find_source_files, printable
from groundup.corpus.warc import WARC_ENDINGS, read_warc

_PAGES_AHEAD = 4  # for each worker
_ZSTD_LEVEL = 5


@config
class ExtractConfig:
    """An extraction.

    Attributes:
        sources: Files, folders and globs.
        output_dir: Gets the shards of documents and the manifest.
        engine: What finds the main text.
        min_characters: Pages with less main text give no document.
        documents_per_shard: Another file is begun after so many.
        workers: Processes; None: one for each core.
        extraction: For each page.
    """

    sources: tuple[Path, ...]
    output_dir: Path
    engine: Engine = "trafilatura"
    min_characters: Positive = 200
    documents_per_shard: Positive = 10_000
    workers: Positive | None = None
    extraction: ExtractionLimits = ExtractionLimits()


@config
class ExtractManifest:
    """What was extracted."""

    kind: Literal["extract"] = "extract"
    fingerprint: str
    inputs: dict[str, str]
    counts: dict[str, int]
    files: dict[str, FileRecord]
    about: ExtractConfig
    format_version: Literal[1] = 1
    groundup_version: str = __version__


def extract_files(config: ExtractConfig) -> OutcomeCounts:
    """Writes the documents of all pages of the sources, in order, and a manifest.

    Raises:
        DataError: A source is missing, damaged or holds no page.
    """
    if (config.output_dir / "manifest.json").exists():  # of another kind: not ours to write over
        read_manifest(config.output_dir / "manifest.json", ExtractManifest)
    files = find_page_files(config.sources)
    counts = OutcomeCounts()

    def count(page: WebPage, reason: str, detail: str) -> None:
        counts.add(Outcome(page.meta["origin"], reason, detail))

    total = sum(file.size_bytes for file in files)
    names: list[str] = []
    with Progress("extract", total, "B") as progress:
        documents = extract_documents(
            read_pages(files, on_file=lambda file: progress.add(file.size_bytes)),
            engine=config.engine,
            min_characters=config.min_characters,
            workers=number_of_workers(config.workers),
            limits=config.extraction,
            on_failure=count,
        )
        for number, shard in enumerate(_shards(documents, config.documents_per_shard)):
            names.append(f"documents-{number:05d}.jsonl.zst")
            compressor = zstandard.ZstdCompressor(level=_ZSTD_LEVEL, write_checksum=True)
            with (
                atomic_write(config.output_dir / names[-1]) as raw,
                compressor.stream_writer(raw, closefd=False) as out,
            ):
                for document in shard:
                    out.write(to_json_line(document))
                    counts.add(Outcome(document.id, DOCUMENT))
    if not counts.total:
        raise DataError("no page is in the files", where=", ".join(str(path) for path in config.sources))
    for stale in set(config.output_dir.glob("documents-*.jsonl.zst")) - {
        config.output_dir / name for name in names
    }:
        stale.unlink()
    inputs = {printable(file.path): f"{file.size_bytes} bytes, changed {file.mtime_ns} ns" for file in files}
    manifest = ExtractManifest(
        fingerprint=fingerprint({"engine": config.engine, "min": config.min_characters, "inputs": inputs}),
        inputs=inputs,
        counts={"pages": counts.total, **dict(sorted(counts.by_kind.items()))},
        files=describe_files(config.output_dir, names),
        about=config,
    )
    write_manifest(config.output_dir / "manifest.json", manifest)
    return counts


def find_page_files(sources: Sequence[Path]) -> list[SourceFile]:
    """The WARC and HTML files that files, folders and globs mean; of folders, hidden ones are passed over.

    Raises:
        DataError: A source is missing, or a folder holds none.
    """
    found: list[SourceFile] = []
    for source in sources:
        if not source.is_dir():
            found += find_source_files([source])
            continue
        paths = sorted(
            path for path in source.rglob("*") if content_ending(path) in HTML_ENDINGS | WARC_ENDINGS
        )
        inside = [path for path in paths if path.is_file() and not _is_hidden(path.relative_to(source))]
        if not inside:
            raise DataError(
                "no WARC or HTML file in the folder",
                where=source,
                fix="Looked for *.warc, *.wet, *.html, *.htm and *.xhtml, each also with .gz or .zst.",
            )
        files = find_source_files(inside)
        found += [dataclasses.replace(file, name=_name_in(source, file.path)) for file in files]
    return found


def _name_in(folder: Path, path: Path) -> str:
    return path.relative_to(folder).as_posix().encode("utf-8", "replace").decode()


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def read_pages(
    files: Iterable[SourceFile], *, on_file: Callable[[SourceFile], None] = lambda file: None
) -> Iterator[WebPage]:
    """The pages of files, in order, each with its ``origin`` in ``meta``; ``on_file`` gets each file."""
    for file in files:
        if content_ending(file.path) in WARC_ENDINGS:
            yield from read_warc(file.path)
        else:
            yield read_html(file)
        on_file(file)


def extract_documents(
    pages: Iterable[WebPage],
    *,
    engine: Engine,
    min_characters: int,
    workers: int,
    limits: ExtractionLimits,
    on_failure: Callable[[WebPage, str, str], None],
) -> Iterator[Document]:
    """The documents of pages, in order, whatever the number of workers.

    Args:
        pages: Read lazily, four ahead for each worker.
        engine: What finds the main text.
        min_characters: Less is no document.
        workers: Processes.
        limits: For each page.
        on_failure: Told of a page without document, with a short reason and a detail.
    """
    require_engine(engine)
    extract = functools.partial(extract_document, engine=engine)
    pool = ExtractionPool(extract, workers, limits, preload=(engine,))
    threads = concurrent.futures.ThreadPoolExecutor(workers, thread_name_prefix="extract")
    waiting: collections.deque[tuple[WebPage, concurrent.futures.Future[Document]]] = collections.deque()

    def received() -> Iterator[Document]:
        page, future = waiting.popleft()
        try:
            document = future.result()
        except ExtractionFailure as failure:
            on_failure(page, failure.reason, failure.detail)
            return
        if len(document.text) < min_characters:
            on_failure(page, "no main text", f"{len(document.text)} characters")
            return
        yield document

    with pool, threads:
        for page in pages:
            if len(waiting) >= _PAGES_AHEAD * workers:
                yield from received()
            waiting.append((page, threads.submit(pool, page)))
        while waiting:
            yield from received()


def _shards(documents: Iterator[Document], size: int) -> Iterator[Iterator[Document]]:
    """The documents in runs of a size; each is to be used up before the next."""
    for first in documents:
        yield _run(first, documents, size)


def _run(first: Document, rest: Iterator[Document], size: int) -> Iterator[Document]:
    yield first
    for _, document in zip(range(size - 1), rest, strict=False):
        yield document
