"""What recomputation saves and costs: peak memory and tokens/s of training on a CPU, by mode.

Each mode trains GPT-2 124M, and a Llama of similar size, in a process of its own, one after the other for
several rounds, so that the machine's slow minutes fall on all modes. Memory is the most that the process
held up to the last step: weights, optimizer and all. Writes ``results/recompute.json`` and
``results/recompute.md``. Nothing else may run meanwhile; with ``--busy`` it is measured all the same, and
the result says so.

    python benchmarks/recompute.py --rounds 2
"""

import argparse
import datetime
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from processes import describe_machine, run_process, wait_for_idle_cpu
from train_cpu import BENCHMARKS_DIR, RESULTS_DIR, WARMUP_STEPS, prepare_data

MODES = {
    "none": (),
    "selective": ("recompute.mode=selective",),
    "full, every 2nd layer": ("recompute.mode=full", "recompute.every=2"),
    "full": ("recompute.mode=full",),
}
"""Row of the table -> overrides."""

LENGTH = 1024
MODELS = {
    "gpt2": ("12 layers, width 768, 12 heads, MLP 3,072", ()),
    "llama": (
        "12 layers, width 768, 12 heads, gated MLP 2,048, tied embedding",
        (
            "model.kind=llama",
            "model.vocab_size=50257",
            "model.num_layers=12",
            "model.hidden_size=768",
            "model.num_heads=12",
            "model.num_kv_heads=12",
            "model.ffn_size=2048",
            "model.tied_embedding=true",
        ),
    ),
}
"""Name -> its shape in words, and overrides of ``configs/124m.yaml``."""


def measure_once(overrides: tuple[str, ...], *, num_steps: int, data_path: Path) -> dict[str, float]:
    """Trains in a fresh process and run folder; returns its peak memory in bytes and its median tokens/s."""
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        settings = (
            f"run_dir={run_dir}",
            f"data.path={data_path}",
            f"data.sequence_length={LENGTH}",
            f"model.max_sequence_length={LENGTH}",
            "precision=bf16",
            "device=cpu",
            f"num_steps={num_steps}",
            "log.interval=1",
        )
        config_path = BENCHMARKS_DIR / "configs" / "124m.yaml"
        run_process([sys.executable, "-m", "groundup", "train", str(config_path), *settings, *overrides])
        lines = (run_dir / "metrics.jsonl").read_text().splitlines()
    records = [record for record in map(json.loads, lines) if record["kind"] == "train"]
    return {
        "memory_bytes": records[-1]["memory_bytes"],
        "tokens_per_second": statistics.median(
            record["tokens_per_second"] for record in records[WARMUP_STEPS:]
        ),
    }


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """All modes of all models in each round."""
    runs: dict[str, dict[str, list[dict[str, float]]]] = {
        model: {mode: [] for mode in MODES} for model in MODELS
    }
    loads = []
    for round_number in range(1, arguments.rounds + 1):
        for model, (_, shape) in MODELS.items():
            for mode, overrides in MODES.items():
                if not arguments.busy:
                    wait_for_idle_cpu()
                loads.append(os.getloadavg()[0])
                found = measure_once(
                    (*shape, *overrides),
                    num_steps=arguments.steps,
                    data_path=arguments.data_dir / "124m_text_document",
                )
                runs[model][mode].append(found)
                print(f"round {round_number}, {model}, {mode}: {found}", file=sys.stderr)
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": describe_machine("torch"),
        "rounds": arguments.rounds,
        "steps": arguments.steps - WARMUP_STEPS,
        "quiet": not arguments.busy,
        "load_before_runs": loads,
        "runs": runs,
    }


def render(result: dict[str, Any]) -> str:
    """The Markdown report."""
    timing = f"{result['rounds']} interleaved rounds of {result['steps']} timed steps"
    lines = ["# Recomputation", "", f"Measured on {result['date']}: {timing}, medians.", ""]
    if not result["quiet"]:
        load = statistics.median(result["load_before_runs"])
        lines += [
            f"**Other processes used the CPU meanwhile** (load {load:.1f} before a run, median):"
            " trust the memory, not the speed.",
            "",
        ]
    lines += [f"- {name}: {value}" for name, value in result["machine"].items()]
    for model, modes in result["runs"].items():
        lines += ["", f"## {model}: {MODELS[model][0]}; 2 sequences of {LENGTH:,}, bf16", ""]
        lines += [
            "| recompute | peak memory | against none | tokens/s | range | against none |",
            "|---|---|---|---|---|---|",
        ]
        medians = {
            mode: {key: statistics.median(run[key] for run in found) for key in found[0]}
            for mode, found in modes.items()
        }
        for mode, median in medians.items():
            memory, rate = (
                median[key] / medians["none"][key] for key in ("memory_bytes", "tokens_per_second")
            )
            rates = [run["tokens_per_second"] for run in modes[mode]]
            lines.append(
                f"| {mode} | {median['memory_bytes'] / 2**30:.2f} GiB | {memory:.2f}x"
                f" | {median['tokens_per_second']:,.0f} | {min(rates):,.0f}-{max(rates):,.0f} | {rate:.2f}x |"
            )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measures and writes the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=7, help=f"of each run, {WARMUP_STEPS} of them warm-up")
    parser.add_argument("--busy", action="store_true", help="do not wait for an idle CPU")
    parser.add_argument(
        "--data-dir", type=Path, default=BENCHMARKS_DIR / "data", help="where the datasets are prepared"
    )
    parser.add_argument("--results-dir", type=Path, default=RESULTS_DIR)
    arguments = parser.parse_args()
    prepare_data(arguments.data_dir)
    result = measure(arguments)
    arguments.results_dir.mkdir(parents=True, exist_ok=True)
    (arguments.results_dir / "recompute.json").write_text(json.dumps(result, indent=2) + "\n")
    report = render(result)
    (arguments.results_dir / "recompute.md").write_text(report)
    print(report)


if __name__ == "__main__":
    main()
