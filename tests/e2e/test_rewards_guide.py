"""The commands of docs/guides/rewards.md run as they stand, on its own prompts and rewards."""

import orjson
import pytest

from groundup.checkpoint.huggingface.weights import write_huggingface, write_stored
from groundup.finetune.templates import with_template
from groundup.train.init_weights import open_start
from tests.guides import blocks, commands, run
from tests.tiny import tiny_model

GUIDE = "docs/guides/rewards.md"


@pytest.mark.slow
def test_every_command_runs(tmp_path):
    write_huggingface(tiny_model("gpt2"), tmp_path / "runs/base")
    write_stored(with_template(open_start(tmp_path / "runs/base"), "plain"), tmp_path / "runs/chat")
    (prompts,), (rewards,) = blocks(GUIDE, "json"), blocks(GUIDE, "python")
    (tmp_path / "prompts.jsonl").write_text(prompts)
    (tmp_path / "rewards.py").write_text(rewards)
    lines = commands(GUIDE)
    assert len(lines) == 4
    for line in lines:
        run(f"{line} device=cpu" if "finetune" in line else line, tmp_path)
    last = (tmp_path / "runs/brief/samples.jsonl").read_bytes().splitlines()[-1]
    one = orjson.loads(last)
    number, brevity = one["rewards"].values()
    assert brevity == -len(one["completion"]) / 16
    assert one["reward"] == pytest.approx(number + 0.2 * brevity)
    assert (tmp_path / "runs/prompts-grpo/checkpoints").is_dir()
