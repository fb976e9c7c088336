"""The commands of docs/guides/publishing.md run as they stand, and so does the code of the cards."""

import contextlib
import re

import pytest

from tests.chats import finetuning, write_talks
from tests.guides import commands, run
from tests.runs import make_config, make_data
from tests.runs import run as train

GUIDE = "docs/guides/publishing.md"


@pytest.mark.slow
def test_every_command_runs_and_the_code_of_cards_too(tmp_path, capsys):
    train(make_config(make_data(tmp_path), tmp_path / "run", "num_steps=1"))
    convert, push = commands(GUIDE)
    run(convert, tmp_path)
    listed = run(push, tmp_path)
    assert "README.md" in listed and "Nothing was sent" in listed
    chat = finetuning(
        tmp_path / "exported", write_talks(tmp_path / "talks.jsonl"), tmp_path / "chat", "num_steps=1"
    )
    train(chat)
    for name in ("run", "chat"):
        run(f"groundup convert {name} {name}-published --to hf", tmp_path)
        card = (tmp_path / f"{name}-published" / "README.md").read_text()
        [code] = re.findall(r"^```python\n(.*?)^```", card, re.DOTALL | re.MULTILINE)
        with contextlib.chdir(tmp_path):
            exec(code.replace("max_new_tokens=64", "max_new_tokens=4"), {})
        assert ("apply_chat_template" in code) == (name == "chat")
        assert capsys.readouterr().out
