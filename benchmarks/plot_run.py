"""Draws the losses of a run's ``metrics.jsonl``.

python benchmarks/plot_run.py quickstart/run docs/images/quickstart_loss.png --line 6.57 "unigram entropy"
"""

import argparse
import json
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot  # after the choice of backend


def main() -> None:
    """Reads the records and writes the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--line", nargs=2, metavar=("LOSS", "NAME"), help="a dashed line to compare with")
    arguments = parser.parse_args()
    lines = (arguments.run_dir / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    figure, axes = pyplot.subplots(figsize=(8, 4), layout="constrained")
    for kind, style in (("train", "-"), ("validation", "o-")):
        points = [(record["step"], record["loss"]) for record in records if record["kind"] == kind]
        axes.plot(*zip(*points, strict=True), style, label=kind)
    if arguments.line:
        axes.axhline(float(arguments.line[0]), linestyle="--", color="grey", label=arguments.line[1])
    axes.set_xlabel("step")
    axes.set_ylabel("loss (nats a token)")
    axes.grid(alpha=0.3)
    axes.legend()
    arguments.picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(arguments.picture, dpi=120)


if __name__ == "__main__":
    main()
