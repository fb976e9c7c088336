"""The commands of docs/guides/finetuning.md run as they stand."""

import gzip
import json
import random

import pytest
import transformers

from groundup.checkpoint.formats import open_model
from tests.chats import TALKS, messages, write_base, write_chats
from tests.guides import commands, run

GUIDE = "docs/guides/finetuning.md"


@pytest.fixture
def folder(tmp_path):
    """With the model and the conversations that the guide takes for granted."""
    write_base(tmp_path / "base")
    rng = random.Random(0)
    words = ["".join(rng.choice("abcd") for _ in range(4)) for _ in range(40)]
    pairs = [{"prompt": f"copy {word}", "completion": word} for word in words]
    write_chats(tmp_path / "chats.jsonl", [*pairs, *({"messages": messages(talk)} for talk in TALKS)])
    asked = "".join(json.dumps({"ask": one["prompt"], "reply": one["completion"]}) + "\n" for one in pairs)
    (tmp_path / "pairs.jsonl.gz").write_bytes(gzip.compress(asked.encode()))
    return tmp_path


@pytest.mark.example
def test_every_command_runs(folder):
    lines = commands(GUIDE)
    assert len(lines) == 6
    for line in lines:
        run(line, folder)
    chat = transformers.AutoTokenizer.from_pretrained(folder / "chat-hf")
    asked = [{"role": "user", "content": "copy abcd"}]
    shown = chat.apply_chat_template(asked, add_generation_prompt=True, tokenize=False)
    assert shown == "<|user|>copy abcd<|assistant|>"
    assert "<|im_end|>" in open_model(folder / "runs/chatml", device="cpu").tokenizer.special_tokens
    watched = (folder / "runs/watched/metrics.jsonl").read_text().splitlines()
    assert {json.loads(line)["kind"] for line in watched} == {"train", "validation"}
