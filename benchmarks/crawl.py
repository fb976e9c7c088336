"""Crawls: pages/s fetched on one core from a server on this machine; with extraction, against the library.

Two comparisons, each in interleaved rounds of processes of their own. Fetching: ``groundup corpus crawl
--engine none`` bound to one core, every page kept as WARC and journalled, against a bare loop of aiohttp that
keeps nothing. Extraction: a crawl with two workers, from start-up to the manifest, against trafilatura alone
over the same pages in a pool of two processes, which reads them from memory. The server takes CPU time too,
of the same cores. CPU seconds are those of the contender, without the server. Writes
``results/crawl.json`` and ``results/crawl.md``.

    python benchmarks/crawl.py --pages FOLDER_OF_WEB_HTML
"""

import argparse
import asyncio
import ctypes
import datetime
import gzip
import json
import multiprocessing
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from processes import describe_machine, run_process

RESULTS_DIR = Path(__file__).parent / "results"
CONNECTIONS = 64
_PR_SET_CHILD_SUBREAPER = 36


def load_pages(folder: Path) -> list[bytes]:
    """The bodies of the real pages."""
    rows = gzip.decompress((folder / "manifest.jsonl.gz").read_bytes()).splitlines()
    return [gzip.decompress((folder / json.loads(row)["file"]).read_bytes()) for row in rows]


def serve(folder: Path) -> None:
    """Serves the pages, and one of 10 KB under /small/, until killed; prints the port."""
    from aiohttp import web

    bodies = load_pages(folder)
    small = (b"<html><head><title>Small</title></head><body>" + b"<p>A paragraph of some words.</p>" * 300)[
        :10_000
    ]

    async def answer(request: web.Request) -> web.Response:
        if request.path == "/robots.txt":
            raise web.HTTPNotFound
        _, kind, number = request.path.split("/")
        return web.Response(
            body=small if kind == "small" else bodies[int(number) % len(bodies)], content_type="text/html"
        )

    async def run() -> None:
        app = web.Application()
        app.router.add_get("/{path:.*}", answer)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, backlog=1024).start()
        print(runner.addresses[0][1], flush=True)
        await asyncio.sleep(3600)

    import uvloop

    uvloop.run(run())


def fetch_bare(urls: list[str]) -> None:
    """What aiohttp does without us: the pages are fetched and forgotten."""
    import aiohttp
    import uvloop

    async def run() -> None:
        waiting = iter(urls)

        async def fetch_some(session: aiohttp.ClientSession) -> None:
            for url in waiting:
                async with session.get(url) as response:
                    await response.read()

        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            await asyncio.gather(*(fetch_some(session) for _ in range(CONNECTIONS)))

    uvloop.run(run())


def extract_alone(body: bytes) -> int:
    """Trafilatura as it is used without us; the length of what it finds."""
    import trafilatura

    return len(trafilatura.extract(body, fast=True, include_comments=False) or "")


def extract_in_two_processes(folder: Path, num_pages: int) -> None:
    """The baseline of the second comparison."""
    bodies = load_pages(folder)
    with multiprocessing.get_context("fork").Pool(2) as pool:
        pages = (bodies[number % len(bodies)] for number in range(num_pages))
        print(sum(length > 0 for length in pool.imap_unordered(extract_alone, pages, chunksize=4)))


def cpu_seconds_of_children() -> float:
    """Of all processes that this one started and that have ended, and of theirs."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def adopt_orphans() -> None:
    """Makes processes that outlive their parent, as the one that forks workers does, children of this one."""
    if ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        sys.exit("the system does not hand orphans over: CPU time would be missing")


def wait_for_orphans() -> None:
    """Until those of the last contender have ended; they do at once, when they see that it has."""
    time.sleep(1)
    while os.waitpid(-1, os.WNOHANG)[0]:
        pass


def measure(
    folder: Path, port: int, rounds: int, num_small: int, num_pages: int
) -> dict[str, dict[str, list[list[float]]]]:
    """Seconds, and CPU seconds, of each contender in each round."""
    groundup = [sys.executable, "-m", "groundup", "corpus", "crawl"]
    options = ["--allow-host", "127.0.0.1", "--host-delay", "0", "--host-connections", str(CONNECTIONS)]
    one_core = ["taskset", "-c", str(min(os.sched_getaffinity(0)))]
    this = [sys.executable, str(Path(__file__).resolve()), "--pages", str(folder)]
    seconds: dict[str, dict[str, list[list[float]]]] = {"fetch": {}, "extract": {}}
    with tempfile.TemporaryDirectory() as scratch:
        small, real = Path(scratch) / "small.txt", Path(scratch) / "real.txt"
        small.write_text("".join(f"http://127.0.0.1:{port}/small/{number}\n" for number in range(num_small)))
        real.write_text("".join(f"http://127.0.0.1:{port}/real/{number}\n" for number in range(num_pages)))
        for number in range(rounds):
            out = Path(scratch) / f"out{number}"
            crawl_small = [
                *groundup,
                str(small),
                "--out",
                f"{out}a",
                "--engine",
                "none",
                "--min-characters",
                "1",
            ]
            crawl_real = [*groundup, str(real), "--out", f"{out}b", "--workers", "2", "--min-characters", "1"]
            contenders = {
                ("fetch", "groundup corpus crawl, pages kept"): [*one_core, *crawl_small, *options],
                ("fetch", "aiohttp alone, nothing kept"): [*one_core, *this, "--fetch-bare", str(small)],
                ("extract", "groundup corpus crawl, two workers"): [*crawl_real, *options],
                ("extract", "trafilatura alone, two processes"): [*this, "--extract-alone", str(num_pages)],
            }
            for (comparison, name), command in contenders.items():
                began, cpu_before = time.perf_counter(), cpu_seconds_of_children()
                run_process(command)
                clock = time.perf_counter() - began
                wait_for_orphans()
                spent = [clock, cpu_seconds_of_children() - cpu_before]
                seconds[comparison].setdefault(name, []).append(spent)
                print(f"round {number + 1}, {name}: {spent[0]:.2f} s, CPU {spent[1]:.2f} s", file=sys.stderr)
    return seconds


def render(result: dict[str, Any]) -> str:
    """The Markdown report."""
    lines = ["# Crawls", "", f"Measured on {result['date']}, {result['rounds']} interleaved rounds, medians."]
    if result["load"] > 1:
        lines.append(
            f"**The machine was busy**: a load average of {result['load']:.0f} on"
            f" {result['machine']['cores']} cores before the first round. Rates by the clock are far below"
            " what it does alone; CPU seconds and ratios mean more."
        )
    lines += ["", *(f"- {name}: {value}" for name, value in result["machine"].items()), ""]
    captions = {
        "fetch": f"{result['small_pages']:,} pages of 10 KB, on one core, from start-up to the last byte.",
        "extract": f"{result['real_pages']:,} real pages (the same ones again and again), start-up included;"
        " the crawl also fetches, decodes, compresses and journals them.",
    }
    for comparison, caption in captions.items():
        lines += [f"## {comparison.capitalize()}", "", caption, ""]
        lines += ["| | seconds | range | pages/s | CPU seconds | pages/CPU s | groundup's speed, by CPU |"]
        lines += ["|---|---|---|---|---|---|---|"]
        size = result["small_pages"] if comparison == "fetch" else result["real_pages"]
        rows = result["seconds"][comparison]
        first = next(iter(rows.values()))
        for name, found in rows.items():
            clock, cpu = (
                statistics.median(
                    theirs[place] / ours[place] for theirs, ours in zip(found, first, strict=True)
                )
                for place in (0, 1)
            )
            lines.append(f"| {name} | {timed(found, size)} | {clock:.2f}x, {cpu:.2f}x |")
        lines.append("")
    return "\n".join(lines)


def timed(found: list[list[float]], num_pages: int) -> str:
    """Five cells of a row: medians by the clock with their range, and by CPU time."""
    clock, cpu = (statistics.median(spent[place] for spent in found) for place in (0, 1))
    low, high = (limit(spent[0] for spent in found) for limit in (min, max))
    return f"{clock:.2f} | {low:.2f}-{high:.2f} | {num_pages / clock:.0f} | {cpu:.2f} | {num_pages / cpu:.0f}"


def main() -> None:
    """Measures and writes the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pages", type=Path, required=True, help="folder with manifest.jsonl.gz and pages/")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--small-pages", type=int, default=10_000)
    parser.add_argument("--real-pages", type=int, default=1_000)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--fetch-bare", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--extract-alone", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--results-dir", type=Path, default=RESULTS_DIR)
    arguments = parser.parse_args()
    if arguments.serve:
        return serve(arguments.pages)
    if arguments.fetch_bare:
        return fetch_bare(arguments.fetch_bare.read_text().split())
    if arguments.extract_alone:
        return extract_in_two_processes(arguments.pages, arguments.extract_alone)
    command = [sys.executable, __file__, "--pages", str(arguments.pages), "--serve"]
    load = os.getloadavg()[0]
    adopt_orphans()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        try:
            seconds = measure(
                arguments.pages, port, arguments.rounds, arguments.small_pages, arguments.real_pages
            )
        finally:
            server.kill()
    result = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": describe_machine("aiohttp", "uvloop", "fastwarc", "trafilatura"),
        "load": load,
        "rounds": arguments.rounds,
        "small_pages": arguments.small_pages,
        "real_pages": arguments.real_pages,
        "seconds": seconds,
    }
    arguments.results_dir.mkdir(parents=True, exist_ok=True)
    (arguments.results_dir / "crawl.json").write_text(json.dumps(result, indent=2) + "\n")
    report = render(result)
    (arguments.results_dir / "crawl.md").write_text(report)
    print(report)
    return None


if __name__ == "__main__":
    main()
