"""The time of ``make quickstart`` in a fresh clone, installation included, and what came of it.

Writes ``results/quickstart.json`` and ``results/quickstart.md``. Clones the last commit, not the working
tree. Nothing else may run meanwhile. Takes five minutes; pip downloads what it has not cached.

    python benchmarks/quickstart.py
"""

import argparse
import datetime
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from processes import describe_machine, wait_for_idle_cpu

REPOSITORY = Path(__file__).resolve().parents[1]
RESULTS_DIR = Path(__file__).parent / "results"
STAGES = ("installation", "corpus", "tokenizer", "tokens", "training", "export", "generation")
BEGINS = re.compile(r"\[(\d)/6\] ")
"""What a stage's first line has."""


def measure(folder: Path) -> dict[str, Any]:
    """Seconds of each stage, the log's lines on the choice of steps, and the last screen."""
    clone = folder / "groundup"
    subprocess.run(["git", "clone", "--quiet", str(REPOSITORY), str(clone)], check=True)
    began = time.monotonic()
    begins = {"installation": 0.0}
    chosen, screen = "", []
    process = subprocess.Popen(
        ["make", "quickstart", f"PYTHON={sys.executable}"],
        cwd=clone,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None, "it was asked for"
    for line in process.stdout:
        print(line, end="", flush=True)
        stage = BEGINS.search(line)
        if stage:
            begins[STAGES[int(stage[1])]] = time.monotonic() - began
        elif "tokens/s measured" in line:
            chosen = line.split(maxsplit=1)[1].strip()
        elif "generation" in begins:
            screen.append(line.rstrip())
    if process.wait():
        sys.exit("make quickstart failed")
    total = time.monotonic() - began
    ends = [*list(begins.values())[1:], total]
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": describe_machine("torch"),
        "seconds": total,
        "stages": {name: end - begin for (name, begin), end in zip(begins.items(), ends, strict=True)},
        "chosen": chosen,
        "screen": screen[: next(n for n, line in enumerate(screen) if line.startswith("corpus "))],
    }


def render(result: dict[str, Any]) -> str:
    """The results as Markdown."""
    lines = [
        "# The quickstart's time",
        "",
        f"{result['date']}; `make quickstart` in a fresh clone: **{result['seconds']:.0f} s**."
        " Made by `benchmarks/quickstart.py`.",
        "",
        *(f"- {name}: {value}" for name, value in result["machine"].items()),
        "",
        "| stage | seconds |",
        "|---|---|",
        *(f"| {name} | {seconds:.1f} |" for name, seconds in result["stages"].items()),
        "",
        f"Its choice: {result['chosen']}",
        "",
        "```text",
        *"\n".join(result["screen"]).strip().splitlines(),
        "```",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measures and writes the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--no-waiting", action="store_true", help="do not wait for an idle CPU")
    parser.add_argument("--results-dir", type=Path, default=RESULTS_DIR)
    arguments = parser.parse_args()
    if not arguments.no_waiting:
        wait_for_idle_cpu()
    with tempfile.TemporaryDirectory() as folder:
        result = measure(Path(folder))
    arguments.results_dir.mkdir(parents=True, exist_ok=True)
    (arguments.results_dir / "quickstart.json").write_text(json.dumps(result, indent=2) + "\n")
    (arguments.results_dir / "quickstart.md").write_text(render(result))
    print(render(result))


if __name__ == "__main__":
    main()
