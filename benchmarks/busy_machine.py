"""Training beside busy processes, against an idle machine: groundup's choices against OpenMP's defaults.

Each run is a ``groundup train`` of its own for some seconds, once on the idle machine and once beside busy
loops, of which there are two; runs that are compared follow each other. The defaults are all cores and
libgomp's own count of spins. Writes ``results/busy_machine.json`` and ``results/busy_machine.md``. Nothing
else may run meanwhile. Takes about ten minutes on two cores.

    python benchmarks/busy_machine.py --rounds 2
"""

import argparse
import contextlib
import dataclasses
import datetime
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from processes import describe_machine, run_process, wait_for_idle_cpu

BENCHMARKS_DIR = Path(__file__).parent
RESULTS_DIR = BENCHMARKS_DIR / "results"
GROUNDUP = [sys.executable, "-m", "groundup"]
DEFAULT_SPINS = "300000"  # libgomp's, where nothing is set
OPENMP_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OMP_WAIT_POLICY",
    "GOMP_SPINCOUNT",
    "KMP_BLOCKTIME",
)
WARMUP_SECONDS = 6.0
FEWEST_STEPS = 3
LONGEST_SECONDS = 90.0

SMALLEST = ("num_layers=2", "hidden_size=64", "num_heads=2", "ffn_size=256")
MODELS = {
    "0.4M: 2 layers, width 64": (4096, ["preset=tiny", *(f"model.{setting}" for setting in SMALLEST)]),
    "4.3M: preset tiny": (4096, ["preset=tiny"]),
    "14M: configs/10m.yaml": (8192, [str(BENCHMARKS_DIR / "configs" / "10m.yaml")]),
}
"""Name -> ids of the tokenizer, and what ``groundup train`` is given."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Contender:
    """One row for each model.

    Attributes:
        name: As in the table.
        settings: Of the run.
        variables: Of OpenMP.
    """

    name: str
    settings: tuple[str, ...] = ()
    variables: tuple[tuple[str, str], ...] = ()


def contenders(spins: list[str]) -> list[Contender]:
    """Groundup as it is, and without its choices; on request with other counts of spins."""
    all_cores = f"threads={os.cpu_count()}"
    defaults = Contender(
        name="all cores, OpenMP's defaults",
        settings=(all_cores,),
        variables=(("GOMP_SPINCOUNT", DEFAULT_SPINS),),
    )
    others = [
        Contender(
            name=f"all cores, {spin} spins", settings=(all_cores,), variables=(("GOMP_SPINCOUNT", spin),)
        )
        for spin in spins
    ]
    one = [Contender(name="one thread", settings=("threads=1",))] if spins else []
    return [Contender(name="groundup"), defaults, *others, *one]


def prepare_data(folder: Path) -> None:
    """The Python library's text, tokenized with each vocabulary."""
    documents = folder / "corpus"
    run_process([*GROUNDUP, "corpus", "build", "--python-library", "--out", str(documents)])
    for size in {size for size, _ in MODELS.values()}:
        tokenizer = str(folder / f"tokenizer-{size}")
        run_process(
            [*GROUNDUP, "tokenizer", "train", str(documents), "--vocab-size", str(size), "--out", tokenizer]
        )
        run_process(
            [
                *GROUNDUP,
                "tokens",
                "build",
                str(documents),
                "--tokenizer",
                tokenizer,
                "--prefix",
                str(folder / str(size)),
            ]
        )


@contextlib.contextmanager
def busy_loops(number: int) -> Iterator[None]:
    """So many processes that compute nothing, all the time."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(number)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def tokens_per_second(model: str, contender: Contender, data: Path, seconds: float) -> float:
    """Of the steps of a run after its warm-up."""
    vocab_size, words = MODELS[model]
    environment = {name: value for name, value in os.environ.items() if name not in OPENMP_VARIABLES}
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        settings = (
            f"run_dir={run_dir}",
            f"data.path={data / str(vocab_size)}_text_document",
            "num_steps=1000000",
            "log.interval=1",
            "validation.interval=0",
            "checkpoint.interval=1000000",
            *contender.settings,
        )
        log = Path(folder) / "log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                [*GROUNDUP, "train", *words, *settings],
                env=environment | dict(contender.variables),
                stdout=out,
                stderr=out,
            )
        try:
            return _rate(process, run_dir / "metrics.jsonl", log, seconds)
        finally:
            process.kill()
            process.wait()


def _rate(process: "subprocess.Popen[bytes]", metrics: Path, log: Path, seconds: float) -> float:
    """Waits until there are enough steps."""
    while True:
        time.sleep(0.5)
        if process.poll() is not None:
            sys.exit(f"the training has ended:\n{log.read_text()[-3000:]}")
        lines = metrics.read_bytes().splitlines(keepends=True) if metrics.exists() else []
        records = [json.loads(line) for line in lines if line.endswith(b"\n")]
        steps = []
        tokens_before, passed = 0, 0.0
        for record in records:
            tokens = record["tokens"] - tokens_before
            took = tokens / record["tokens_per_second"]
            if passed >= WARMUP_SECONDS:
                steps.append((tokens, took))
            tokens_before, passed = record["tokens"], passed + took
        counted = sum(took for _, took in steps)
        if len(steps) >= FEWEST_STEPS and (counted >= seconds or passed >= LONGEST_SECONDS):
            return sum(tokens for tokens, _ in steps) / counted


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Tokens/s of each model, contender and state of the machine in each round."""
    rates: dict[str, dict[str, dict[str, list[float]]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder)
        prepare_data(data)
        everyone = contenders(arguments.spins)
        for number, model in itertools.product(range(arguments.rounds), arguments.models):
            for state in ("idle", "busy"):
                for contender in everyone if number % 2 else reversed(everyone):
                    if not arguments.no_waiting:
                        wait_for_idle_cpu()
                    with busy_loops(arguments.busy if state == "busy" else 0):
                        rate = tokens_per_second(model, contender, data, arguments.seconds)
                    found = rates.setdefault(model, {}).setdefault(contender.name, {})
                    found.setdefault(state, []).append(rate)
                    print(f"{model} | {contender.name} | {state} | {rate:,.0f} tokens/s", flush=True)
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": describe_machine("torch"),
        "busy_processes": arguments.busy,
        "seconds": arguments.seconds,
        "rounds": arguments.rounds,
        "tokens_per_second": rates,
    }


def render(result: dict[str, Any]) -> str:
    """The results as Markdown."""
    busy = result["busy_processes"]
    lines = [
        "# Training beside busy processes",
        "",
        f"{result['date']}; tokens/s over {result['seconds']:g} s after a warm-up, medians of"
        f" {result['rounds']} rounds; beside {busy} endless loops."
        " Made by `benchmarks/busy_machine.py`.",
        "",
        *(f"- {name}: {value}" for name, value in result["machine"].items()),
        "",
        f"| model | | idle | beside {busy} busy processes | share of idle |",
        "|---|---|---|---|---|",
    ]
    for model, by_contender in result["tokens_per_second"].items():
        for name, states in by_contender.items():
            idle, beside = (statistics.median(states[state]) for state in ("idle", "busy"))
            lines.append(f"| {model} | {name} | {idle:,.0f} | {beside:,.0f} | {beside / idle:.0%} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measures and writes the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each run, after the warm-up")
    parser.add_argument("--busy", type=int, default=2, help="endless loops")
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument(
        "--spins", nargs="*", default=[], help="counts of spins to try with all cores, beside one thread"
    )
    parser.add_argument("--no-waiting", action="store_true", help="do not wait for an idle CPU")
    parser.add_argument("--results-dir", type=Path, default=RESULTS_DIR)
    arguments = parser.parse_args()
    result = measure(arguments)
    arguments.results_dir.mkdir(parents=True, exist_ok=True)
    (arguments.results_dir / "busy_machine.json").write_text(json.dumps(result, indent=2) + "\n")
    (arguments.results_dir / "busy_machine.md").write_text(render(result))
    print(render(result))


if __name__ == "__main__":
    main()
