"""What ``groundup plan`` predicts for published runs on 8 to 6,144 GPUs, and what was measured there.

The runs, with their sources and what is different in them, are in ``published_speeds.json``. Nothing is
fitted to a run: three constants of ``plan/kernel_time.py`` were chosen once by the runs marked there as
``chosen_by``, those of llm-foundry on one machine. Then what is predicted for Llama shapes of 7B to 70B on
8 to 4,096 H100s under the fastest layout of each number. Writes ``results/plan_scale.json`` and
``results/plan_scale.md``. It measures nothing here, and takes a few minutes for the search.

    python benchmarks/plan_scale.py
"""

import argparse
import json
import math
import statistics
from pathlib import Path
from typing import Any

from groundup.cli.run_config import presets
from groundup.core.config import resolve
from groundup.models.gpt2 import GPT2Config
from groundup.models.llama import LlamaConfig
from groundup.parallel.activation_checkpointing import Recompute
from groundup.parallel.layout import Layout, PipelineConfig
from groundup.plan.device_table import accelerator
from groundup.plan.devices import Devices
from groundup.plan.layer_memory import MicroBatch
from groundup.plan.rank_memory import Step
from groundup.plan.scaling import Point, scale
from groundup.plan.step_time import StepTime, step_time
from groundup.train.adamw import AdamW
from groundup.train.config import TrainConfig

BENCHMARKS_DIR = Path(__file__).parent
RESULTS_DIR = BENCHMARKS_DIR / "results"
MODELS = {"gpt2": GPT2Config, "llama": LlamaConfig}
COUNTS = (8, 64, 512, 4096)
SHAPES = {
    "7B": "num_layers=32 hidden_size=4096 num_heads=32 num_kv_heads=32 ffn_size=11008 vocab_size=32000",
    "13B": "num_layers=40 hidden_size=5120 num_heads=40 num_kv_heads=40 ffn_size=13824 vocab_size=32000",
    "8B": "num_layers=32 hidden_size=4096 num_heads=32 num_kv_heads=8 ffn_size=14336 vocab_size=128256",
    "70B": "num_layers=80 hidden_size=8192 num_heads=64 num_kv_heads=8 ffn_size=28672 vocab_size=128256",
}
SEQUENCE_LENGTH, BATCH = 8192, 1024


def published() -> dict[str, Any]:
    """Reads the published runs and their sources."""
    found: dict[str, Any] = json.loads((BENCHMARKS_DIR / "published_speeds.json").read_text())
    return found


def predict(run: dict[str, Any]) -> StepTime:
    """Predicts a published run as ``groundup plan`` does."""
    model = MODELS[run["model"]["kind"]](**run["model"])
    schedule = "interleaved" if run["stages"] > 1 else "1f1b"
    layout = Layout(
        dp=run["gpus"] // run["tp"] // run["pp"],
        tp=run["tp"],
        pp=run["pp"],
        zero=run["zero"],
        reduce_dtype=run["reduce_dtype"],
        pipeline=PipelineConfig(schedule=schedule, stages_per_rank=run["stages"] if run["stages"] > 1 else 0),
    ).over(run["gpus"])
    batch = MicroBatch(
        rows=run["micro_batch"],
        length=run["model"]["max_sequence_length"],
        tp=run["tp"],
        cp=1,
        itemsize=2,
        on_gpu=True,
    )
    step = Step(
        model=model,
        optimizer=AdamW(),
        layout=layout,
        recompute=Recompute(mode=run["recompute"]),
        batch=batch,
        num_micro_batches=run["batch"] // run["micro_batch"] // layout.dp,
    )
    devices = Devices(kind=accelerator(run["gpu"]), network_gb=run["network_gb"])
    return step_time(step, devices.machines("bf16"))


def measured_tokens(run: dict[str, Any]) -> float:
    """Returns the tokens a second and GPU that were measured, from whatever was published."""
    value, model = run["published"], run["model"]
    length, hidden = model["max_sequence_length"], model["hidden_size"]
    if run["unit"] == "tokens/s/GPU":
        return float(value)
    if run["unit"] == "s/step":
        return float(run["batch"] * length / value / run["gpus"])
    # Narayanan et al. 2021, appendix: the whole square of attention; recomputing layers adds a third.
    layers = 72 * model["num_layers"] * hidden**2
    flops = layers * (1 + length / (6 * hidden)) + 6 * model["vocab_size"] * hidden
    if run["unit"] == "TFLOP/s/GPU, recomputation counted":
        flops += layers / 3 * (1 + length / (6 * hidden))
    return float(value) * 1e12 / flops


def compare(run: dict[str, Any]) -> dict[str, Any]:
    """Predicts and compares one run."""
    time, tokens = predict(run), measured_tokens(run)
    predicted = time.tokens_per_second / run["gpus"]
    return {
        "source": run["source"],
        "what": run["what"],
        "length": run["model"]["max_sequence_length"],
        "gpu": run["gpu"],
        "gpus": run["gpus"],
        "layout": " ".join(
            f"{name} {run[key]}"
            for name, key in (("tp", "tp"), ("pp", "pp"), ("zero", "zero"))
            if run[key] > 1
        ),
        "recompute": run["recompute"],
        "chosen_by": run["chosen_by"],
        "measured": tokens,
        "predicted": predicted,
        "ratio": predicted / tokens,
        "mfu": time.mfu,
        "shares": {
            "work": (time.work.total + time.update) / time.total,
            "idle": time.bubble / time.total,
            "waiting": time.exposed / time.total,
            "hidden": time.hidden / time.total,
        },
    }


def planned(shape: str) -> list[Point]:
    """Predicts a Llama shape on each number of H100s, under the fastest layout that fits."""
    config = resolve(
        TrainConfig,
        overrides=(
            *("run_dir=run", "data.path=none", "num_steps=1000", "micro_batch_size=1"),
            *(f"global_batch_size={BATCH}", f"data.sequence_length={SEQUENCE_LENGTH}"),
            *(
                "model.kind=llama",
                f"model.max_sequence_length={SEQUENCE_LENGTH}",
                "model.tied_embedding=false",
            ),
            *(f"model.{setting}" for setting in SHAPES[shape].split()),
        ),
        presets=presets(),
    ).value
    return scale(
        config,
        Devices(kind=accelerator("H100")),
        COUNTS,
        precision="bf16",
        searches=True,
    )


def main() -> None:
    """Predicts, compares and writes the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shapes", nargs="*", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--results-dir", type=Path, default=RESULTS_DIR)
    arguments = parser.parse_args()
    data = published()
    rows = [compare(run) for run in data["runs"]]
    plans = {}
    for shape in arguments.shapes:
        plans[shape] = [point.to_dict() for point in planned(shape)]
        print(
            shape, *(f"{point['gpus']}: {point['layout']}" for point in plans[shape]), sep="\n  ", flush=True
        )
    found = {"rows": rows, "plans": plans, "length": SEQUENCE_LENGTH, "batch": BATCH}
    arguments.results_dir.mkdir(parents=True, exist_ok=True)
    (arguments.results_dir / "plan_scale.json").write_text(json.dumps(found, indent=1) + "\n")
    (arguments.results_dir / "plan_scale.md").write_text(render(found, data["sources"]))
    print(spread(rows))


def spread(rows: list[dict[str, Any]]) -> str:
    """Says in a sentence how far the predictions are off."""
    ratios = sorted(row["ratio"] for row in rows)
    error = math.exp(statistics.fmean(abs(math.log(ratio)) for ratio in ratios)) - 1
    within = sum(1 / 1.2 <= ratio <= 1.2 for ratio in ratios)
    return (
        f"{len(ratios)} runs: predicted over measured {ratios[0]:.2f} to {ratios[-1]:.2f}, median"
        f" {statistics.median(ratios):.2f}, off by {error:.0%} on average; {within} within 20%."
    )


def render(found: dict[str, Any], sources: dict[str, Any]) -> str:
    """Formats the results as Markdown."""
    rows = found["rows"]
    chosen = [row for row in rows if row["chosen_by"]]
    others = [row for row in rows if not row["chosen_by"]]
    lines = [
        "# What `groundup plan` predicts for published runs",
        "",
        "Tokens a second and GPU: by the model of `src/groundup/plan/step_time.py`, from the bytes that our"
        " layouts are counted to send (`communication.md`) and the devices' data sheets, and as measured by"
        " others with their own programs. Made by `benchmarks/plan_scale.py`; nothing was measured here.",
        "",
        "Three constants, the same for all devices and models (products run at 0.8 of the best measured rate"
        " and take 10 microseconds besides, attention runs at half of that rate), were chosen once by"
        " llm-foundry's runs on one machine; all others are predictions.",
        "",
        f"- Chosen by: {spread(chosen)}",
        f"- All others: {spread(others)}",
        "",
    ]
    for name, source in sources.items():
        lines += [
            f"## {name}",
            "",
            f"{source['title']} ({source['url']}). {source['devices']}.",
            f"What is different there: {source['differences']}",
            "",
            "| model | tokens | GPUs | layout | recompute | measured | predicted | ratio | MFU | work |"
            " idle | waiting | hidden |",
            "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
            *(_line(row) for row in rows if row["source"] == name),
            "",
        ]
    lines += [
        "## Predicted for H100s",
        "",
        f"Llama shapes at {found['length']:,} tokens, {found['batch']:,} samples a step on any number of"
        " devices, machines of 8 with 450 GB/s within and 50 GB/s a device between; the fastest layout that"
        " fits 80 GiB (`groundup plan --scale 8,64,512,4096 --search`).",
        "",
        "| model | GPUs | layout | GiB | step, s | idle | waiting | hidden | tokens/s a GPU | MFU |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for shape, points in found["plans"].items():
        lines += [_plan_line(shape, point) for point in points]
    return "\n".join(lines) + "\n"


def _line(row: dict[str, Any]) -> str:
    shares = " | ".join(f"{share:.0%}" for share in row["shares"].values())
    return (
        f"| {row['what']} | {row['length']:,} | {row['gpus']:,} | {row['layout']} | {row['recompute']} |"
        f" {row['measured']:,.0f} | {row['predicted']:,.0f} | {row['ratio']:.2f} | {row['mfu']:.0%} |"
        f" {shares} |"
    )


def _plan_line(shape: str, point: dict[str, Any]) -> str:
    time = point["time"]
    if time is None:
        return f"| {shape} | {point['gpus']:,} | {point['reason']} | | | | | | | |"
    waiting = sum(time[name] for name in ("tensor", "context", "pipeline", "data"))
    shares = " | ".join(f"{part / time['total']:.0%}" for part in (time["bubble"], waiting, time["hidden"]))
    return (
        f"| {shape} | {point['gpus']:,} | {point['layout']} | {point['memory'] / 2**30:.0f} |"
        f" {time['total']:.3g} | {shares} | {time['tokens_per_second'] / point['gpus']:,.0f} |"
        f" {time['mfu']:.0%} |"
    )


if __name__ == "__main__":
    main()
