"""GRPO raises a measured reward, from a model that was tuned on answers of which half are wrong."""

import random

import orjson
import pytest

from groundup.cli.run_config import run_config
from groundup.tokens.tokenize import build_tokens
from groundup.tokens.tokenizer.train_bpe import train_tokenizer
from tests.grpo import run_grpo, samples_of
from tests.runs import run

MODEL = (
    "model.kind=gpt2",
    "model.vocab_size=257",
    "model.max_sequence_length=64",
    "model.num_layers=2",
    "model.hidden_size=64",
    "model.num_heads=4",
    "model.ffn_size=128",
)
ALL = ("precision=fp32", "device=cpu", "validation.interval=0", "micro_batch_size=32", "log.interval=10")


@pytest.mark.example
def test_grpo_raises_the_reward_of_a_tuned_model(tmp_path):
    draw = random.Random(5)
    sums = [(a, b) for a in range(10) for b in range(10)]
    chats = [
        {"prompt": f"{a}+{b}=", "completion": str(a + b if draw.random() < 0.5 else draw.randrange(19))}
        for a, b in sums * 40
    ]
    texts = [{"text": one["prompt"] + one["completion"]} for one in chats]
    prompts = [{"prompt": f"{a}+{b}=", "answer": a + b} for a, b in sums]
    for name, records in {"texts": texts, "chats": chats, "prompts": prompts}.items():
        (tmp_path / f"{name}.jsonl").write_bytes(b"\n".join(map(orjson.dumps, records)))
    tokenizer = train_tokenizer((one["text"] for one in texts), vocab_size=257)
    build_tokens([tmp_path / "texts.jsonl"], tmp_path / "data", tokenizer, workers=1)

    def config(name, *settings, finetunes=True):
        settings = (f"run_dir={tmp_path / name}", "data.sequence_length=64", *ALL, *settings)
        return run_config(None, settings, finetunes=finetunes).value

    data = f"data.path={tmp_path / 'data_text_document'}"
    run(config("base", *MODEL, data, "num_steps=50", "global_batch_size=32", finetunes=False))
    start, data = f"start.path={tmp_path / 'base'}", f"data.path={tmp_path / 'chats.jsonl'}"
    tuning = config("tuned", start, data, "num_steps=600", "optimizer.lr=3e-3", "global_batch_size=32")
    run(tuning, learning=tuning.learning())
    start, data = f"start.path={tmp_path / 'tuned'}", f"data.path={tmp_path / 'prompts.jsonl'}"
    stage = ("stage.kind=grpo", "stage.reward=number", "stage.max_new_tokens=4")
    rewarding = config(
        "rewarded", start, data, *stage, "num_steps=60", "optimizer.lr=3e-4", "global_batch_size=128"
    )
    records = run_grpo(rewarding)

    rewards = [record["reward"] for record in records]
    assert 0.2 < rewards[0] < 0.75
    assert rewards[-1] > rewards[0] + 0.1
    last = [one for one in samples_of(rewarding) if one["step"] > 50]
    assert sum(one["reward"] for one in last) / len(last) == pytest.approx(rewards[-1])
