"""A small real dataset and the config of a run on it, for tests that train."""

from pathlib import Path

import orjson

from groundup.checkpoint.native.contents import CheckpointAbout, CheckpointManifest, TrainingCounts
from groundup.cli.task_scores import task_scorer
from groundup.cli.train import complete, evaluate
from groundup.core.config import resolve, to_yaml
from groundup.core.manifest import FileRecord
from groundup.tokens.tokenize import build_tokens
from groundup.tokens.tokenizer.train_bpe import train_tokenizer
from groundup.train.config import TrainConfig
from groundup.train.loop import train

SENTENCES = (
    "the cat sat on the mat and looked at the moon",
    "a dog ran over the hill to find a stone",
    "when the rain came the river rose above the bridge",
    "she wrote a letter to the man who sold the boat",
)


def checkpoint_manifest(files: dict[str, FileRecord]) -> CheckpointManifest:
    """The manifest of a checkpoint of which only the files matter."""
    return CheckpointManifest(
        counts=TrainingCounts(step=1, samples=1),
        files=files,
        about=CheckpointAbout(config={}, tokenizer="none"),
    )


def make_data(folder: Path) -> Path:
    """Sixty documents of a few hundred tokens; returns the prefix of .bin and .idx."""
    documents = [
        {"text": ". ".join(SENTENCES[(i * j + j) % 4][i % 7 :] for j in range(40))} for i in range(60)
    ]
    source = folder / "documents.jsonl"
    source.write_bytes(b"\n".join(orjson.dumps(document) for document in documents))
    tokenizer = train_tokenizer((document["text"] for document in documents), vocab_size=300)
    build_tokens([source], folder / "data", tokenizer, workers=0)
    return folder / "data_text_document"


def make_config(data: Path, run_dir: Path, *overrides: str) -> TrainConfig:
    """A two-layer GPT-2 for six steps in fp32, deterministic."""
    base = (
        f"run_dir={run_dir}",
        f"data.path={data}",
        "data.split=80,10,10",
        "data.sequence_length=32",
        "model.kind=gpt2",
        "model.vocab_size=300",
        "model.max_sequence_length=32",
        "model.num_layers=2",
        "model.hidden_size=32",
        "model.num_heads=2",
        "model.ffn_size=64",
        "num_steps=6",
        "micro_batch_size=2",
        "global_batch_size=4",
        "precision=fp32",
        "device=cpu",
        "deterministic=true",
        "log.interval=1",
        "checkpoint.interval=3",
        "validation.interval=0",
    )
    return resolve(TrainConfig, overrides=(*base, *overrides)).value


def write_run(folder: Path, *overrides: str) -> None:
    """Data and ``run.yaml`` in a folder, as the guides take them for granted."""
    (folder / "run.yaml").write_text(to_yaml(make_config(make_data(folder), folder / "unnamed", *overrides)))


def run(config: TrainConfig, **callbacks) -> list[dict]:
    """Trains, and returns the records of ``metrics.jsonl``."""

    own = {"evaluate": evaluate, "complete": complete, "score_tasks": task_scorer(config)}
    train(config, **{**own, "learning": config.learning(), **callbacks})
    return records_of(config)


def records_of(config: TrainConfig) -> list[dict]:
    """What a run has written to ``metrics.jsonl``."""
    return [orjson.loads(line) for line in (config.run_dir / "metrics.jsonl").read_bytes().splitlines()]


def losses(records: list[dict]) -> dict[int, float]:
    """Step -> loss."""
    return {record["step"]: record["loss"] for record in records if record["kind"] == "train"}
