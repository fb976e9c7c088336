"""A small model, pairs on which it learns to prefer dogs, and runs on them."""

import json
from pathlib import Path

from groundup.checkpoint.huggingface.weights import write_huggingface
from groundup.cli.run_config import run_config
from groundup.train.config import TrainConfig
from tests.runs import run
from tests.tiny import tiny_model

NAMES = ("Ann", "Ben", "Cat", "Dan", "Eva", "Fay", "Gus")


def write_base_and_pairs(folder: Path) -> None:
    """Writes ``base``, a Hugging Face folder, and ``pairs.jsonl``, with answers of many lengths."""
    write_huggingface(tiny_model("llama-grouped-tied", init_std=0.05), folder / "base")
    records = [
        {
            "prompt": f"{NAMES[number % 7]} {number} has a ",
            "chosen": "dog." + number % 4 * " woof",
            "rejected": "cat." + number % 3 * " and a mouse",
        }
        for number in range(60)
    ]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))


def config(folder: Path, run_dir: Path, *overrides: str) -> TrainConfig:
    """Six steps of four rows in fp32, deterministic."""
    base = (
        f"start.path={folder / 'base'}",
        f"data.path={folder / 'pairs.jsonl'}",
        f"run_dir={run_dir}",
        "data.sequence_length=64",
        "data.split=80,20",
        "stage.kind=dpo",
        "num_steps=6",
        "micro_batch_size=2",
        "global_batch_size=4",
        "optimizer.lr=0.001",
        "precision=fp32",
        "device=cpu",
        "deterministic=true",
        "log.interval=1",
        "checkpoint.interval=3",
        "validation.interval=0",
    )
    return run_config(None, (*base, *overrides), finetunes=True).value


def train(config, **callbacks) -> list[dict]:
    """Trains by the stage of the config; returns the records of ``metrics.jsonl``."""
    return run(config, learning=config.learning(), **callbacks)
