"""The steps of a corpus one at a time, as a user types them."""

import json

import pytest

from groundup.__main__ import main
from groundup.cli.corpus_steps import _gigabytes
from groundup.core.errors import ConfigError
from groundup.core.files import read_json
from tests.unit.corpus.test_filters import PROSE
from tests.unit.corpus.test_pipeline import lines_of


@pytest.fixture
def say(tmp_path, monkeypatch, capsys):
    """Runs a command line in the folder of the test; returns exit code, stdout and stderr."""

    def run(line: str):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr("sys.argv", ["groundup", *line.split()])
        try:
            main()
            code = 0
        except SystemExit as stop:
            code = stop.code or 0
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def pages(tmp_path):
    """Prose, a copy with a word more, a menu, and prose of another language, told apart by their ids."""
    german = "Der schnelle braune Fuchs springt über den faulen Hund, und niemand weiß warum das so ist. " * 5
    texts = {"prose": PROSE, "copy": f"{PROSE} Again.", "menu": "Home | About", "german": german}
    lines = [json.dumps({"id": name, "text": text, "score": 3}) for name, text in texts.items()]
    (tmp_path / "pages.jsonl").write_text("\n".join(lines) + "\n")


def ids(folder):
    return [entry["id"] for entry in lines_of(*sorted(folder.glob("documents-*.zst")))]


def test_one_step_after_the_other(say, pages, tmp_path):
    assert say("corpus import pages.jsonl -o all --workers 0")[0] == 0
    assert ids(tmp_path / "all") == ["prose", "copy", "menu", "german"]
    code, out, _ = say("corpus clean all gopher_quality.min_words=20 -o clean --workers 0")
    assert code == 0 and "language: other language" in out
    assert ids(tmp_path / "clean") == ["prose", "copy"]
    (first, _) = lines_of(*(tmp_path / "clean").glob("documents-*.zst"))
    assert first["meta"]["language"] == "en" and first["meta"]["score"] == 3
    code, out, _ = say("corpus dedup clean -o unique --keep longest --memory 100M --workers 0")
    assert code == 0 and "near_duplicate" in out
    assert ids(tmp_path / "unique") == ["copy"]
    (tmp_path / "items.jsonl").write_text(json.dumps({"text": PROSE}) + "\n")
    assert say("corpus decontaminate all --against items.jsonl -o train --workers 0")[0] == 0
    assert ids(tmp_path / "train") == ["menu", "german"]
    code, _, _ = say("corpus decontaminate all --against items.jsonl -o same --report-only --workers 0")
    assert code == 0 and len(ids(tmp_path / "same")) == 4
    assert say("corpus shuffle all --seed 5 -o mixed --workers 0")[0] == 0
    assert sorted(ids(tmp_path / "mixed")) == sorted(ids(tmp_path / "all")) != ids(tmp_path / "mixed")
    assert read_json(tmp_path / "mixed" / "manifest.json")["about"]["recipe"]["stages"][1]["seed"] == 5


def test_exact_duplicates_alone(say, pages, tmp_path):
    text = (tmp_path / "pages.jsonl").read_text()
    (tmp_path / "twice.jsonl").write_text(text + text)
    assert say("corpus dedup twice.jsonl --exact -o once --workers 0")[0] == 0
    assert ids(tmp_path / "once") == ["prose", "copy", "menu", "german"]


def test_audit_prints_what_is_found(say, pages):
    code, out, _ = say("corpus audit pages.jsonl --threshold 0.8")
    assert code == 0 and out.startswith("4 documents; ")
    (row,) = (line.split() for line in out.splitlines() if line.startswith("0.9 to 1.0"))
    assert row[3:5] == ["1", "1"]
    assert "found" in out.splitlines()[-1] and "prose  copy" in out.splitlines()[-1]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("corpus clean pages.jsonl length.min_words=3 -o out", "length is not among the filters"),
        ("corpus clean pages.jsonl --filters language,lenght -o out", "Did you mean 'length'?"),
        ("corpus clean pages.jsonl language.kep=[en] -o out", "keep"),
        ("corpus clean pages.jsonl language.keep=[en -o out", "language.keep"),
        ("corpus dedup pages.jsonl --memory lots -o out", "--memory: 'lots' is no amount of memory"),
        ("corpus dedup pages.jsonl --threshold 1.5 -o out", "threshold 1.5 is not between 0 and 1"),
        ("corpus decontaminate pages.jsonl --against none.jsonl -o out", "there is no such file of items"),
        ("corpus shuffle none.jsonl -o out", "none.jsonl"),
    ],
)
def test_mistakes_are_told_in_a_sentence(say, pages, line, message):
    code, _, err = say(f"{line} --workers 0")
    assert code != 0 and message in err and "Traceback" not in err


def test_amounts_of_memory():
    assert [_gigabytes(text) for text in ("2G", "500M", "1.5 GB", "1TiB")] == [2.0, 0.5, 1.5, 1000.0]
    with pytest.raises(ConfigError, match="no amount"):
        _gigabytes("-1G")
