"""What the machinery of layouts costs a single process: groundup's step against a plain loop's.

Both train the same model with the same optimizer on the same batches in one process, taking turns step by
step, so that the machine's slow moments fall on both. The plain loop is what one writes by hand: forward
pass, ``linear_cross_entropy``, backward pass, ``clip_grad_norm_``, ``step``. Writes
``results/overhead.json`` and ``results/overhead.md``. Nothing else may run meanwhile.

    python benchmarks/overhead.py --steps 60
"""

import argparse
import datetime
import functools
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from processes import describe_machine, wait_for_idle_cpu

from groundup.cli.run_config import presets
from groundup.core.config import resolve
from groundup.tokens.tokenize import build_tokens
from groundup.tokens.tokenizer.train_bpe import train_tokenizer
from groundup.train.config import TrainConfig
from groundup.train.data_loader import Batch
from groundup.train.loss import linear_cross_entropy
from groundup.train.run_data import read_batch
from groundup.train.setup import Run, build_run
from groundup.train.state import RngStates
from groundup.train.step import train_step

BENCHMARKS_DIR = Path(__file__).parent
RESULTS_DIR = BENCHMARKS_DIR / "results"
WARMUP_STEPS = 5
MODELS = {
    "1m": ("num_layers=4", "hidden_size=128", "num_heads=4", "ffn_size=512"),
    "10m": ("num_layers=6", "hidden_size=384", "num_heads=6", "ffn_size=1536"),
}
SHAPES = {"1 x 4 x 256": (4, 4, 256), "4 micro-batches of 1 x 256": (4, 1, 256), "1 x 8 x 512": (8, 8, 512)}
"""Global batch, micro-batch, sequence length."""


def prepared_run(folder: Path, model: str, shape: tuple[int, int, int]) -> Run:
    """A run of the model on the Python library's own text, tokenized here."""
    global_batch, micro_batch, length = shape
    text = [path.read_text("utf-8") for path in sorted(Path(json.__file__).parent.parent.glob("*.py"))[:150]]
    source = folder / "text.jsonl"
    source.write_text("\n".join(json.dumps({"text": one}) for one in text))
    build_tokens([source], folder / "data", train_tokenizer(text, vocab_size=8192), workers=1)
    config = resolve(
        TrainConfig,
        overrides=(
            f"run_dir={folder / 'run'}",
            f"data.path={folder / 'data_text_document'}",
            "data.split='1'",
            f"data.sequence_length={length}",
            "model.kind=gpt2",
            "model.vocab_size=8192",
            f"model.max_sequence_length={length}",
            *(f"model.{setting}" for setting in MODELS[model]),
            f"micro_batch_size={micro_batch}",
            f"global_batch_size={global_batch}",
            "num_steps=10000",
            "data.max_epochs=100000",
            "validation.interval=0",
        ),
        presets=presets(),
    ).value
    return build_run(config)


def groundup_step(run: Run, batch: Batch) -> None:
    """As ``train.loop`` makes a step."""
    run.heartbeat.record(run.state.step + 1, "training")
    RngStates.now()
    train_step(run.state, batch, run.config, run.precision, run.mesh)


def plain_step(run: Run, batch: Batch) -> float:
    """As one would write it by hand."""
    model, config = run.state.model, run.config
    assert model.head is not None, "the model is whole"
    num_targets = batch.targets_BT.numel()
    total = torch.zeros(())
    for tokens_BT, targets_BT in zip(
        batch.tokens_BT.split(config.micro_batch_size),
        batch.targets_BT.split(config.micro_batch_size),
        strict=True,
    ):
        with run.precision.autocast():
            loss = linear_cross_entropy(
                model(tokens_BT).flatten(0, 1),
                model.head.weight,
                targets_BT.flatten(),
                vocab_size=model.config.vocab_size,
            )
        (loss / num_targets).backward()
        total += loss.detach()
    torch.nn.utils.clip_grad_norm_(model.parameters(), config.clip_grad_norm)
    run.state.optimizers.step()
    run.state.optimizers.zero_grad()
    return float(total) / num_targets


def seconds_of(steps: Sequence[Callable[[], object]], rounds: int) -> list[list[float]]:
    """Times of each step, which take turns; warm-up left out."""
    found: list[list[float]] = [[] for _ in steps]
    for number in range(WARMUP_STEPS + rounds):
        order = list(enumerate(steps))
        for which, step in order if number % 2 else reversed(order):  # neither always comes first
            begin = time.perf_counter()
            step()
            if number >= WARMUP_STEPS:
                found[which].append(time.perf_counter() - begin)
    return found


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """All cases."""
    cases = []
    for model in MODELS:
        for name, shape in SHAPES.items():
            with tempfile.TemporaryDirectory() as folder:
                run = prepared_run(Path(folder), model, shape)
                batch = read_batch(
                    run.data.train.samples,
                    0,
                    shape[0],
                    vocab_size=run.config.model.vocab_size,
                    mask_documents=False,
                )
                if not arguments.busy:
                    wait_for_idle_cpu()
                ours, plain = seconds_of(
                    [functools.partial(step, run, batch) for step in (groundup_step, plain_step)],
                    arguments.steps,
                )
            ratios = sorted(one / other for one, other in zip(ours, plain, strict=True))
            cases.append(
                {
                    "model": model,
                    "shape": name,
                    "groundup_ms": 1e3 * statistics.median(ours),
                    "plain_ms": 1e3 * statistics.median(plain),
                    "median_of_ratios": statistics.median(ratios),
                }
            )
            print(cases[-1], flush=True)
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": describe_machine("torch"),
        "steps": arguments.steps,
        "cases": cases,
    }


def render(result: dict[str, Any]) -> str:
    """The results as Markdown."""
    lines = [
        "# What the machinery of layouts costs one process",
        "",
        f"{result['date']}; GPT-2 shapes, bf16 where the machine has it, {result['steps']} steps of each,"
        " taking turns; medians. Made by `benchmarks/overhead.py`.",
        "",
        *(f"- {name}: {value}" for name, value in result["machine"].items()),
        "",
        "| model | batch | groundup | plain loop | overhead |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {case['model']} | {case['shape']} | {case['groundup_ms']:.2f} ms | {case['plain_ms']:.2f} ms"
        f" | {case['median_of_ratios'] - 1:+.1%} |"
        for case in result["cases"]
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measures and writes the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=60, help="of each kind, after the warm-up")
    parser.add_argument("--busy", action="store_true", help="do not wait for an idle CPU")
    parser.add_argument("--results-dir", type=Path, default=RESULTS_DIR)
    arguments = parser.parse_args()
    result = measure(arguments)
    arguments.results_dir.mkdir(parents=True, exist_ok=True)
    (arguments.results_dir / "overhead.json").write_text(json.dumps(result, indent=2) + "\n")
    (arguments.results_dir / "overhead.md").write_text(render(result))
    print(render(result))


if __name__ == "__main__":
    main()
