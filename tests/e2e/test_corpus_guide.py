"""The commands of docs/guides/corpus.md run as they stand, and print what is shown."""

import json

import pytest

from groundup.core.files import read_json
from tests.guides import blocks, commands, require_sessions, run

GUIDE = "docs/guides/corpus.md"
POSTS = ["A post that is long enough to stay.", "short", "The same   words as in a note, and no others here."]


@pytest.fixture
def folder(tmp_path):
    """With the sources that the guide takes for granted."""
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.md").write_text("The same words as in a note, and no others here.")
    (tmp_path / "notes" / "b.txt").write_text("Caf\u00c3\u00a9 is what was meant, it was decoded badly.")
    (tmp_path / "notes" / "c.txt").write_text("A line with blanks behind it.  \n\nAnd another one.\n")
    (tmp_path / "posts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in POSTS))
    (recipe,) = blocks(GUIDE, "yaml")
    (tmp_path / "recipe.yaml").write_text(recipe)
    return tmp_path


def test_what_is_shown_is_what_is_printed(folder):
    assert require_sessions(GUIDE, folder) == 1


@pytest.mark.slow
def test_every_command_runs(folder):
    printed = [run(line, folder) for line in commands(GUIDE)]
    assert len(printed) == 9
    assert printed[2] == "posts.jsonl:2 [length: too short]\nshort\n\n"
    assert printed[3].startswith("exact_duplicate: seen before: posts.jsonl:3 in corpus/excluded.jsonl.zst:")
    assert "left to other ranks" in printed[6]
    manifests = [read_json(folder / name / "manifest.json") for name in ("corpus", "shared")]
    assert manifests[0]["counts"] == manifests[1]["counts"]
    assert not (folder / "corpus" / ".stages").exists()
