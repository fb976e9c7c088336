"""The commands of docs/guides/lora.md run as they stand, and PEFT computes what merging gives."""

import json
from typing import Any

import pytest
import torch

from groundup.core.config import to_yaml
from tests.guides import blocks, commands, run
from tests.runs import make_config, make_data

peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")


@pytest.fixture
def folder(tmp_path):
    """With the run and the conversations that the guide takes for granted."""
    config = make_config(make_data(tmp_path), tmp_path / "runs/gpt2", "num_steps=2", "device=cpu")
    (tmp_path / "run.yaml").write_text(to_yaml(config))
    run("groundup train run.yaml", tmp_path)
    turns = [{"role": "user", "content": "a cat"}, {"role": "assistant", "content": "sat"}]
    (tmp_path / "chats.jsonl").write_text((json.dumps({"messages": turns}) + "\n") * 40)
    return tmp_path


@pytest.mark.slow
def test_every_command_runs_and_peft_computes_the_same(folder, monkeypatch):
    lines = commands("docs/guides/lora.md")
    assert len(lines) == 8
    for line in lines:
        run(line, folder)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (script,) = blocks("docs/guides/lora.md", "python")
    names: dict[str, Any] = {"peft": peft, "transformers": transformers}
    exec(script, names)
    tokens_BT = torch.arange(2, 26).view(2, 12)
    with torch.inference_mode():
        wanted = names["model"].eval()(tokens_BT).logits
        for merged in ("merged", "merged-too"):
            found = transformers.AutoModelForCausalLM.from_pretrained(merged).eval()(tokens_BT).logits
            torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)
