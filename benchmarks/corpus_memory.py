"""Near-duplicates among millions of short synthetic documents, within --memory: time and peak of memory.

Documents are 20 to 40 words of a made-up vocabulary. A tenth of them are copies, in another file, of which
the last word differs: a Jaccard similarity of 0.88 to 0.95. The command's own process and all below it are
looked at ten times a second. Writes ``results/corpus_memory.json`` and ``.md``.

    python benchmarks/corpus_memory.py --documents 10000000 --memory 2G
"""

import argparse
import datetime
import json
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import zstandard
from processes import describe_machine

RESULTS_DIR = Path(__file__).parent / "results"
VOCABULARY = 1 << 16
PER_FILE = 250_000
WORDS = (20, 40)
COPIED = 10  # one of so many documents is a copy
_SECONDS = 0.1
_PHASE = re.compile(r"^\S+ (.+): \S+ in \S+ \(")

Numbers = npt.NDArray[np.int64]


def write_documents(folder: Path, count: int) -> dict[str, int]:
    """Writes files of JSONL; returns how many documents, copies and bytes of text."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(2, 10, VOCABULARY)
    letters = rng.integers(ord("a"), ord("z") + 1, (VOCABULARY, 10), dtype=np.uint8)
    letters[np.arange(VOCABULARY), lengths] = ord(" ")
    is_of_word = np.arange(10) <= lengths[:, None]
    total = {"documents": 0, "copies": 0, "bytes": 0}
    before: tuple[Numbers, Numbers] | None = None
    for first in range(0, count, PER_FILE):
        sizes, words, copies = _draw(rng, min(PER_FILE, count - first), before)
        before = sizes, words
        text = letters[words][is_of_word[words]].tobytes()
        ends = np.cumsum(lengths[words] + 1)[np.cumsum(sizes) - 1].tolist()
        begins = [0, *ends[:-1]]
        lines = [
            b'{"id":"%d","text":"%s"}\n' % (first + number, text[begin : end - 1])
            for number, (begin, end) in enumerate(zip(begins, ends, strict=True))
        ]
        path = folder / f"{first // PER_FILE:05d}.jsonl.zst"
        path.write_bytes(zstandard.ZstdCompressor(level=1).compress(b"".join(lines)))
        total["documents"] += len(lines)
        total["copies"] += copies
        total["bytes"] += len(text) - len(lines)
    return total


def _draw(
    rng: np.random.Generator, count: int, before: tuple[Numbers, Numbers] | None
) -> tuple[Numbers, Numbers, int]:
    """The sizes of documents, their words one behind the other, and how many are copies from before."""
    sizes = rng.integers(WORDS[0], WORDS[1] + 1, count)
    copies = np.arange(COPIED - 1, count, COPIED) if before is not None else np.zeros(0, np.int64)
    if before is not None:
        sizes[copies] = before[0][copies - 1]
    words = (VOCABULARY * rng.random(int(sizes.sum())) ** 2).astype(np.int64)
    ends = np.cumsum(sizes)
    if before is not None and len(copies):
        ends_before = np.cumsum(before[0])
        kept = sizes[copies] - 1  # all but the last word
        offsets = np.arange(kept.sum()) - np.repeat(np.cumsum(kept) - kept, kept)
        to = np.repeat((ends - sizes)[copies], kept) + offsets
        words[to] = before[1][np.repeat((ends_before - before[0])[copies - 1], kept) + offsets]
    return sizes, words, len(copies)


def watch(process: subprocess.Popen[str]) -> dict[str, int]:
    """The highest sums over a process and all below it, until it ends, in bytes."""
    peak = {"Pss": 0, "Rss": 0}
    while process.poll() is None:
        sums = {"Pss": 0, "Rss": 0}
        for pid in _below(process.pid):
            try:
                rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
            except OSError:  # it has ended
                continue
            for name in sums:
                found = re.search(rf"^{name}:\s+(\d+) kB", rollup, re.MULTILINE)
                sums[name] += 1024 * int(found[1]) if found else 0
        peak = {name: max(peak[name], sums[name]) for name in peak}
        time.sleep(_SECONDS)
    return peak


def _below(pid: int) -> Iterator[int]:
    yield pid
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return
    for child in children:
        yield from _below(int(child))


def measure(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """One run of the command."""
    source = folder / "source"
    source.mkdir()
    began = time.perf_counter()
    written = write_documents(source, arguments.documents)
    print(f"{written} in {time.perf_counter() - began:.0f} s", file=sys.stderr)
    command = [sys.executable, "-m", "groundup", "corpus", "dedup", str(source), "-o", str(folder / "out")]
    command += ["--memory", arguments.memory, "--workers", str(arguments.workers)]
    log = folder / "log.txt"
    began = time.perf_counter()
    with log.open("w") as stderr:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=stderr, text=True)
        peak = watch(process)
    seconds = time.perf_counter() - began
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    if process.returncode:
        sys.exit(log.read_text()[-3000:])
    phases = [line.split(" ", 1)[1] for line in log.read_text().splitlines() if _PHASE.match(line)]
    kept = json.loads((folder / "out" / "manifest.json").read_text())["counts"]["documents"]
    disk = sum(path.stat().st_size for path in source.iterdir())
    dropped = written["documents"] - kept
    return {
        **written,
        "source_bytes": disk,
        "dropped": dropped,
        "seconds": seconds,
        "cpu_seconds": usage.ru_utime + usage.ru_stime,
        "phases": phases,
        "peak": peak,
    }


def report(results: dict[str, Any]) -> str:
    """The results as Markdown."""
    found, peak = results["measured"], results["measured"]["peak"]
    lines = ["# Near-duplicates within --memory", "", f"Measured on {results['date']}, one run.", ""]
    lines += [f"- {name}: {value}" for name, value in results["machine"].items()]
    lines += [
        "",
        f"{found['documents']:,} synthetic documents of {WORDS[0]} to {WORDS[1]} words"
        f" ({found['bytes'] / 1e9:.2f} GB of text), of which {found['copies']:,} are copies with another last"
        f" word: `groundup corpus dedup --memory {results['memory']} --workers {results['workers']}`.",
        "",
        "| | |",
        "|---|---|",
        f"| peak of all processes, sum of PSS | {peak['Pss'] / 1e9:.2f} GB |",
        f"| the same, sum of RSS (shared pages count for each) | {peak['Rss'] / 1e9:.2f} GB |",
        f"| time | {found['seconds']:.0f} s, {found['documents'] / found['seconds']:,.0f} documents/s |",
        f"| CPU seconds of all processes | {found['cpu_seconds']:.0f} |",
        f"| dropped | {found['dropped']:,}, {found['dropped'] / max(1, found['copies']):.2%} of the copies |",
        "",
        "Phases, by the compressed bytes that they read:",
        "",
        *(f"- {phase}" for phase in found["phases"]),
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measures and writes the results."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--documents", type=int, default=10_000_000)
    parser.add_argument("--memory", default="2G")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--scratch", type=Path, help="needs about 0.7 KB a document")
    parser.add_argument("--results-dir", type=Path, default=RESULTS_DIR)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.scratch) as folder:
        measured = measure(arguments, Path(folder))
    results = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": describe_machine("numpy", "orjson", "zstandard"),
        "memory": arguments.memory,
        "workers": arguments.workers,
        "measured": measured,
    }
    arguments.results_dir.mkdir(parents=True, exist_ok=True)
    (arguments.results_dir / "corpus_memory.json").write_text(json.dumps(results, indent=1) + "\n")
    (arguments.results_dir / "corpus_memory.md").write_text(report(results))
    print(report(results))


if __name__ == "__main__":
    main()
