"""Makes ``ref:tiny``: five seeds of the quickstart; and tries runs that are known to be wrong against it.

    python benchmarks/reference_runs.py seeds --folder SCRATCH   # writes verify/references/tiny.json
    python benchmarks/reference_runs.py wrong --folder SCRATCH   # writes results/reference_runs.json
    python benchmarks/reference_runs.py judge                    # writes results/reference_runs.md of these

A run that is already in the folder is taken as it is. Each takes a minute on two idle cores; other processes
change no loss, only the time. ``seeds`` runs what a user would type, ``groundup quickstart``.
"""

import argparse
import dataclasses
import datetime
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from processes import describe_machine

from groundup.core.config_sources import leaves, read_yaml
from groundup.core.files import read_json
from groundup.report.run_records import RunRecords, read_run
from groundup.verify.compare_run import compare_run
from groundup.verify.references import read_reference
from groundup.verify.run_suspects import NO_LOSS

HERE = Path(__file__).parent
REFERENCE = HERE.parent / "src/groundup/verify/references/tiny.json"
RESULTS = HERE / "results/reference_runs.json"
ROUNDING = 0.005
"""Twice what lies between windows of a seed in bf16 and in fp32: see the run fp32."""
STEPS = 400
WRONG_STEPS = 200
"""Of a run that is tried, with the schedule of ``STEPS``."""
SEEDS = (1234, 1, 2, 3, 4)
"""The first is the one that a run has by default."""

RUNS: dict[str, tuple[bool, str]] = {
    "another seed": (True, "seed=5"),
    "fp32": (True, "precision=fp32"),
    "learning rate x 10": (False, "optimizer.lr=2e-2 optimizer.adamw.lr=1e-1"),
    "targets off by one": (False, "off_by_one"),
    "targets shuffled": (False, "shuffled"),
    "targets are the inputs": (False, "leaked"),
    "data not shuffled": (False, "unshuffled"),
    "untied embeddings": (False, "model.tied_embedding=false"),
    "init_std x 10": (False, "model.init_std=0.2"),
    "no warm-up": (False, "warmup.fraction=0"),
    "weight decay 0": (False, "optimizer.weight_decay=0"),
    "learning rate / 10": (False, "optimizer.lr=2e-4 optimizer.adamw.lr=1e-3"),
    "half the batch": (False, "global_batch_size=2 micro_batch_size=2"),
    "horizon of 1,500 steps": (False, "schedule_steps=1500"),
    "beta2 0.999": (False, "optimizer.adamw.beta2=0.999"),
}
"""What was changed -> whether it should be found right, and the settings, or the name of a defect."""

DEFECTS = ("unshuffled", "off_by_one", "shuffled", "leaked")


def groundup(*arguments: str, defect: str = "") -> None:
    """Runs a verb in a process of its own."""
    program = [str(Path(__file__)), "defective", defect] if defect else ["-m", "groundup"]
    subprocess.run([sys.executable, *program, *arguments], check=True, stdout=subprocess.DEVNULL)


def run_seed(folder: Path, seed: int) -> RunRecords:
    """A run by the quickstart; what is logged changes no loss."""
    out = folder / f"seed{seed}"
    if not (out / "huggingface").exists():
        settings = [f"num_steps={STEPS}", f"seed={seed}", "log.interval=1", "validation.interval=100"]
        groundup("quickstart", "--out", str(out), *settings, "log.report=never")
    return read_run(out / "run", out.name)


def make_seeds(folder: Path) -> None:
    """Writes the reference."""
    runs = [run_seed(folder, seed) for seed in SEEDS]
    about = read_json(folder / f"seed{SEEDS[0]}" / "tokens_text_document.json")
    checkpoint = next((runs[0].folder / "checkpoints").glob("*/manifest.json"))
    python = f"Python {sys.version.split()[0]}"
    config = {key: value for key, value in runs[0].config.items() if not key.startswith(NO_LOSS)}
    tree: dict[str, Any] = {
        "about": f"five seeds of the quickstart's preset on a CPU, {STEPS} steps",
        "reproduce": f"groundup quickstart num_steps={STEPS}",
        "source": "trained by benchmarks/reference_runs.py",
        "made": {
            "date": datetime.date.today().isoformat(),
            "machine": describe_machine("torch", "numpy", "tokenizers"),
            "documents": about["counts"]["documents"],
            "tokens": about["counts"]["tokens"],
        },
        "data_name": f"the standard library of {python}",
        "data": read_json(checkpoint)["about"]["data"],
        "tokenizer": read_json(checkpoint)["about"]["tokenizer"],
        "bytes_per_token": about["counts"]["text_bytes"] / about["counts"]["tokens"],
        "config": config,
        "seeds": SEEDS,
        "rounding": ROUNDING,
        "learning_rates": [round(record["lr"], 9) for record in runs[0].train],
        "losses": [[round(record["loss"], 4) for record in run.train] for run in runs],
        "validations": {
            str(record["step"]): [
                round(
                    next(one["loss"] for one in run.kinds["validation"] if one["step"] == record["step"]), 4
                )
                for run in runs
            ]
            for record in runs[0].kinds["validation"]
        },
    }
    lines = [f"{json.dumps(key)}: {_dumped(value)}" for key, value in tree.items()]
    REFERENCE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def _dumped(value: Any) -> str:
    """One line a curve."""
    if isinstance(value, list) and isinstance(value[0], list):
        return "[\n" + ",\n".join(json.dumps(one, separators=(",", ":")) for one in value) + "\n]"
    return json.dumps(value, separators=(",", ":") if isinstance(value, list) else None)


def run_wrong(folder: Path, name: str) -> RunRecords:
    """A run with the tokens of the first seed; that of another seed is a whole quickstart."""
    _, given = RUNS[name]
    if given.startswith("seed="):
        return run_seed(folder, int(given.removeprefix("seed=")))
    words = given.split()
    defect = words.pop() if words[0] in DEFECTS else ""
    out = folder / "".join(letter if letter.isalnum() else "-" for letter in name)
    if not (out / "checkpoints").exists():
        first = folder / f"seed{SEEDS[0]}"
        paths = [f"run_dir={out}", f"data.path={first / 'tokens_text_document'}"]
        logs = ["log.interval=10", "log.report=never", "validation.interval=100"]
        steps = [f"num_steps={WRONG_STEPS}"]
        if not any(word.startswith("schedule_steps=") for word in words):
            steps.append(f"schedule_steps={STEPS}")
        groundup("train", "preset=tiny", *paths, *logs, *steps, *words, defect=defect)
    return read_run(out, name)


def make_wrong(folder: Path) -> None:
    """Writes the curves of all runs of the table; those that failed as far as they went."""
    tree = {
        "date": datetime.date.today().isoformat(),
        "machine": describe_machine("torch"),
        "runs": {},
    }
    for name, (is_right, given) in RUNS.items():
        try:
            run = run_wrong(folder, name)
        except subprocess.CalledProcessError:
            run = read_run(folder / "".join(c if c.isalnum() else "-" for c in name), name)
        kept = ("kind", "step", "loss", "lr", "bits_per_byte")
        tree["runs"][name] = {
            "right": is_right,
            "changed": given,
            "config": {
                key: value for key, value in leaves(read_yaml(run.folder / "config.yaml")[0])
                if key == "seed" or not key.startswith(NO_LOSS)
            },
            "records": [
                {key: _short(record[key]) for key in kept if key in record}
                for kind in ("train", "validation")
                for record in run.kinds.get(kind, ())
            ],
        }  # fmt: skip
        lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in tree["runs"].items()]
        head = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in tree.items() if key != "runs"]
        RESULTS.write_text("{\n" + ",\n".join([*head, '"runs": {\n' + ",\n".join(lines) + "\n}"]) + "\n}\n")


def _short(value: Any) -> Any:
    return round(value, 8 if value < 0.1 else 4) if isinstance(value, float) else value


def judged() -> Iterator[str]:
    """A row of each run of the results: what the comparison says of it."""
    reference = read_reference("tiny")
    tree = read_json(RESULTS)
    for name, found in tree["runs"].items():
        kinds: dict[str, list[Any]] = {}
        for record in found["records"]:
            kinds.setdefault(record["kind"], []).append(record)
        whole = {"folder": Path("run"), "name": name, "config": found["config"], "kinds": kinds}
        run = RunRecords(**whole, origins={}, starts=(), places=())
        result = compare_run(run, reference)
        last = result.windows[-1] if result.windows else None
        outside, words = result.outside, "right" if found["right"] else "wrong"
        first = f"step {outside[0].last}" if outside else ""
        apart = "" if result.apart is None else f"{result.apart:.4f}"
        worst = max(result.windows, key=lambda window: abs(window.deviation)).deviation if last else 0.0
        suspect = result.suspects[0].what if result.suspects else ""
        yield (
            f"| {name} | `{found['changed']}` | {words} | {'outside' if outside else 'inside'} |"
            f" {first} | {worst:+.1f} | {result.shape} | {apart} | {suspect} |"
        )


def judge() -> None:
    """Writes the table."""
    tree = read_json(RESULTS)
    head = [
        "# Runs against `ref:tiny`",
        "",
        f"{tree['date']}. Made by `benchmarks/reference_runs.py`: each run with the quickstart's tokens for"
        f" {WRONG_STEPS} steps of {STEPS}, its losses logged every 10 steps, against five other seeds."
        " *Worst*: the largest distance from the middle, in half widths of the band: more than 1 is outside."
        f" *Apart*: the largest distance from the same seed; rounding makes up to {ROUNDING}.",
        "",
        *(f"- {name}: {value}" for name, value in tree["machine"].items()),
        "",
        "| run | changed | is | band | since | worst | shape | apart from its seed | first suspect |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    RESULTS.with_suffix(".md").write_text("\n".join([*head, *judged()]) + "\n")


def defective(defect: str, arguments: list[str]) -> None:
    """Runs a verb of a groundup whose training data is read wrongly."""
    import numpy as np

    from groundup.__main__ import main
    from groundup.train import run_data

    read = run_data.read_predictions

    def wrong(samples: Any, first: int, count: int, **options: Any) -> Any:
        if defect == "unshuffled":
            options["ordered"] = True
        found = read(samples, first, count, **options)
        tokens, targets = found.tokens_BT, found.targets_BT.copy()  # both were views of one array
        if defect == "off_by_one":
            targets[:, :-1], targets[:, -1] = targets[:, 1:].copy(), tokens[:, 0]
        elif defect == "leaked":
            targets[:] = tokens
        elif defect == "shuffled":
            np.random.default_rng(first).shuffle(targets.reshape(-1))
        return dataclasses.replace(found, targets_BT=targets)

    run_data.read_predictions = wrong
    sys.argv = ["groundup", *arguments]
    main()


def main() -> None:
    """Reads the command line."""
    if sys.argv[1:2] == ["defective"]:
        defective(sys.argv[2], sys.argv[3:])
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=("seeds", "wrong", "judge"))
    parser.add_argument("--folder", type=Path, help="where the runs are kept")
    arguments = parser.parse_args()
    if arguments.part == "judge":
        judge()
    elif not arguments.folder:
        parser.error("--folder is missing")
    elif arguments.part == "seeds":
        make_seeds(arguments.folder)
    else:
        make_wrong(arguments.folder)


if __name__ == "__main__":
    main()
