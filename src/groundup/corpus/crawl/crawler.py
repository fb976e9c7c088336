"""A crawl: from a list of URLs to a folder of documents with a manifest."""

import asyncio
import contextlib
import functools
from collections.abc import Iterator
from typing import Any, Literal

from groundup import __version__
from groundup.core.config_class import config
from groundup.core.errors import DataError
from groundup.core.executor.local import number_of_workers
from groundup.core.folder_lock import locked_folder
from groundup.core.log import logger
from groundup.core.manifest import FileRecord, describe_files, fingerprint, write_manifest
from groundup.core.progress import Progress
from groundup.corpus.crawl.crawl_config import CrawlConfig
from groundup.corpus.crawl.crawl_loop import CrawlLoop, urls_of
from groundup.corpus.crawl.journal import Journal
from groundup.corpus.extraction.main_text import extract_document, require_engine
from groundup.corpus.extraction.worker_pool import Extract, ExtractionPool
from groundup.corpus.page_outcomes import OutcomeCounts


@config
class CrawlManifest:
    """What a crawl holds."""

    kind: Literal["crawl"] = "crawl"
    fingerprint: str
    inputs: dict[str, str]
    counts: dict[str, int]
    files: dict[str, FileRecord]
    about: CrawlConfig
    format_version: Literal[1] = 1
    groundup_version: str = __version__


def crawl(config: CrawlConfig) -> OutcomeCounts:
    """Fetches every URL of the list that has not ended in an earlier run, and writes the manifest.

    Documents go to ``documents-00000.jsonl.zst`` and so on, raw pages to ``warc/``. Killed at any instant, a
    crawl loses what was in flight; the same again goes on.

    Raises:
        DataError: The list is missing or holds no line, or a file of the folder is damaged.
        ConfigError: The folder was begun with other settings.
        MachineError: Another process works in the folder.
    """
    if not config.urls.is_file():
        raise DataError("no such file", where=config.urls, fix="`groundup corpus urls` writes such a list.")
    total = sum(1 for _ in urls_of(config.urls))
    if not total:
        raise DataError("no line holds a URL: all are blank or comments", where=config.urls)
    with locked_folder(config.output_dir / ".crawl", doing="crawling"):
        journal = Journal(
            config.output_dir,
            dict(config.decisive),
            documents_per_shard=config.documents_per_shard,
            retry=config.retry_failed,
        )
        if journal.counts.total:
            logger.info("%s: %s URLs have ended already", config.output_dir, f"{journal.counts.total:,}")
        is_complete = False
        try:
            rest = max(0, total - journal.counts.total)
            with _extraction(config) as extract, Progress("crawl", rest, "URLs") as progress:
                _run(CrawlLoop(config, journal, extract, progress).run())
                is_complete = True
        finally:
            journal.close(complete=is_complete)
        _write_manifest(config, journal)
    return journal.counts


def _run(crawl: Any) -> None:
    """On uvloop where it is installed."""
    try:
        import uvloop
    except ModuleNotFoundError:
        asyncio.run(crawl)
        return
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(crawl)


@contextlib.contextmanager
def _extraction(config: CrawlConfig) -> Iterator[Extract | None]:
    if config.engine == "none":
        yield None
        return
    require_engine(config.engine)
    extract = functools.partial(extract_document, engine=config.engine)
    workers = number_of_workers(config.workers)
    with ExtractionPool(extract, workers, config.extraction, preload=(config.engine,)) as pool:
        yield pool


def _write_manifest(config: CrawlConfig, journal: Journal) -> None:
    status = config.urls.stat()
    inputs = {ascii(str(config.urls))[1:-1]: f"{status.st_size} bytes, changed {status.st_mtime_ns} ns"}
    manifest = CrawlManifest(
        fingerprint=fingerprint({"settings": config.decisive, "inputs": inputs}),
        inputs=inputs,
        counts={"urls": journal.counts.total, **dict(sorted(journal.counts.by_kind.items()))},
        files=describe_files(config.output_dir, journal.files()),
        about=config,
    )
    write_manifest(config.output_dir / "manifest.json", manifest)
