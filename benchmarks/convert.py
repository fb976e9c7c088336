"""Conversions of a random Llama in bfloat16: GB/s and peak memory, beside copies by other libraries.

    python benchmarks/convert.py FOLDER                  # 1.1B parameters, 2.2 GB, three times
    python benchmarks/convert.py FOLDER --seven-b        # Llama 2 7B's sizes: 13.5 GB, four copies at a time

Each row is a process of its own, timed from its start with all imports. ``written`` writes alone, with
checksums and synced to the disk; ``groundup convert`` reads back and compares logits too. Baselines write
the same tensors: ``safetensors`` loads and saves the file and syncs it, ``transformers`` loads and saves the
model (it does not sync). Rows take turns in each repetition. Peak memory is that of the process; mapped
files, which the system takes back when it needs it, are told apart. The model goes in a circle, and must be
the first byte for byte. Results: ``results/convert.json`` and ``results/convert.md``, a section a size.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from processes import describe_machine, touch_memory

from groundup.checkpoint.huggingface.weights import write_stored
from groundup.checkpoint.lazy import LazyModel, LazyTensor
from groundup.checkpoint.logical_tensors import logical_shapes
from groundup.core.files import checksum, require_free_space
from groundup.models.llama import LlamaConfig
from groundup.tokens.tokenizer.load_tokenizer import load_tokenizer

RESULTS_DIR = Path(__file__).parent / "results"
_INTERVAL_SECONDS = 0.02
_COPIES = 4
_SEVEN_B = {"layers": 32, "hidden": 4096, "ffn": 11008, "vocab": 32000}  # Llama 2 7B
_WRITE = """
import sys
from pathlib import Path
from groundup.checkpoint.huggingface.weights import write_stored
from groundup.checkpoint.megatron.write import write_megatron
from groundup.checkpoint.native.model import write_native
from groundup.checkpoint.formats import open_lazy
source, target = map(Path, sys.argv[1:3])
if sys.argv[3] == "megatron":
    write_megatron(open_lazy(source), target, tp=2, pp=2)
else:
    {"hf": write_stored, "native": write_native}[sys.argv[3]](open_lazy(source), target)
"""
_SAFETENSORS = """
import os, sys
from pathlib import Path
from safetensors.torch import load_file, save_file
source, target = map(Path, sys.argv[1:])
target.mkdir()
save_file(load_file(source / "model.safetensors"), target / "model.safetensors")
with open(target / "model.safetensors", "rb") as file:
    os.fsync(file.fileno())
"""
_TRANSFORMERS = """
import sys
import torch, transformers
source, target = sys.argv[1:]
model = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16)
model.save_pretrained(target, max_shard_size="100GB")
"""
_GROUNDUP = ("-m", "groundup", "convert")
_STEPS = (("first", "native"), ("native", "hf"), ("hf", "megatron"), ("megatron", "last"))
_FORMATS = {"first": "hf", "last": "hf", "megatron": "megatron 2x2"}
# name, what comes before source and target, source, target, what comes after
_Row = tuple[str, tuple[str, ...], str, str, tuple[str, ...]]
_WRITTEN: list[_Row] = [
    (f"{_FORMATS.get(source, source)} > {_FORMATS.get(target, target)}, written", ("-c", _WRITE), source,
     target, ("hf" if target == "last" else target,))
    for source, target in _STEPS
]  # fmt: skip
_CONVERTED: list[_Row] = [
    (f"{_FORMATS.get(source, source)} > {_FORMATS.get(target, target)}, groundup convert", _GROUNDUP, source,
     target, ("--to", "hf" if target == "last" else target,
              *(("--tp", "2", "--pp", "2") if target == "megatron" else ())))
    for source, target in _STEPS
]  # fmt: skip
_BASELINES: list[_Row] = [
    ("safetensors load + save", ("-c", _SAFETENSORS), "first", "copy", ()),
    ("transformers load + save", ("-c", _TRANSFORMERS), "first", "copy", ()),
]


def main() -> None:
    """Makes the model, converts it in a circle beside the baselines, and writes the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="to work in; holds four copies of the model at a time")
    parser.add_argument("--seven-b", action="store_true", help="Llama 2 7B's sizes, converted once")
    parser.add_argument("--layers", type=int, default=22)
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--ffn", type=int, default=5632)
    parser.add_argument("--vocab", type=int, default=32000)
    parser.add_argument("--repeat", type=int, help="repetitions; 3, of a 7B one")
    parser.add_argument(
        "--no-transformers", action="store_true", help="which holds the whole model in memory"
    )
    arguments = parser.parse_args()
    sizes = _SEVEN_B if arguments.seven_b else vars(arguments)
    config = LlamaConfig(
        vocab_size=sizes["vocab"],
        max_sequence_length=4096,
        num_layers=sizes["layers"],
        hidden_size=sizes["hidden"],
        num_heads=max(2, sizes["hidden"] // 128),
        num_kv_heads=max(2, sizes["hidden"] // 128),
        ffn_size=sizes["ffn"],
    )
    folder: Path = arguments.folder / "convert"
    size_bytes = 2 * sum(torch.Size(shape).numel() for shape in logical_shapes(config).values())
    require_free_space(arguments.folder, _COPIES * size_bytes, "the benchmark")
    folder.mkdir(parents=True)
    baselines = [row for row in _BASELINES if not (arguments.no_transformers and row[0].startswith("t"))]
    rows = [*_WRITTEN, *_CONVERTED, *baselines]
    found: dict[str, list[tuple[float, int, int]]] = {name: [] for name, *_ in rows}
    same = True
    try:
        make(config, folder / "first")
        for _ in range(arguments.repeat or (1 if arguments.seven_b else 3)):
            for name, program, source, target, settings in rows:
                command = [sys.executable, *program, str(folder / source), str(folder / target), *settings]
                touch_memory(2 * size_bytes)
                found[name].append(measured(command))
                if source != "first":
                    shutil.rmtree(folder / source)
                if target in {"last", "copy"}:
                    same &= target == "copy" or _same(folder / "first", folder / target)
                    shutil.rmtree(folder / target)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    records = []
    for name, runs in found.items():
        seconds = [run[0] for run in runs]
        record = {
            "what": name,
            "seconds": round(statistics.median(seconds), 2),
            "seconds_range": [round(min(seconds), 2), round(max(seconds), 2)],
            "gb_per_second": round(size_bytes / 1e9 / statistics.median(seconds), 3),
            "peak_resident_gb": round(max(run[1] for run in runs) / 1e6, 3),
            "peak_without_mapped_files_gb": round(max(run[2] for run in runs) / 1e6, 3),
            "repetitions": len(runs),
        }
        records.append(record)
    _write_results(
        f"{size_bytes / 2e9:.1f}B",
        {
            "machine": describe_machine("torch", "safetensors"),
            "model_gb": round(size_bytes / 1e9, 3),
            "round_trip_is_byte_identical": same,
            "rows": records,
        },
    )
    sys.exit(not same)


def _write_results(size: str, measured_now: dict[str, Any]) -> None:
    """Adds a size to the results, or replaces it."""
    file = RESULTS_DIR / "convert.json"
    results = json.loads(file.read_text()) if file.exists() else {}
    results[size] = measured_now
    file.write_text(json.dumps(results, indent=2) + "\n")
    lines = [
        "# Conversions of a random Llama in bfloat16",
        "",
        "Each row is a process with all its imports. `written` ends with checksums and fsync; `groundup"
        " convert` reads back and compares logits too. Medians; in brackets the range.",
    ]
    for size, result in results.items():
        machine = ", ".join(f"{key} {value}" for key, value in result["machine"].items())
        equal = "is the first byte for byte" if result["round_trip_is_byte_identical"] else "DIFFERS"
        lines += [
            "",
            f"## {size} parameters, {result['model_gb']} GB",
            "",
            f"{machine}. After the circle the file of weights {equal}.",
            "",
            "| | s | GB/s | peak memory, GB | of it not mapped files, GB |",
            "|---|---|---|---|---|",
            *(
                f"| {row['what']} | {row['seconds']}{_range(row)} | {row['gb_per_second']}"
                f" | {row['peak_resident_gb']} | {row['peak_without_mapped_files_gb']} |"
                for row in result["rows"]
            ),
        ]
    report = "\n".join(lines) + "\n"
    (RESULTS_DIR / "convert.md").write_text(report)
    print(report)


def _range(row: dict[str, Any]) -> str:
    low, high = row["seconds_range"]
    return f" ({low} to {high})" if row["repetitions"] > 1 else ""


def make(config: LlamaConfig, folder: Path) -> None:
    """Writes a random model in bfloat16, tensor by tensor."""

    def tensor(shape: tuple[int, ...]) -> LazyTensor:
        def read() -> torch.Tensor:
            if len(shape) == 1:
                return torch.ones(shape, dtype=torch.bfloat16)
            return torch.empty(shape, dtype=torch.bfloat16).normal_(std=0.02)

        return LazyTensor(shape=shape, dtype=torch.bfloat16, read=read)

    weights = {name: tensor(shape) for name, shape in logical_shapes(config).items()}
    tokenizer = load_tokenizer("bytes")
    stored = LazyModel(config=config, weights=weights, tokenizer=tokenizer, source=Path("random"))
    write_stored(stored, folder)


def measured(command: list[str]) -> tuple[float, int, int]:
    """Runs a command; seconds, peak of resident memory, and of that without mapped files (kB)."""
    began = time.perf_counter()
    resident = own = 0
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        while process.poll() is None:
            try:
                status = Path(f"/proc/{process.pid}/status").read_text()
            except OSError:
                break
            values = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
            resident = max(resident, int(values.get("VmHWM", "0 kB").split()[0]))
            own = max(own, int(values.get("RssAnon", "0 kB").split()[0]))
            time.sleep(_INTERVAL_SECONDS)
        said = process.stderr.read().decode()
    if process.returncode:
        sys.exit(f"{' '.join(command[:4])} failed: {said[-2000:]}")
    return time.perf_counter() - began, resident, own


def _same(first: Path, last: Path) -> bool:
    one, other = (checksum(folder / "model.safetensors") for folder in (first, last))
    return one == other


if __name__ == "__main__":
    main()
