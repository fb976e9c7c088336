import dataclasses
import json

import pytest

from groundup.cli.corpus import show, stats, trace
from groundup.core.errors import ConfigError, DataError
from groundup.core.executor.tasks import SerialRunner
from groundup.corpus.filters import Length
from groundup.corpus.pipeline import run_recipe
from groundup.corpus.recipe import default_recipe

RECORDS = [
    {"id": "a", "url": "http://a", "text": "a text that is long enough"},
    {"id": "b", "url": "http://b", "text": "short"},
    {"id": "c", "url": "http://c", "text": "a text that is long  enough"},
    {"id": "d", "url": "", "text": "brief"},
    {"id": "e", "url": "", "text": "two parts of it " * 4},
]


@pytest.fixture
def made(tmp_path):
    """A corpus folder and its report."""
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(record) + "\n" for record in RECORDS))
    recipe = default_recipe(
        [tmp_path / "in.jsonl"], filters=[Length(min_characters=9)], cut_characters=40, shuffle_seed=None
    )
    recipe = dataclasses.replace(recipe, keep_stages=False)
    return tmp_path / "out", run_recipe(recipe, tmp_path / "out", SerialRunner())


def test_what_was_dropped_is_counted_and_shown(made, capsys):
    folder, report = made
    stats(folder)
    assert capsys.readouterr().out == f"{report.table()}\n"
    show(folder, reason="length:too short", number=1)
    assert capsys.readouterr().out == "b http://b [length: too short]\nshort\n\n"
    show(folder, reason="length")
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines() if "[" in line] == ["b", "d"]
    with pytest.raises(ConfigError, match=r"Reasons: length:too short, exact_duplicate:seen before"):
        show(folder, reason="length:too long")


@pytest.mark.parametrize(
    ("name", "verdicts"),
    [
        ("http://a", ["kept: a in"]),
        ("a", ["kept: a in"]),
        ("b", ["length: too short: b in"]),
        ("http://c", ["exact_duplicate: seen before: c in"]),
        ("e", ["kept: e#0 in", "kept: e#1 in"]),
        ("{source}:5", ["kept: e#0 in", "kept: e#1 in"]),
    ],
)
def test_a_document_is_traced(made, tmp_path, capsys, name, verdicts):
    folder, _ = made
    trace(folder, name.format(source=tmp_path / "in.jsonl"))
    lines = capsys.readouterr().out.splitlines()
    if name == "http://c":
        assert lines.pop() == "  kept in its place: a"
    assert [line.rsplit(" ", 1)[0] for line in lines] == verdicts
    assert all(line.rsplit(" ", 1)[1].startswith(str(folder)) for line in lines)


def test_nothing_is_found_where_nothing_is(made, tmp_path):
    with pytest.raises(DataError, match="no document has the id, URL or origin 'z'"):
        trace(made[0], "z")
    for verb in (stats, lambda folder: trace(folder, "a"), lambda folder: show(folder, reason="length")):
        with pytest.raises(DataError, match="is not a finished corpus"):
            verb(tmp_path)
