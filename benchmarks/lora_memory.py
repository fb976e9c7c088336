"""What adapters save: peak memory of fine-tuning GPT-2 345M on a CPU, all weights against LoRA.

Each run is a process of its own, in turns. Memory is the most that the process held up to the last step:
weights, gradients, optimizer, activations and Python itself. Writes ``results/lora_memory.json`` and
``results/lora_memory.md``; other processes change no memory.

    python benchmarks/lora_memory.py --rounds 2
"""

import argparse
import datetime
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from processes import describe_machine, run_process
from random_model import random_model

from groundup.checkpoint.huggingface.weights import write_huggingface

RESULTS_DIR = Path(__file__).parent / "results"
STEPS = 4
RUNS = {"all weights": (), "LoRA, rank 8": ("lora.rank=8",), "LoRA, rank 64": ("lora.rank=64",)}
"""Row of the table -> overrides."""


def measure_once(folder: Path, overrides: tuple[str, ...]) -> dict[str, float]:
    """Fine-tunes in a fresh process; returns its peak memory and what a checkpoint holds, in bytes."""
    with tempfile.TemporaryDirectory() as temporary:
        run_dir = Path(temporary) / "run"
        settings = (
            f"run_dir={run_dir}",
            f"num_steps={STEPS}",
            "data.sequence_length=512",
            "micro_batch_size=1",
            "global_batch_size=1",
            "validation.interval=0",
            "stage.template=text",
            "precision=bf16",
            "device=cpu",
            "log.interval=1",
        )
        command = [sys.executable, "-m", "groundup", "finetune", str(folder / "model")]
        run_process([*command, "--data", str(folder / "chats.jsonl"), *settings, *overrides])
        lines = (run_dir / "metrics.jsonl").read_text().splitlines()
        records = [record for record in map(json.loads, lines) if record["kind"] == "train"]
        checkpoint = run_dir / "checkpoints" / f"step_{STEPS:07}"
        saved = sum(file.stat().st_size for file in checkpoint.glob("*.safetensors"))
    return {"memory_bytes": records[-1]["memory_bytes"], "checkpoint_bytes": saved}


def measure(rounds: int) -> dict[str, Any]:
    """All runs in each round."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in RUNS}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_huggingface(random_model("gpt2-345m"), folder / "model")
        turns = [
            {"role": "user", "content": "how many? " * 9},
            {"role": "assistant", "content": "nine. " * 60},
        ]
        (folder / "chats.jsonl").write_text((json.dumps({"messages": turns}) + "\n") * 200)
        for number in range(1, rounds + 1):
            for name, overrides in RUNS.items():
                found[name].append(measure_once(folder, overrides))
                print(f"round {number}, {name}: {found[name][-1]}", file=sys.stderr)
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": describe_machine("torch"),
        "rounds": rounds,
        "runs": found,
    }


def render(result: dict[str, Any]) -> str:
    """The Markdown report."""
    lines = [
        "# Memory of fine-tuning with adapters",
        "",
        f"Measured on {result['date']}: GPT-2 345M on conversations, one sequence of 512, bf16, AdamW; the"
        f" most that a process held, Python and libraries included; rounds: {result['rounds']}, medians.",
        "",
        *(f"- {name}: {value}" for name, value in result["machine"].items()),
    ]
    lines += ["", "| trained | peak memory | of all weights' | checkpoint |", "|---|---|---|---|"]
    medians = {
        name: {key: statistics.median(run[key] for run in each) for key in each[0]}
        for name, each in result["runs"].items()
    }
    for name, median in medians.items():
        share = median["memory_bytes"] / medians["all weights"]["memory_bytes"]
        lines.append(
            f"| {name} | {median['memory_bytes'] / 2**30:.2f} GiB | {share:.2f}x"
            f" | {median['checkpoint_bytes'] / 1e6:.1f} MB |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measures and writes the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--results-dir", type=Path, default=RESULTS_DIR)
    arguments = parser.parse_args()
    result = measure(arguments.rounds)
    arguments.results_dir.mkdir(parents=True, exist_ok=True)
    (arguments.results_dir / "lora_memory.json").write_text(json.dumps(result, indent=2) + "\n")
    report = render(result)
    (arguments.results_dir / "lora_memory.md").write_text(report)
    print(report)


if __name__ == "__main__":
    main()
