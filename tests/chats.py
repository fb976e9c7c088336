"""A tiny base model and conversations for it, for tests that fine-tune."""

import json
import math
import zlib
from collections.abc import Iterable
from pathlib import Path

import torch

from groundup.checkpoint.huggingface.weights import write_huggingface
from groundup.cli.run_config import run_config
from groundup.train.config import TrainConfig
from tests.tiny import tiny_model

TALKS = [
    [("user", "the cat"), ("assistant", "sat on the mat")],
    [("system", "be brief"), ("user", "two and two?"), ("assistant", "four")],
    [("user", "a b"), ("assistant", "c"), ("user", "d"), ("assistant", "e f")],
    [("user", "a"), ("assistant", "b")],
    [("user", "c?"), ("assistant", "d e")],
    [("user", "hé ☃"), ("assistant", "<|im_end|> is text")],
]
"""Conversations as (role, content)."""


def messages(talk: Iterable[tuple[str, str]]) -> list[dict[str, str]]:
    """A conversation as OpenAI writes it."""
    return [{"role": role, "content": content} for role, content in talk]


def write_chats(path: Path, records: Iterable[object]) -> Path:
    """Writes records as JSON lines; texts as they are."""
    lines = (one if isinstance(one, str) else json.dumps(one) for one in records)
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def write_talks(path: Path) -> Path:
    """Writes ``TALKS`` in OpenAI's form."""
    return write_chats(path, ({"messages": messages(talk)} for talk in TALKS))


def write_base(folder: Path, name: str = "llama-grouped-tied", **changes: object) -> Path:
    """A model for Hugging Face whose weights are a formula, the same with every version of everything."""
    loaded = tiny_model(name, **changes)
    with torch.no_grad():
        for key, parameter in loaded.model.named_parameters():
            numbers = torch.arange(parameter.numel(), dtype=torch.float64) * math.sqrt(2)
            wave = torch.sin(numbers + zlib.crc32(key.encode()) % 1000)
            parameter.copy_((1.0 if parameter.ndim == 1 else 0.0) + 0.2 * wave.view(parameter.shape))
    write_huggingface(loaded, folder)
    return folder


def finetuning(base: Path, chats: Path, run_dir: Path, *overrides: str) -> TrainConfig:
    """The config of a few deterministic steps in fp32."""
    words = (
        f"start.path={base}",
        f"data.path={chats}",
        f"run_dir={run_dir}",
        "data.split=1,0,0",
        "device=cpu",
        "precision=fp32",
        "deterministic=true",
        "micro_batch_size=1",
        "global_batch_size=2",
        "log.interval=1",
        "validation.interval=0",
        *overrides,
    )
    return run_config(None, words, finetunes=True).value
