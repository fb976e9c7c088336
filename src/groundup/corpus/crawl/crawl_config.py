"""What can be chosen of a crawl."""

from pathlib import Path
from typing import Literal

from groundup import __version__
from groundup.core.config_class import NotNegative, NotNegativeFloat, Positive, PositiveFloat, config
from groundup.corpus.extraction.limits import ExtractionLimits

USER_AGENT = f"groundup-crawler/{__version__}"


@config
class FetchLimits:
    """What a URL may cost.

    Attributes:
        seconds: Of wall-clock time for one attempt, redirects included; waiting for its turn does not count.
        page_bytes: Of a page, decompressed; a longer one is given up.
        redirects: Followed for a URL.
        retries: After failures that may pass: time limit, broken connection, 429, 5xx.
        first_pause_s: Of a host after such a failure; doubled for each further attempt.
        longest_pause_s: Of a host; a Retry-After beyond it gives the URL up.
        host_failures: In a row, after which the rest of a host's URLs are given up.
    """

    seconds: PositiveFloat = 30.0
    page_bytes: Positive = 10_000_000
    redirects: NotNegative = 5
    retries: NotNegative = 2
    first_pause_s: NotNegativeFloat = 2.0
    longest_pause_s: NotNegativeFloat = 300.0
    host_failures: Positive = 10


@config
class CrawlConfig:
    """A crawl.

    Attributes:
        urls: The list, one URL a line, also .gz and .zst.
        output_dir: Gets the shards of documents, the journal and the manifest.
        engine: What extracts the main text; ``none`` keeps raw pages only.
        keep_warc: Keep pages as served too, as WARC.
        user_agent: Sent to servers, and matched with robots.txt; a contact in it spares others riddles.
        connections: Open at once.
        host_connections: To one host.
        host_delay_s: Between the starts of two requests to a host; a longer Crawl-delay in robots.txt wins.
        obey_robots: Whether robots.txt forbids.
        allow_hosts: Names or addresses that may be in a private network.
        mirror: ``host:port`` of an HTTP server that is asked for everything, by the Host header.
        min_characters: Pages with less main text give no document.
        retry_failed: Fetch again what failed in an earlier run for a reason that may have passed.
        documents_per_shard: A shard is complete from then on.
        workers: Processes that extract; None: one for each core.
        limits: For each URL.
        extraction: For each page.
    """

    urls: Path
    output_dir: Path
    engine: Literal["trafilatura", "resiliparse", "none"] = "trafilatura"
    keep_warc: bool = False
    user_agent: str = USER_AGENT
    connections: Positive = 100
    host_connections: Positive = 2
    host_delay_s: NotNegativeFloat = 1.0
    obey_robots: bool = True
    allow_hosts: tuple[str, ...] = ()
    mirror: str = ""
    min_characters: Positive = 200
    retry_failed: bool = False
    documents_per_shard: Positive = 10_000
    workers: Positive | None = None
    limits: FetchLimits = FetchLimits()
    extraction: ExtractionLimits = ExtractionLimits()

    @property
    def decisive(self) -> dict[str, object]:
        """The settings that decide what the documents hold: one folder has one of each."""
        return {
            "engine": self.engine,
            "keep_warc": self.keep_warc,
            "min_characters": self.min_characters,
            "page_bytes": self.limits.page_bytes,
        }
