"""``groundup autotune`` as its guide shows it: what it measures, finds, keeps and refuses."""

import json
import shutil

import orjson
import pytest

from tests.guides import commands, run, shell
from tests.runs import write_run

pytestmark = pytest.mark.slow

GUIDE = "docs/guides/autotune.md"
SHORT = "--seconds 0 --steps 2 --no-compile --divisions 2"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("guide")
    write_run(folder)
    return folder


def losses(run_dir):
    records = map(orjson.loads, (run_dir / "metrics.jsonl").read_bytes().splitlines())
    return [record["loss"] for record in records if record["kind"] == "train"]


def test_every_command_runs_and_what_is_found_learns_the_same(folder):
    first, second, last = commands(GUIDE)
    shown = run(f"{first} {SHORT}", folder)
    assert "1 rank on " in shown and "as configured" in shown
    shown = run(f"{second} {SHORT}", folder)
    assert "2 ranks on " in shown and "layout.dp=2" in shown
    run(f"{last} run_dir=tuned num_steps=4", folder)
    run("groundup train run.yaml run_dir=plain num_steps=4", folder)
    assert losses(folder / "tuned") == pytest.approx(losses(folder / "plain"), rel=1e-5)


def test_what_is_known_is_not_measured_again(folder):
    words = f"groundup autotune run.yaml run_dir=known --json {SHORT}"
    found = json.loads(run(words, folder))
    rows = found["measured"]
    assert rows[0]["settings"] == {} and all(row["tokens_per_second"] > 0 < row["memory"] for row in rows)
    assert {row["settings"].get("micro_batch_size", 2) for row in rows} >= {2, 4}
    assert {path.name for path in (folder / "known").iterdir()} == {"autotune.jsonl", "lock"}
    assert json.loads(run(words, folder))["measured"] == rows
    shutil.copytree(folder / "known", folder / "killed")
    journal = folder / "killed" / "autotune.jsonl"
    journal.write_bytes(journal.read_bytes()[:-9])  # in the midst of the last line
    (folder / "killed" / "autotune" / "probe").mkdir(parents=True)
    killed = json.loads(run(words.replace("known", "killed"), folder))["measured"]
    last = len(rows) - 1  # what is behind depends on how quick it is now
    assert killed[:last] == rows[:last] and killed[last]["settings"] == rows[last]["settings"]
    assert killed[last]["tokens_per_second"] != rows[last]["tokens_per_second"]
    assert not (folder / "killed" / "autotune").exists()
    assert json.loads(run(f"{words} --again", folder))["measured"] != rows


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("data.path=nothing", "nothing"),
        ("global_batch_size=2 micro_batch_size=2 --ranks 3", "2 samples cannot be divided among 3 ranks"),
        ("--out run.yaml", "--out run.yaml"),
        ("precision=bf61", "precision"),
        ("device=cuda --ranks 64", "GPU"),
        ("model.hidden_size=65536 model.ffn_size=262144", "nothing fits"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_trains(folder, words, said):
    done = shell(f"groundup autotune run.yaml run_dir=refused {words} --seconds 0", folder)
    assert done.returncode == 1 and said in done.stderr, (done.stdout, done.stderr)
    assert not done.stdout
