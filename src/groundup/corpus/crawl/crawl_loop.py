"""The loop of a crawl: URLs through the frontier, the fetcher and the extraction into the journal."""

import asyncio
import concurrent.futures
import datetime
import functools
import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from groundup.core.compressed import open_decompressed
from groundup.core.executor.local import number_of_workers
from groundup.core.log import logger
from groundup.core.progress import Progress
from groundup.corpus.crawl.crawl_config import CrawlConfig
from groundup.corpus.crawl.fetcher import Fetcher, FetchFailure, Response
from groundup.corpus.crawl.frontier import Frontier, Visit, host_of
from groundup.corpus.crawl.journal import Journal
from groundup.corpus.crawl.robots import RobotRules, fetch_rules, origin_of
from groundup.corpus.digest_set import digests
from groundup.corpus.document import Document, to_json_line
from groundup.corpus.extraction.limits import ExtractionFailure
from groundup.corpus.extraction.main_text import WebPage
from groundup.corpus.extraction.worker_pool import Extract
from groundup.corpus.page_outcomes import DOCUMENT, OF_HOST, RAW_PAGE, TRANSIENT, Outcome
from groundup.corpus.url_list import url_lines
from groundup.corpus.warc import page_record

_FLUSH_SECONDS = 1.0
_FLUSH_BYTES = 64 << 20
_READ_AT_ONCE = 2048
_MAX_CRAWL_DELAY_S = 60.0


def urls_of(path: Path) -> Iterator[str]:
    """The URLs of a list, without blank lines and comments."""
    with open_decompressed(path) as stream:
        yield from url_lines(stream, is_json=False)


class CrawlLoop:
    """One run, in an event loop."""

    def __init__(
        self, config: CrawlConfig, journal: Journal, extract: Extract | None, progress: Progress
    ) -> None:
        self._config = config
        self._limits = config.limits
        self._journal = journal
        self._extract = extract
        self._progress = progress
        self._slots = asyncio.Semaphore(config.connections)
        threads = number_of_workers(config.workers)
        self._threads = concurrent.futures.ThreadPoolExecutor(threads, thread_name_prefix="extract")
        self._frontier = Frontier(host_connections=config.host_connections, host_delay_s=config.host_delay_s)

    async def run(self) -> None:
        """Returns when every URL has ended."""
        try:
            async with Fetcher(self._config) as self._fetcher, asyncio.TaskGroup() as group:
                flusher = group.create_task(self._flush_regularly())
                group.create_task(self._feed())
                while True:
                    await self._slots.acquire()
                    if (visit := await self._frontier.next()) is None:
                        break
                    group.create_task(self._visit(visit))
                for _ in range(1, self._config.connections):  # those whose pages are being extracted
                    await self._slots.acquire()
                flusher.cancel()
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None  # the first; the others were cancelled
        finally:
            self._threads.shutdown(wait=True, cancel_futures=True)

    async def _flush_regularly(self) -> None:
        while True:
            for _ in range(10):
                await asyncio.sleep(_FLUSH_SECONDS / 10)
                if self._journal.buffered_bytes > _FLUSH_BYTES:
                    break
            await asyncio.shield(asyncio.to_thread(self._journal.flush))

    async def _feed(self) -> None:
        """Gives the frontier the list; again and again while hosts had more URLs than there was room for."""
        is_left = True
        while is_left:
            is_left = False
            lines = urls_of(self._config.urls)
            while batch := list(itertools.islice(lines, _READ_AT_ONCE)):
                keys = digests(batch)
                known = self._journal.done.contains(keys).tolist()
                entered: set[int] = set()
                for url, key, is_known in zip(batch, keys.tolist(), known, strict=True):
                    if is_known or key in entered:
                        continue
                    if self._enter(url):
                        entered.add(key)
                    else:
                        is_left = True
                self._journal.done.add(np.fromiter(entered, dtype=np.uint64))
                if self._frontier.is_full:
                    await self._frontier.wait_for_room()
                await asyncio.sleep(0)
            await self._frontier.wait_for_refused()
        self._frontier.close()

    def _enter(self, url: str) -> bool:
        """Queues a URL; False where there is no room for it yet."""
        try:
            host = host_of(url)
        except ValueError:
            host = ""
        if not host or not url.lower().startswith(("http://", "https://")):
            self._end(Outcome(url, "malformed URL"))
            return True
        return self._frontier.add(Visit(url, url, host))

    def _end(self, outcome: Outcome, document: bytes = b"", page: bytes = b"") -> None:
        self._journal.add(outcome, document, page)
        counts = self._journal.counts.by_kind
        self._progress.add(1, f"documents {counts[DOCUMENT]:,}" if self._extract else "")

    async def _visit(self, visit: Visit) -> None:
        """One request of a visit, and all that follows from it."""
        host = visit.host
        began = asyncio.get_running_loop().time()
        try:
            try:
                try:
                    response = await self._request(visit)
                finally:
                    visit.seconds += asyncio.get_running_loop().time() - began
                self._frontier[host].failures = 0
                target = response.location
                if target:
                    self._follow(visit, target)
            except FetchFailure as failure:
                self._failed(visit, host, failure)
                return
            finally:
                self._frontier.release(host)
            if not target:
                self._frontier.end()
                await self._keep(visit, response)
        finally:
            self._slots.release()

    async def _request(self, visit: Visit) -> Response:
        host = self._frontier[visit.host]
        if host.given_up:
            raise FetchFailure("host given up")
        clock = asyncio.get_running_loop().time
        deadline = clock() + self._limits.seconds - visit.seconds
        if self._config.obey_robots:
            rules = await self._rules(visit, deadline - clock())
            if not rules.allows(visit.target):
                raise FetchFailure("forbidden by robots.txt")
            host.delay_s = max(host.delay_s, min(rules.crawl_delay_s, _MAX_CRAWL_DELAY_S))
        return await self._fetcher.page(visit.target, seconds=deadline - clock())

    async def _rules(self, visit: Visit, seconds: float) -> RobotRules:
        """The rules of a visit's target; fetched once for all visits of an origin."""
        origin = origin_of(visit.target)
        known = self._frontier[visit.host].rules
        found = known.get(origin)
        if found is None:
            coroutine = fetch_rules(self._fetcher, origin, self._config.user_agent, seconds=seconds)
            found = known[origin] = asyncio.create_task(coroutine)
        if isinstance(found, RobotRules):
            return found
        try:
            rules = await asyncio.shield(found)  # others wait for it too
        except FetchFailure:
            known.pop(origin, None)
            raise
        known[origin] = rules
        return rules

    def _follow(self, visit: Visit, target: str) -> None:
        """Another request of the visit, in the queue of the host that a redirect names."""
        if visit.redirects >= self._limits.redirects:
            raise FetchFailure("too many redirects", target[:200])
        visit.redirects += 1
        visit.lead_to(target)
        self._frontier.put_back(visit)

    def _failed(self, visit: Visit, name: str, failure: FetchFailure) -> None:
        """Tries again later, or ends the visit."""
        host = self._frontier[name]
        pause = self._limits.first_pause_s * 2**visit.attempts
        if failure.retry_after_s is not None:
            pause = max(pause, failure.retry_after_s)
        is_too_long = pause > self._limits.longest_pause_s
        if failure.kind in TRANSIENT and not host.given_up:
            if visit.attempts < self._limits.retries and not is_too_long:
                visit.attempts += 1
                visit.seconds = 0.0
                self._frontier.pause(name, pause)
                self._frontier.put_back(visit)
                return
            host.failures += failure.kind in OF_HOST
            if is_too_long or host.failures >= self._limits.host_failures:
                logger.info("%s is given up: %s (%s)", name, failure.kind, failure.detail)
                host.given_up = True
        detail = failure.detail
        if visit.target != visit.url and visit.target not in detail:
            detail = f"{detail}, at {visit.target}".removeprefix(", ")[:300]
        self._end(Outcome(visit.url, failure.kind, detail, failure.status, seconds=round(visit.seconds, 3)))
        self._frontier.end()

    async def _keep(self, visit: Visit, response: Response) -> None:
        """Extracts the page and writes what is wanted of it."""
        final = response.url if response.url != visit.url else ""
        ended = functools.partial(
            Outcome, visit.url, status=response.status, final_url=final, seconds=round(visit.seconds, 3)
        )
        now = datetime.datetime.now(datetime.UTC)
        work = functools.partial(self._process, visit, response, now)
        try:
            document, raw = await asyncio.get_running_loop().run_in_executor(self._threads, work)
        except ExtractionFailure as failure:
            self._end(ended(failure.reason, failure.detail))
            return
        if document is None:
            self._end(ended(RAW_PAGE), page=raw)
        elif len(document.text) < self._config.min_characters:
            self._end(ended("no main text", f"{len(document.text)} characters"), page=raw)
        else:
            self._end(ended(DOCUMENT), to_json_line(document), raw)

    def _process(
        self, visit: Visit, response: Response, now: datetime.datetime
    ) -> tuple[Document | None, bytes]:
        """The page's document and WARC record; runs in a thread."""
        raw = b""
        if self._config.keep_warc or self._extract is None:
            raw = page_record(response.url, response.status, response.raw_headers, response.body, now)
        if self._extract is None:
            return None, raw
        seconds = round(visit.seconds, 3)
        meta = {"status": response.status, "fetched": now.isoformat(timespec="seconds"), "seconds": seconds}
        content_type = response.headers.get("Content-Type", "")
        page = WebPage(visit.url, response.url, response.body, content_type, meta)
        return self._extract(page), raw
