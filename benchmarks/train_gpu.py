"""Training throughput on one GPU: groundup against nanoGPT's loop and Hugging Face's Trainer.

Every contender runs as a process of its own, one after the other, for several rounds; the result is the
median over rounds of each run's median tokens/s after the warm-up, in which torch.compile compiles. Random
tokens, bf16 (ours in fp8 too), the same shapes and batches for all. Writes ``results/train_gpu.json`` and
``.md``.

    python benchmarks/train_gpu.py --sizes gpt2-124m gpt2-345m gpt2-1558m llama-1b --rounds 2
"""

import argparse
import dataclasses
import datetime
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from baselines.measurement import GPU_SHAPES, Shape
from processes import describe_machine, run_process

RESULTS_DIR = Path(__file__).parent / "results"
BASELINE = Path(__file__).parent / "baselines" / "gpu_loop.py"
WARMUP_STEPS = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Contender:
    """One row of the table: groundup with overrides, or a loop of ``gpu_loop.py``."""

    name: str
    loop: str = ""
    options: tuple[str, ...] = ()
    sizes: tuple[str, ...] = tuple(GPU_SHAPES)


_GPT2 = tuple(size for size in GPU_SHAPES if size.startswith("gpt2"))
CONTENDERS = (
    Contender(name="groundup"),
    Contender(name="groundup, precision=fp8", options=("precision=fp8",)),
    Contender(name="groundup, compile=false", options=("compile=false",)),
    Contender(name="nanoGPT style, compile", loop="nanogpt", options=("--compile",), sizes=_GPT2),
    Contender(name="HF Trainer", loop="trainer"),
    Contender(name="HF Trainer, compile", loop="trainer", options=("--compile",)),
)


def prepare_data(folder: Path) -> None:
    """Writes random ids as text, and builds data of them with a vocabulary of each size."""
    ids = np.random.default_rng(0).integers(50000, size=(1200, 1000))
    with (folder / "ids.jsonl").open("w") as file:
        file.writelines(json.dumps({"text": " ".join(map(str, row))}) + "\n" for row in ids)
    for vocab_size in (50257, 128256):
        options = ["--prefix", str(folder / str(vocab_size)), "--tokenizer", f"none:{vocab_size}"]
        run_process(
            [sys.executable, "-m", "groundup", "tokens", "build", str(folder / "ids.jsonl"), *options]
        )


def settings_of(size: str, shape: Shape) -> list[str]:
    """Overrides that fix the shape, and nothing that concerns speed."""
    vocab_size = 50257 if size.startswith("gpt2") else 128256
    model = {
        "kind": "gpt2",
        "vocab_size": vocab_size,
        "max_sequence_length": shape.sequence_length,
        "num_layers": shape.num_layers,
        "hidden_size": shape.hidden_size,
        "num_heads": shape.num_heads,
        "ffn_size": 4 * shape.hidden_size,
    }
    if size.startswith("llama"):
        model |= {"kind": "llama", "num_kv_heads": 8, "tied_embedding": "true", "rope_base": 500000}
    return [
        *(f"model.{name}={value}" for name, value in model.items()),
        f"data.sequence_length={shape.sequence_length}",
        "data.split=100,0,0",
        f"micro_batch_size={shape.micro_batch_size}",
        f"global_batch_size={shape.micro_batch_size * shape.micro_batches}",
        "validation.interval=0",
        "checkpoint.interval=1000000",
        "log.interval=1",
    ]


def run_groundup(size: str, options: tuple[str, ...], *, num_steps: int, data: Path) -> dict[str, Any]:
    """Trains by the command line; returns the median tokens/s after the warm-up, and the peak of memory."""
    settings = settings_of(size, GPU_SHAPES[size])
    vocab_size = 50257 if size.startswith("gpt2") else 128256
    with tempfile.TemporaryDirectory() as folder:
        overrides = (
            f"run_dir={folder}/run",
            f"data.path={data / str(vocab_size)}_text_document",
            f"num_steps={num_steps}",
        )
        run_process([sys.executable, "-m", "groundup", "train", *settings, *overrides, *options])
        lines = (Path(folder) / "run" / "metrics.jsonl").read_text().splitlines()
    records = [record for record in map(json.loads, lines) if record["kind"] == "train"]
    rates = [record["tokens_per_second"] for record in records[WARMUP_STEPS:]]
    return {"tokens_per_second": statistics.median(rates), "record": records[-1]}


def run_baseline(size: str, contender: Contender, *, num_steps: int) -> dict[str, Any]:
    """Runs a loop of ``gpu_loop.py``; returns its JSON line."""
    counts = ["--warmup-steps", str(WARMUP_STEPS), "--steps", str(num_steps - WARMUP_STEPS)]
    command = [sys.executable, str(BASELINE), "--size", size, "--loop", contender.loop, *counts]
    found: dict[str, Any] = json.loads(run_process([*command, *contender.options]).splitlines()[-1])
    return found


def product_rate(repeats: int = 10) -> float:
    """FLOP/s of bf16 products of 8192^3, by events."""
    left, right = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(3):
        left @ right
    begin.record()
    for _ in range(repeats):
        left @ right
    end.record()
    torch.cuda.synchronize()
    return float(2 * 8192**3 * repeats / begin.elapsed_time(end) * 1e3)


def render(found: dict[str, Any]) -> str:
    """The Markdown report."""
    lines = [
        "# Training on one GPU",
        "",
        f"{found['date']}, {found['gpu']}, {json.dumps(found['machine'])}; bf16, {found['steps']} timed steps"
        f" a run, the median of the rounds in which the contenders take turns, the range in brackets."
        f" A bf16 product of 8192^3 runs at {found['product_flops'] / 1e12:.0f} TFLOP/s.",
        "",
        "| shape | contender | rounds | tokens/s | of nanoGPT's or the best Trainer's | TFLOP/s |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for size, rates in found["tokens_per_second"].items():
        medians = {name: statistics.median(values) for name, values in rates.items() if values}
        others = [rate for name, rate in medians.items() if not name.startswith("groundup")]
        for name, median in medians.items():
            ratio = f"{median / max(others):.2f}" if others else "-"
            span = f"{min(rates[name]):,.0f} to {max(rates[name]):,.0f}"
            tflops = median * found["flops_per_token"][size] / 1e12
            about = f"{size} | {name} | {len(rates[name])}"
            lines.append(f"| {about} | {median:,.0f} ({span}) | {ratio} | {tflops:.0f} |")
    if found["failed"]:
        lines += ["", "Failed: " + "; ".join(found["failed"]) + "."]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measures and writes the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", nargs="+", choices=GPU_SHAPES, default=list(GPU_SHAPES))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=11, help=f"of each run, {WARMUP_STEPS} of them warm-up")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="contenders of these names, not all")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no run after so many")
    parser.add_argument("--results-dir", type=Path, default=RESULTS_DIR)
    arguments = parser.parse_args()
    began = time.monotonic()
    contenders = [one for one in CONTENDERS if arguments.only is None or one.name in arguments.only]
    if len(contenders) < len(arguments.only or contenders):
        parser.error(f"--only takes these names: {[one.name for one in CONTENDERS]}")
    rates: dict[str, dict[str, list[float]]] = {
        size: {one.name: [] for one in contenders if size in one.sizes} for size in arguments.sizes
    }
    found: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "gpu": torch.cuda.get_device_name(),
        "machine": describe_machine("torch", "transformers", "accelerate"),
        "rounds": arguments.rounds,
        "steps": arguments.steps - WARMUP_STEPS,
        "product_flops": product_rate(),
        "flops_per_token": {size: GPU_SHAPES[size].flops_per_token for size in arguments.sizes},
        "tokens_per_second": rates,
        "failed": [],
        "runs": [],
    }
    torch.cuda.empty_cache()
    with tempfile.TemporaryDirectory() as folder:
        prepare_data(Path(folder))
        for _ in range(arguments.rounds):
            for size in arguments.sizes:
                for one in contenders:
                    if size not in one.sizes or time.monotonic() - began > arguments.seconds:
                        continue
                    try:
                        if one.loop:
                            result = run_baseline(size, one, num_steps=arguments.steps)
                        else:
                            result = run_groundup(
                                size, one.options, num_steps=arguments.steps, data=Path(folder)
                            )
                    except (SystemExit, subprocess.TimeoutExpired) as error:
                        found["failed"].append(f"{size}, {one.name}: {str(error).strip().splitlines()[-1]}")
                        print(str(error)[-1500:], file=sys.stderr)
                        continue
                    rates[size][one.name].append(result["tokens_per_second"])
                    found["runs"].append({"size": size, "contender": one.name, **result})
                    text = f"{size}, {one.name}: {result['tokens_per_second']:,.0f} tokens/s"
                    print(f"{time.monotonic() - began:.0f} s: {text}", file=sys.stderr, flush=True)
                    arguments.results_dir.mkdir(parents=True, exist_ok=True)
                    (arguments.results_dir / "train_gpu.json").write_text(json.dumps(found, indent=1) + "\n")
                    (arguments.results_dir / "train_gpu.md").write_text(render(found))
    print(render(found))


if __name__ == "__main__":
    main()
