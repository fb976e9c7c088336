"""Time from a command to the first step of training, beside a bare `import torch`, and what its parts cost.

The command is `groundup train` of a tiny model. "Forks" are ranks as `groundup train layout.dp=N` starts them
on a machine without a GPU; "new processes" is what it does elsewhere. Help is the list of all verbs. Each is
started once a round, in turn. A part ends where the next one begins; parts overlap in ranks beside the first.
"""

import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from processes import describe_machine, wait_for_idle_cpu

RESULTS_DIR = Path(__file__).parent / "results"

TRAIN = """
import os, sys, time
marks = []
def mark(name):
    marks.append((name, time.time()))
mark("interpreter")
import torch
mark("import torch")
from groundup import __main__ as program
from groundup.launch import launcher, rank_processes
from groundup.train import loop, setup
mark("import groundup and what it wants of torch")
if NEW_PROCESSES:
    rank_processes.is_safe_to_fork = lambda: False
start = rank_processes.RankProcesses.start
def timed_start(*arguments, **settings):
    mark("config and checks")
    start(*arguments, **settings)
rank_processes.RankProcesses.start = timed_start
build_run, train_step = loop.build_run, loop.train_step
def timed_build(*arguments, **settings):
    mark("start of ranks" if os.environ.get("RANK") else "config and checks")
    built = build_run(*arguments, **settings)
    mark("joining ranks, data, model, optimizer")
    return built
def timed_step(*arguments, **settings):
    done = train_step(*arguments, **settings)
    mark("loss at the start and first step")
    if os.environ.get("RANK", "0") == "0":
        with open("marks", "w") as file:
            file.writelines(f"{name}\\t{when}\\n" for name, when in marks)
    return done
loop.build_run, loop.train_step = timed_build, timed_step
program.main()
"""
"""`groundup train` with the time of each part; new processes know nothing of it."""

SETTINGS = """
run_dir: run
data: {path: data_text_document, sequence_length: 32, split: "1"}
model: {kind: gpt2, vocab_size: 300, max_sequence_length: 32, num_layers: 2, hidden_size: 32, num_heads: 2,
  ffn_size: 64}
num_steps: 1
global_batch_size: 4
micro_batch_size: 1
precision: fp32
device: cpu
log: {interval: 1}
validation: {interval: 0}
checkpoint: {interval: 1000}
"""

BARE = "import torch"
STEP = f"{BARE}; p = torch.nn.Parameter(torch.ones(1)); p.sum().backward(); torch.optim.AdamW([p]).step()"
"""What any training pays: PyTorch's optimizers import its compiler, be it used or not."""


def contenders(ranks: list[int]) -> dict[str, tuple[list[str], bool]]:
    """Name -> command, and whether it trains."""
    found: dict[str, tuple[list[str], bool]] = {
        "python -c pass": ([sys.executable, "-c", "pass"], False),
        BARE: ([sys.executable, "-c", BARE], False),
        f"{BARE}, a step of its AdamW": ([sys.executable, "-c", STEP], False),
        "groundup --help": ([sys.executable, "-m", "groundup", "--help"], False),
        "groundup train --help": ([sys.executable, "-m", "groundup", "train", "--help"], False),
    }
    for number in ranks:
        for new in (False, True) if number > 1 else (False,):
            name = "1 rank" if number == 1 else f"{number} ranks, {'new processes' if new else 'forks'}"
            code = f"NEW_PROCESSES = {new}\n{TRAIN}"
            words = [sys.executable, "-c", code, "train", "run.yaml", f"layout.dp={number}"]
            found[name] = (words, True)
    return found


def seconds_of(command: list[str], folder: Path, *, trains: bool) -> tuple[float, dict[str, float]]:
    """Seconds from the start to the first step's line on stderr, or to the end; and of each part."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "OPENBLAS_NUM_THREADS": "1"}  # as groundup sets it
    began, found = time.time(), 0.0
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    said = []
    for line in process.stderr or ():
        said.append(line)
        if trains and not found and " step 1/1 " in line:
            found = time.time() - began
    if process.wait() or (trains and not found):
        sys.exit(f"{command} failed:\n{''.join(said)}")
    parts = {}
    marks = folder / "marks"
    if marks.exists():
        before = began
        for line in marks.read_text().splitlines():
            name, when = line.split("\t")
            parts[name], before = float(when) - before, float(when)
        marks.unlink()
    return found or time.time() - began, parts


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Seconds of each contender and part in each round."""
    seconds: dict[str, list[float]] = {}
    parts: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        text = folder / "text.jsonl"
        lines = (json.dumps({"text": f"{word} words stand in this line. " * 40}) for word in range(60))
        text.write_text("\n".join(lines))
        groundup = [sys.executable, "-m", "groundup"]
        tokenizer = ["tokenizer", "train", text.name, "--vocab-size", "300", "--out", "tokenizer"]
        tokens = ["tokens", "build", text.name, "--tokenizer", "tokenizer", "--prefix", "data"]
        for words in (tokenizer, tokens):
            subprocess.run([*groundup, *words], cwd=folder, check=True, capture_output=True)
        (folder / "run.yaml").write_text(SETTINGS)
        everyone = contenders(arguments.ranks)
        for number in range(-1, arguments.rounds):  # the first fills the caches of files
            for name, (command, trains) in everyone.items():
                if not arguments.no_waiting:
                    wait_for_idle_cpu()
                run = [f"run_dir={number} {name}"] if trains else []
                took, of_parts = seconds_of([*command, *run], folder, trains=trains)
                print(f"{name} | {took:.2f} s", flush=True)
                if number < 0:
                    continue
                seconds.setdefault(name, []).append(took)
                for part, value in of_parts.items():
                    parts.setdefault(name, {}).setdefault(part, []).append(value)
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": describe_machine("torch", "cyclopts", "pydantic"),
        "load": os.getloadavg()[2],
        "rounds": arguments.rounds,
        "seconds": seconds,
        "parts": {name: found for name, found in parts.items() if "new processes" not in name},
    }


def render(result: dict[str, Any]) -> str:
    """The results as Markdown."""
    bare = statistics.median(result["seconds"][BARE])
    lines = [
        "# Time to the first step",
        "",
        f"{result['date']}; seconds, medians (and ranges) of {result['rounds']} rounds, in turn; ratios"
        " are to a bare `import torch` of the same run. Made by `benchmarks/start.py`.",
        "",
        *(f"- {name}: {value}" for name, value in result["machine"].items()),
        f"- processes that wanted to run, mean of the last 15 minutes: {result['load']:.1f}",
        "",
        "| | seconds | range | ratio |",
        "|---|---|---|---|",
    ]
    for name, values in result["seconds"].items():
        median = statistics.median(values)
        spread = f"{min(values):.2f} to {max(values):.2f}"
        lines.append(f"| {name} | {median:.2f} | {spread} | {median / bare:.2f} |")
    names = list(result["parts"])
    lines += [
        "",
        "Parts, of the first rank:",
        "",
        f"| | {' | '.join(names)} |",
        f"|---|{'---|' * len(names)}",
    ]
    for part in result["parts"][names[-1]]:
        cells = [result["parts"][name].get(part) for name in names]
        shown = " | ".join(f"{statistics.median(cell):.2f}" if cell else "" for cell in cells)
        lines.append(f"| {part} | {shown} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measures and writes the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--no-waiting", action="store_true", help="do not wait for an idle CPU")
    parser.add_argument("--results-dir", type=Path, default=RESULTS_DIR)
    arguments = parser.parse_args()
    result = measure(arguments)
    arguments.results_dir.mkdir(parents=True, exist_ok=True)
    (arguments.results_dir / "start.json").write_text(json.dumps(result, indent=2) + "\n")
    (arguments.results_dir / "start.md").write_text(render(result))
    print(render(result))


if __name__ == "__main__":
    main()
