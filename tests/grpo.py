"""A tiny GRPO run on prompts of its own, for tests that train."""

from pathlib import Path

import orjson

from groundup.checkpoint.huggingface.weights import write_huggingface
from groundup.core.config import resolve
from groundup.finetune.config import FinetuneConfig
from tests.runs import run
from tests.tiny import tiny_model

REWARDS = '''
def letters(prompt, completion, record):
    """The share of a letter of the record's."""
    return completion.count(record["letter"]) / max(1, len(completion))
'''


def make_prompts(folder: Path) -> Path:
    """Eight prompts, rewards and a model to begin with; returns the folder."""
    write_huggingface(tiny_model("gpt2"), folder / "model")
    records = [{"prompt": f"say {'ab'[i % 2]} {i}", "letter": "ea"[i % 2], "answer": i} for i in range(8)]
    (folder / "prompts.jsonl").write_bytes(b"\n".join(map(orjson.dumps, records)))
    (folder / "rewards.py").write_text(REWARDS)
    return folder


def grpo_config(folder: Path, run_dir: Path, *overrides: str) -> FinetuneConfig:
    """Six steps of eight completions in fp32, deterministic."""
    base = (
        f"run_dir={run_dir}",
        f"data.path={folder / 'prompts.jsonl'}",
        "data.sequence_length=32",
        f"start.path={folder / 'model'}",
        "model.kind=gpt2",
        "model.vocab_size=300",
        "model.max_sequence_length=64",
        "model.num_layers=2",
        "model.hidden_size=32",
        "model.num_heads=4",
        "model.ffn_size=48",
        "stage.kind=grpo",
        f"stage.reward={folder / 'rewards.py'}:letters",
        "stage.group_size=4",
        "stage.max_new_tokens=8",
        "num_steps=6",
        "micro_batch_size=4",
        "global_batch_size=8",
        "optimizer.lr=1e-3",
        "precision=fp32",
        "device=cpu",
        "deterministic=true",
        "log.interval=1",
        "checkpoint.interval=3",
        "validation.interval=0",
    )
    return resolve(FinetuneConfig, overrides=(*base, *overrides)).value


def run_grpo(config: FinetuneConfig, **callbacks) -> list[dict]:
    """Trains, and returns the records of its steps in ``metrics.jsonl``."""
    records = run(config, learning=config.learning(), **callbacks)
    return [record for record in records if record["kind"] == "train"]


def samples_of(config: FinetuneConfig) -> list[dict]:
    """The lines of ``samples.jsonl``."""
    return [orjson.loads(line) for line in (config.run_dir / "samples.jsonl").read_bytes().splitlines()]
