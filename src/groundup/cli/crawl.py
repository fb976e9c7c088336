"""``groundup corpus crawl``: from URLs to documents."""

import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from groundup.core.config import from_dict
from groundup.corpus.crawl.crawl_config import USER_AGENT, CrawlConfig

_FLAGS = {
    "output_dir": "--out",
    "keep_warc": "--warc",
    "host_delay_s": "--host-delay",
    "allow_hosts": "--allow-host",
    "limits.seconds": "--time-limit",
    "limits.page_bytes": "--max-bytes",
    "limits.redirects": "--redirects",
    "limits.retries": "--retries",
    "host_connections": "--host-connections",
    "min_characters": "--min-characters",
    "documents_per_shard": "--documents-per-shard",
    **{name: f"--{name}" for name in ("connections", "workers", "mirror")},
}


def crawl(
    urls: Path,
    *,
    out: Annotated[Path, Parameter(alias="-o")],
    engine: Literal["trafilatura", "resiliparse", "none"] = "trafilatura",
    warc: bool = False,
    user_agent: str = USER_AGENT,
    connections: int = 100,
    host_connections: int = 2,
    host_delay: float = 1.0,
    time_limit: float = 30.0,
    max_bytes: int = 10_000_000,
    redirects: int = 5,
    retries: int = 2,
    retry_failed: bool = False,
    robots: bool = True,
    allow_host: tuple[str, ...] = (),
    mirror: str = "",
    min_characters: int = 200,
    documents_per_shard: int = 10_000,
    workers: int | None = None,
) -> None:
    """Fetch a list of URLs and keep the main text of each page as a document.

    Polite: obeys robots.txt with its Crawl-delay, and Retry-After, and keeps a pace for each host. Bounded: a
    wall-clock limit, a size limit and few redirects for each URL, and no address of a private network. Killed
    at any instant, it loses what was in flight: the same command goes on, and fetches only the rest.

    Writes DIR/documents-00000.jsonl.zst and so on, DIR/warc/ on request, DIR/manifest.json at the end, and
    prints how many URLs ended how.

    For example:

        groundup corpus crawl urls.txt --out pages --user-agent "mylab-crawler (+https://example.com/crawler)"
        groundup corpus crawl urls.txt -o pages --retry-failed
        groundup corpus crawl urls.txt -o raw --engine none

    Args:
        urls: One URL a line, as `groundup corpus urls` writes it; also .gz or .zst. Shuffle it, so that hosts
            are spread over it.
        out: The folder to write.
        engine: What finds the main text: trafilatura, or resiliparse, 8 times as fast and less exact; none
            keeps raw pages only.
        warc: Keep pages as served too, as DIR/warc/pages-00000.warc.gz.
        user_agent: Names you to servers; their robots.txt may name it. Add where you can be reached.
        connections: Open at once, in all.
        host_connections: Open at once to one host.
        host_delay: Seconds between two requests to a host; a longer Crawl-delay of its robots.txt wins.
        time_limit: Seconds for a URL in all, redirects included, from the look-up to the last byte.
        max_bytes: Give up longer pages; of the decompressed page.
        redirects: Follow at most so many for a URL.
        retries: Try again after a failure that may pass, such as a broken connection, 429 or 5xx.
        retry_failed: Fetch again what failed so in earlier runs.
        robots: Obey robots.txt; --no-robots is for servers of your own.
        allow_host: A name or an address that may be in a private network; give it once for each.
        mirror: host:port of a server that is asked for all of them instead, told by the Host header.
        min_characters: Shorter texts are no document.
        documents_per_shard: Begin another file after so many.
        workers: Processes that extract; one for each core unless given.
    """
    tree = {
        "urls": urls,
        "output_dir": out,
        "engine": engine,
        "keep_warc": warc,
        "user_agent": user_agent,
        "connections": connections,
        "host_connections": host_connections,
        "host_delay_s": host_delay,
        "obey_robots": robots,
        "allow_hosts": allow_host,
        "mirror": mirror,
        "min_characters": min_characters,
        "retry_failed": retry_failed,
        "documents_per_shard": documents_per_shard,
        "workers": workers,
        "limits": {
            "seconds": time_limit,
            "page_bytes": max_bytes,
            "redirects": redirects,
            "retries": retries,
        },
    }
    from groundup.corpus.crawl.crawler import crawl as run_crawl

    counts = run_crawl(from_dict(CrawlConfig, tree, where="command line", names=_FLAGS))
    sys.stdout.write(f"{counts.table()}\n\n{out}\n")
