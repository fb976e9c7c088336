"""A tiny base model learns from conversations what it is then asked about items that it has not seen."""

import itertools
import random
from pathlib import Path

import pytest

from groundup.checkpoint.formats import open_model
from groundup.checkpoint.huggingface.weights import write_huggingface
from groundup.checkpoint.lazy import LoadedModel
from groundup.cli.train import run_training
from groundup.inference.chat_template import read_chat_template
from groundup.inference.engine import Engine
from groundup.inference.sampler import Sampling
from groundup.models import build_model
from groundup.models.init import initialise
from groundup.models.llama import LlamaConfig
from groundup.tokens.tokenizer.load_tokenizer import load_tokenizer
from tests.chats import finetuning, write_chats

HELD_OUT = 300


def base_model(folder: Path) -> Path:
    """Three layers on bytes, with random weights: nobody has told it anything."""
    config = LlamaConfig(
        vocab_size=257,
        max_sequence_length=128,
        num_layers=3,
        hidden_size=128,
        ffn_size=384,
        num_heads=4,
        num_kv_heads=4,
        tied_embedding=True,
    )
    model = build_model(config)
    initialise(model, config, seed=0)
    bytes_ = load_tokenizer("bytes")
    loaded = LoadedModel(config=config, model=model.eval(), tokenizer=bytes_, source=Path("tiny"))
    write_huggingface(loaded, folder)
    return folder


def copying() -> list[tuple[str, str]]:
    words = map("".join, itertools.product("abcdefgh", repeat=4))
    return [(f"copy {word}", word) for word in words]


def arithmetic() -> list[tuple[str, str]]:
    return [(f"{a}+{b}", str(a + b)) for a, b in itertools.product(range(10, 100), repeat=2)]


def answers(run_dir: Path, questions: list[str]) -> list[str]:
    """What the model says to questions, each by itself, without chance."""
    loaded = open_model(run_dir, device="cpu")
    template = read_chat_template(loaded.companions, loaded.tokenizer.special_tokens)
    prompts = []
    for question in questions:
        parts = template.render([{"role": "user", "content": question}])
        ids = ([part] if isinstance(part, int) else loaded.tokenizer.encode(part) for part in parts)
        prompts.append(list(itertools.chain(*ids)))
    made = Engine(loaded).generate(
        prompts, sampling=Sampling(temperature=0.0), max_new_tokens=8, stop_ids=loaded.stop_ids
    )
    return [generation.text for generation in made]


@pytest.mark.example
@pytest.mark.parametrize(("task", "num_steps"), [(copying, 300), (arithmetic, 1200)])
def test_a_synthetic_task_is_learned(task, num_steps, tmp_path):
    items = task()
    random.Random(1).shuffle(items)
    held_out = items[:HELD_OUT]
    records = ({"prompt": question, "completion": answer} for question, answer in items[HELD_OUT:])
    chats = write_chats(tmp_path / "chats.jsonl", records)
    config = finetuning(
        base_model(tmp_path / "base"),
        chats,
        tmp_path / "run",
        *("optimizer.lr=3e-3", "global_batch_size=16", "micro_batch_size=16", f"num_steps={num_steps}"),
        *("schedule_steps=2500", "log.interval=100", "deterministic=false"),
    )
    run_training(config)
    said = answers(config.run_dir, [question for question, _ in held_out])
    right = sum(found == answer for found, (_, answer) in zip(said, held_out, strict=True))
    assert right > 0.95 * HELD_OUT, list(zip(said, held_out, strict=True))[:20]
