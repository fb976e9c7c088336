"""Tokens: whole builds against bare tiktoken and datatrove; batches against nanoGPT's; seeks in huge data.

Builds run as processes of their own, from start-up to the last byte, one after the other in interleaved
rounds; a run waits until the CPU is idle. Writes ``results/tokens.json`` and ``results/tokens.md``.

    python benchmarks/tokens.py --corpus FOLDER_OF_JSONL_ZST --gpt2 FOLDER_WITH_VOCAB_AND_MERGES \
        --datatrove-python /elsewhere/bin/python
"""

import argparse
import datetime
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import zstandard
from processes import describe_machine, run_process, wait_for_idle_cpu

from groundup.tokens.dataset.indexed_writer import IndexedWriter
from groundup.tokens.sampling.data_config import DataConfig
from groundup.tokens.sampling.megatron_order import megatron_order
from groundup.tokens.sampling.splits import open_splits
from groundup.tokens.tokenizer.load_tokenizer import load_gpt2_files

BENCHMARKS_DIR = Path(__file__).parent
RESULTS_DIR = BENCHMARKS_DIR / "results"
SEQUENCE_LENGTH = 1024
BATCH_SIZE = 512
_SEEK = """
import json, pathlib, sys, time
began = time.perf_counter()
from groundup.tokens.sampling.data_config import DataConfig
from groundup.tokens.sampling.splits import open_splits
imported = time.perf_counter()
train = open_splits(DataConfig(path=pathlib.Path(sys.argv[1]), split="1"), seed=1).train
opened = time.perf_counter()
train.batch(0, 512)
first = time.perf_counter()
train.batch(int(sys.argv[2]) * 512, 512)
print(json.dumps({"samples": train.num_samples, "import": imported - began, "open": opened - imported,
                  "first batch": first - opened, "batch of a later step": time.perf_counter() - first}))
"""


def measure_builds(arguments: argparse.Namespace, folder: Path) -> dict[str, list[float]]:
    """Seconds of each contender's whole build in each round."""
    files = sorted(str(path) for path in arguments.corpus.glob("*.jsonl.zst"))
    vocab, merges = str(arguments.gpt2 / "vocab.json"), str(arguments.gpt2 / "merges.txt")
    load_gpt2_files(Path(vocab), Path(merges)).save(folder / "tokenizer")
    workers = str(arguments.workers)
    baselines = BENCHMARKS_DIR / "baselines"

    def groundup(out: Path) -> list[str]:
        verb = [sys.executable, "-m", "groundup", "tokens", "build", *files, "--prefix", str(out / "data")]
        return [*verb, "--vocab-file", vocab, "--merge-file", merges, "--workers", workers]

    def tiktoken(out: Path) -> list[str]:
        return [sys.executable, str(baselines / "tiktoken_processes.py"), vocab, merges, workers, *files]

    def datatrove(out: Path) -> list[str]:
        script = [str(arguments.datatrove_python), str(baselines / "datatrove_tokens.py")]
        return [
            *script,
            str(folder / "tokenizer" / "tokenizer.json"),
            workers,
            str(arguments.corpus),
            str(out),
        ]

    contenders: dict[str, Callable[[Path], list[str]]] = {
        "groundup tokens build": groundup,
        "tiktoken alone, nothing written": tiktoken,
    }
    if arguments.datatrove_python:
        contenders["datatrove DocumentTokenizer"] = datatrove
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(arguments.rounds):
        for name, command in contenders.items():
            with tempfile.TemporaryDirectory(dir=folder) as out:
                wait_for_idle_cpu()
                began = time.perf_counter()
                run_process(command(Path(out)))
                seconds[name].append(time.perf_counter() - began)
            print(f"round {number + 1}, {name}: {seconds[name][-1]:.2f} s", file=sys.stderr)
    return seconds


def corpus_bytes(corpus: Path) -> int:
    """Decompressed bytes of the corpus."""
    total = 0
    for path in corpus.glob("*.jsonl.zst"):
        with path.open("rb") as raw:
            reader = zstandard.ZstdDecompressor().stream_reader(raw)
            while chunk := reader.read(1 << 20):
                total += len(chunk)
    return total


def measure_batches(folder: Path, *, num_tokens: int, rounds: int) -> dict[str, list[float]]:
    """Tokens/s of batches of 512 samples of 1,024 tokens on one core: groundup's order, nanoGPT's draws."""
    prefix = folder / "loading"
    ids = np.random.default_rng(0).integers(0, 50257, num_tokens, dtype=np.uint16)
    lengths = np.full(num_tokens // 1000, 1000, dtype=np.int32)
    with IndexedWriter(prefix, vocab_size=50257) as writer:
        writer.add(ids[: lengths.sum()], lengths)
    train = open_splits(DataConfig(path=prefix, split="1", sequence_length=SEQUENCE_LENGTH), seed=1).train
    assert train is not None
    data = np.memmap(prefix.with_suffix(".bin"), dtype=np.uint16, mode="r")

    def groundup(step: int) -> None:
        torch.from_numpy(train.batch(step * BATCH_SIZE, BATCH_SIZE))

    def with_starts(step: int) -> None:
        train.batch(step * BATCH_SIZE, BATCH_SIZE)
        train.document_starts(step * BATCH_SIZE, BATCH_SIZE)

    def nanogpt(step: int) -> None:
        length = SEQUENCE_LENGTH
        draws = torch.randint(len(data) - length, (BATCH_SIZE,))
        torch.stack([torch.from_numpy(data[i : i + length].astype(np.int64)) for i in draws])
        torch.stack([torch.from_numpy(data[i + 1 : i + 1 + length].astype(np.int64)) for i in draws])

    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[0]})
    torch.set_num_threads(1)
    contenders = {"groundup": groundup, "groundup, with document starts": with_starts, "nanoGPT's": nanogpt}
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    num_steps = 40
    for number in range(rounds):
        for name, load in contenders.items():
            began = time.perf_counter()
            for step in range(number * num_steps, (number + 1) * num_steps):
                load(step)
            rates[name].append(num_steps * BATCH_SIZE * SEQUENCE_LENGTH / (time.perf_counter() - began))
    return rates


def measure_seeks(folder: Path) -> dict[str, float]:
    """Seconds to the first batch, and to one of step 1,000,000, of 10 billion tokens; the .bin is sparse."""
    prefix = folder / "huge"
    num_documents, length = 10_000_000, 1000
    with IndexedWriter(folder / "one", vocab_size=50257) as writer:
        writer.add(np.zeros(length, dtype=np.uint16), np.array([length]))
    head = (folder / "one.idx").read_bytes()[:18]
    lengths = np.full(num_documents, length, dtype="<i4")
    offsets = np.arange(num_documents, dtype="<i8") * length * 2
    counts = np.array([num_documents, num_documents + 1], dtype="<u8")
    ends = np.arange(num_documents + 1, dtype="<i8")
    with prefix.with_suffix(".idx").open("wb") as index:
        index.write(head)
        for part in (counts, lengths, offsets, ends):
            part.tofile(index)
    with prefix.with_suffix(".bin").open("wb") as tokens:
        tokens.truncate(num_documents * length * 2)
    result: dict[str, float] = json.loads(run_process([sys.executable, "-c", _SEEK, str(prefix), "1000000"]))
    return result


def measure_megatron_order() -> dict[str, float]:
    """Seconds to make Megatron-LM's order of 100 million samples of 1,024 tokens, on one core."""
    lengths = np.random.default_rng(0).integers(1, 4096, 50_000_000, dtype=np.int32)
    began = time.perf_counter()
    order = megatron_order(lengths, sequence_length=SEQUENCE_LENGTH, num_samples=90_000_000, seed=1234)
    return {"samples": order.num_samples, "documents": len(lengths), "seconds": time.perf_counter() - began}


def render(result: dict[str, Any]) -> str:
    """The Markdown report."""
    size, rounds = result["corpus_bytes"], result["rounds"]
    lines = ["# Tokens", "", f"Measured on {result['date']}, {rounds} interleaved rounds, medians.", ""]
    lines += [f"- {name}: {value}" for name, value in result["machine"].items()]
    lines += [
        "",
        "## Whole builds",
        "",
        f"{size / 1e6:.1f} MB of JSONL (three .zst files), GPT-2's tokenizer, {result['workers']} processes,"
        " from start-up to the last byte.",
        "",
        "| | seconds | range | MB/s | groundup's speed against it |",
        "|---|---|---|---|---|",
    ]
    medians = {name: statistics.median(found) for name, found in result["build_seconds"].items()}
    ours = medians["groundup tokens build"]
    for name, found in result["build_seconds"].items():
        lines.append(
            f"| {name} | {medians[name]:.2f} | {min(found):.2f}-{max(found):.2f} |"
            f" {size / medians[name] / 1e6:.1f} | {medians[name] / ours:.2f}x |"
        )
    lines += [
        "",
        "## Batches",
        "",
        f"{BATCH_SIZE} samples of {SEQUENCE_LENGTH:,} tokens as int64, memory-mapped uint16 in the page"
        " cache, one core.",
        "",
        "| | tokens/s | range |",
        "|---|---|---|",
    ]
    for name, found in result["batch_tokens_per_second"].items():
        middle, low, high = (number / 1e6 for number in (statistics.median(found), min(found), max(found)))
        lines.append(f"| {name} | {middle:.0f}M | {low:.0f}M-{high:.0f}M |")
    seeks, order = result["seek_seconds"], result["megatron_order"]
    lines += [
        "",
        "## Seeks",
        "",
        "10 billion tokens in 10 million documents (a sparse file: the seek, not the disk),"
        f" {seeks['samples']:,} samples, a process of its own:",
        f"imports {seeks['import']:.2f} s, opening {seeks['open']:.3f} s,"
        f" first batch {seeks['first batch']:.3f} s,"
        f" the batch of step 1,000,000 {seeks['batch of a later step']:.3f} s.",
        "",
        "## Megatron-LM's order",
        "",
        f"{order['samples']:,} samples of {order['documents']:,} documents in {order['seconds']:.1f} s"
        " on one core.",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measures and writes the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--corpus", type=Path, required=True, help="folder of .jsonl.zst, key text")
    parser.add_argument("--gpt2", type=Path, required=True, help="folder with vocab.json and merges.txt")
    parser.add_argument("--datatrove-python", type=Path, help="a Python that has datatrove, if any")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--results-dir", type=Path, default=RESULTS_DIR)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        result = {
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "machine": describe_machine("tiktoken", "numpy", "orjson", "zstandard", "torch"),
            "rounds": arguments.rounds,
            "workers": arguments.workers,
            "corpus_bytes": corpus_bytes(arguments.corpus),
            "build_seconds": measure_builds(arguments, folder),
            "seek_seconds": measure_seeks(folder),
            "batch_tokens_per_second": measure_batches(
                folder, num_tokens=100_000_000, rounds=arguments.rounds
            ),
            "megatron_order": measure_megatron_order(),
        }
    arguments.results_dir.mkdir(parents=True, exist_ok=True)
    (arguments.results_dir / "tokens.json").write_text(json.dumps(result, indent=2) + "\n")
    report = render(result)
    (arguments.results_dir / "tokens.md").write_text(report)
    print(report)


if __name__ == "__main__":
    main()
