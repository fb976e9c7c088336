import dataclasses
import gzip
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from groundup.__main__ import main
from groundup.cli.corpus import build
from groundup.core.compressed import open_decompressed
from groundup.core.errors import ConfigError, DataError, GroundupError, MachineError
from groundup.core.executor.tasks import ProcessRunner, SerialRunner
from groundup.core.files import read_json
from groundup.corpus import publish as publish_module
from groundup.corpus import shard as shard_module
from groundup.corpus.bad_records import BadRecordPolicy
from groundup.corpus.clean import Clean
from groundup.corpus.filters import FixUnicode, Length, NormalizeWhitespace
from groundup.corpus.pipeline import run_rank, run_recipe
from groundup.corpus.recipe import Recipe, default_recipe
from groundup.corpus.report import CorpusReport
from groundup.corpus.shuffle import Shuffle, key_of

TEXTS = ["one  \n", "two", "one", "", "long " * 50, "three", "tw\x07o"]
SERIAL = SerialRunner()
TWO = ProcessRunner(workers=2)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"".join(json.dumps({"text": text}).encode() + b"\n" for text in TEXTS))
    return path


def lines_of(*paths: Path) -> list[dict]:
    found = []
    for path in paths:
        with open_decompressed(path) as stream:
            found += [json.loads(line) for line in stream]
    return found


def documents(report: CorpusReport) -> list[dict]:
    return lines_of(*report.documents_paths)


def content(output_dir: Path) -> dict[str, bytes]:
    """The files of a corpus folder, without its page and what the stages have left."""
    files = [path for path in output_dir.iterdir() if path.is_file() and path.name != "report.html"]
    return {path.name: path.read_bytes() for path in files}


def made(recipe: Recipe, out: Path) -> CorpusReport:
    return run_recipe(recipe, out, SERIAL)


def test_a_corpus_is_cleaned_deduplicated_and_counted(source, tmp_path):
    out = tmp_path / "out"
    filters = (FixUnicode(), NormalizeWhitespace(), Length(max_characters=100))
    report = made(default_recipe([source], filters=filters, shuffle_seed=None), out)
    assert [(entry["id"], entry["text"]) for entry in documents(report)] == [
        ("in.jsonl:1", "one\n"),
        ("in.jsonl:2", "two"),
        ("in.jsonl:6", "three"),
    ]
    counts = report.counts
    dropped = {(entry.rule, entry.reason): (entry.documents, entry.examples) for entry in counts.dropped}
    assert dropped == {
        ("exact_duplicate", "seen before"): (2, ("in.jsonl:3", "in.jsonl:7")),
        ("length", "too short"): (1, ("in.jsonl:4",)),
        ("length", "too long"): (1, ("in.jsonl:5",)),
    }
    assert (counts.documents_read, counts.documents) == (7, 3)
    assert counts.bytes_read == sum(len(text) for text in TEXTS) and counts.bytes == 12
    assert counts.edited == {"fix_unicode": 1, "normalize_whitespace": 2}
    excluded = lines_of(out / "excluded.jsonl.zst")
    assert {(entry["rule"], entry["reason"]) for entry in excluded} == set(dropped) and len(excluded) == 4
    assert max(len(entry["text"]) for entry in excluded) == 200
    assert set(content(out)) == {"documents-00000-of-00001.jsonl.zst", "excluded.jsonl.zst", "manifest.json"}
    manifest = read_json(out / "manifest.json")
    assert manifest["kind"] == "corpus" and manifest["inputs"].keys() == {str(source)}
    assert [stage["kind"] for stage in manifest["about"]["recipe"]["stages"]] == [
        "import",
        "clean",
        "exact_dedup",
    ]


def test_dropped_documents_are_kept_whole_on_request(source, tmp_path):
    recipe = default_recipe([source], filters=[Length(max_characters=100)])
    made(dataclasses.replace(recipe, keep_dropped=True), tmp_path / "out")
    (dropped,) = (
        entry for entry in lines_of(tmp_path / "out/excluded.jsonl.zst") if entry["reason"] == "too long"
    )
    assert dropped["text"] == TEXTS[4] and dropped["meta"] == {"origin": f"{source}:5"}


def test_a_second_run_has_nothing_to_do_until_something_changes(source, tmp_path):
    recipe, out = default_recipe([source]), tmp_path / "out"
    first = made(recipe, out)
    (path,) = first.documents_paths
    before = path.stat().st_mtime_ns
    again = made(recipe, out)
    assert again.reused and not first.reused
    assert again.table() == first.table() and again.counts == first.counts
    assert path.stat().st_mtime_ns == before
    path.unlink()
    path.write_bytes(b"cut")
    assert not made(recipe, out).reused and documents(again) == documents(first)
    source.write_bytes(source.read_bytes() + b'{"text": "more"}\n')
    changed = made(recipe, out)
    assert not changed.reused and changed.counts.documents == first.counts.documents + 1
    (out / "manifest.json").write_text("{")
    assert not made(recipe, out).reused


# Whoever does it, in however many shards


def write_sources(folder: Path, *, scale: int = 1) -> Path:
    """Files of all kinds, with bad records, broken Unicode and duplicates."""
    generator = random.Random(1)
    folder.mkdir()

    def text(number: int) -> str:
        words = " ".join(generator.choices(["cat", "caf\u00c3\u00a9", "dog", "mat  \n", "x"], k=number % 40))
        return words if number % 7 else f"the same {number % 5}"

    rows = [json.dumps({"text": text(n), "url": f"http://{n}"}).encode() for n in range(600 * scale)]
    rows[5] = rows[500] = b"{broken"
    (folder / "a.jsonl").write_bytes(b"\n".join(rows))
    packed = "".join(json.dumps({"id": f"b{n}", "text": text(n)}) + "\n" for n in range(300 * scale))
    (folder / "b.jsonl.gz").write_bytes(gzip.compress(packed.encode(), mtime=0))
    for number in range(20):
        (folder / f"c{number:02d}.txt").write_text(text(number) + " text")
    (folder / "d.txt").write_bytes(b"nul \0")
    return folder


ANY = BadRecordPolicy(action="quarantine", max_bad=1.0)


def recipe_of(folder: Path, num_shards: int | None = None, **options) -> Recipe:
    recipe = default_recipe([folder], bad_records=ANY, shuffle_seed=7, **options)
    return dataclasses.replace(recipe, num_shards=num_shards)


@pytest.mark.parametrize("num_shards", [1, 2, 7, 40])
def test_the_documents_and_their_order_do_not_depend_on_the_shards(tmp_path, num_shards):
    folder = write_sources(tmp_path / "in")
    one = made(recipe_of(folder), tmp_path / "one")
    many = made(recipe_of(folder, num_shards), tmp_path / "many")
    assert len(many.files) == num_shards
    assert documents(many) == documents(one)
    assert many.counts == one.counts and many.table() == one.table()
    excluded = [lines_of(tmp_path / name / "excluded.jsonl.zst") for name in ("one", "many")]
    assert excluded[0] == excluded[1]
    quarantined = [(tmp_path / name / "quarantine.jsonl").read_bytes() for name in ("one", "many")]
    assert quarantined[0] == quarantined[1]
    assert [json.loads(line)["where"] for line in quarantined[0].splitlines()] == [
        f"{folder}/a.jsonl:6",
        f"{folder}/a.jsonl:501",
        f"{folder}/d.txt",
    ]
    origins = {entry["id"]: entry["meta"]["origin"] for entry in documents(many)}
    assert all(origin == f"{folder}/{name}" for name, origin in origins.items() if name.startswith("a."))


def test_any_number_of_workers_gives_the_same_bytes(tmp_path):
    folder = write_sources(tmp_path / "in")
    made(recipe_of(folder, 5), tmp_path / "serial")
    run_recipe(recipe_of(folder, 5), tmp_path / "two", TWO)
    assert content(tmp_path / "two") == content(tmp_path / "serial")


def without_settings(output_dir: Path) -> dict[str, Any]:
    """The content of a corpus folder, its manifest without the recipe."""
    manifest = read_json(output_dir / "manifest.json")
    del manifest["about"]
    return {**content(output_dir), "manifest.json": manifest}


@pytest.mark.parametrize("keep_dropped", [False, True])
def test_stages_that_pass_documents_on_give_the_same_bytes(tmp_path, keep_dropped):
    """Runs of map stages behind the import, behind a barrier, and at the end."""
    folder = write_sources(tmp_path / "in")
    first, clean, exact, shuffle = recipe_of(folder).stages
    short, long = Clean(filters=(Length(min_characters=9),)), Clean(filters=(Length(max_characters=60),))
    recipe = Recipe(
        stages=(first, clean, short, exact, long, shuffle, Clean(filters=(Length(max_words=12),))),
        num_shards=5,
        bad_records=ANY,
        keep_dropped=keep_dropped,
    )
    kept = made(recipe, tmp_path / "kept")
    passing = dataclasses.replace(recipe, keep_stages=False)
    passed = made(passing, tmp_path / "passed")
    run_recipe(passing, tmp_path / "two", TWO)
    assert without_settings(tmp_path / "passed") == without_settings(tmp_path / "kept")
    assert content(tmp_path / "two") == content(tmp_path / "passed")
    assert kept.table() == passed.table()
    assert {entry.rule for entry in kept.counts.dropped} == {"empty", "length", "exact_duplicate"}


def test_keeping_the_stages_or_not_is_changed_between_runs(tmp_path, monkeypatch):
    """What one way has left in the folder is no work of the other's."""
    folder, out = write_sources(tmp_path / "in"), tmp_path / "out"
    recipe = recipe_of(folder, 3)
    passing = dataclasses.replace(recipe, keep_stages=False)
    made(recipe, tmp_path / "whole")

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    for before, after in ((recipe, passing), (passing, recipe)):
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(publish_module, "describe_files", killed)
            made(before, out)
        assert (out / ".stages/01-clean").is_dir() and not made(after, out).reused
        assert without_settings(out) == without_settings(tmp_path / "whole")
        shutil.rmtree(out)


def test_the_seed_decides_the_order(source, tmp_path):
    orders = set()
    for seed in range(5):
        report = made(default_recipe([source], shuffle_seed=seed), tmp_path / f"seed{seed}")
        orders.add(tuple(entry["text"] for entry in documents(report)))
    assert len(orders) > 1 and len({frozenset(order) for order in orders}) == 1


def test_every_place_is_as_likely():
    """Of 3 documents under 6,000 seeds, each of the 6 orders comes 1,000 times, give or take 5 deviations."""
    counts: dict[tuple[int, ...], int] = {}
    for seed in range(6000):
        order = tuple(sorted(range(3), key=lambda number: key_of(number, seed)))
        counts[order] = counts.get(order, 0) + 1
    assert len(counts) == 6 and all(abs(count - 1000) < 145 for count in counts.values())


def test_the_first_of_equal_texts_stays_in_whatever_shard_it_is(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(6):
        texts = [f"text {index}" for index in range(number, number + 20)]
        (folder / f"{number}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    report = made(
        dataclasses.replace(default_recipe([folder], shuffle_seed=None), num_shards=4), tmp_path / "o"
    )
    kept = [(entry["id"], entry["text"]) for entry in documents(report)]
    assert kept == [
        *((f"0.jsonl:{n + 1}", f"text {n}") for n in range(20)),
        *((f"{n}.jsonl:20", f"text {n + 19}") for n in range(1, 6)),
    ]


# What is done again


def finished(out: Path) -> dict[str, int]:
    try:
        return {
            f"{path.parent.name}/{path.name}": path.stat().st_mtime_ns for path in out.glob("*/*/*.done.json")
        }
    except FileNotFoundError:  # it is just being removed
        return {}


def test_a_changed_stage_is_done_again_with_all_behind_it_and_nothing_else(tmp_path):
    folder, out = write_sources(tmp_path / "in"), tmp_path / "out"
    recipe = recipe_of(folder, 4)

    def changed_by(recipe: Recipe) -> set[str]:
        before = finished(out)
        made(recipe, out)
        return {name.split("-")[0] for name, at in finished(out).items() if before.get(name) != at}

    assert changed_by(recipe) == {"00", "01", "02", "03", "04"}
    *others, shuffle = recipe.stages
    assert isinstance(shuffle, Shuffle)
    assert changed_by(dataclasses.replace(recipe, stages=(*others, Shuffle(seed=8)))) == {"03", "04"}
    first, clean, *rest = recipe.stages
    assert isinstance(clean, Clean)
    shorter = Clean(filters=(*clean.filters, Length(min_characters=9)))
    assert changed_by(dataclasses.replace(recipe, stages=(first, shorter, *rest))) == {"01", "02", "03", "04"}
    as_parquet = dataclasses.replace(recipe, stages=(first, shorter, *rest), format="parquet")
    assert changed_by(as_parquet) == {"04"}
    made(dataclasses.replace(as_parquet, format="jsonl"), out)
    # A file of one shard: that shard alone is read and cleaned, and the barriers follow.
    before = finished(out)
    (folder / "c19.txt").write_text("other")
    made(dataclasses.replace(recipe, stages=(first, shorter, *rest)), out)
    again = {name for name, at in finished(out).items() if before.get(name) != at}
    assert {name for name in again if name[:2] in ("00", "01")} == {
        f"{stage}/documents-00003-of-00004.done.json" for stage in ("00-import", "01-clean")
    }
    assert len({name for name in again if name[:2] in ("02", "03", "04")}) == 12


def test_stages_that_the_recipe_has_no_longer_are_removed(source, tmp_path):
    out = tmp_path / "out"
    recipe = default_recipe([source])
    made(recipe, out)
    made(dataclasses.replace(recipe, stages=recipe.stages[:2]), out)
    assert sorted(path.name for path in (out / ".stages").iterdir()) == [
        *("00-import", "01-clean", "02-finish", "lock")
    ]
    made(dataclasses.replace(recipe, keep_stages=False), out)
    assert not (out / ".stages").exists()


RUN = """
import os, sys, time
from pathlib import Path
from groundup.core.config import resolve
from groundup.core.executor.local import runner_of
from groundup.corpus.pipeline import run_recipe
from groundup.corpus.recipe import Recipe
from groundup.corpus.shard import ShardWriter
plain = ShardWriter.done
def slow(*args, **kwargs):  # long enough to be killed in
    busy = Path(sys.argv[4]) / str(os.getpid())
    busy.touch()
    time.sleep(0.3)
    busy.unlink()
    return plain(*args, **kwargs)
ShardWriter.done = slow
if __name__ == "__main__":
    recipe = resolve(Recipe, file=Path(sys.argv[1])).value
    run_recipe(recipe, Path(sys.argv[2]), runner_of(int(sys.argv[3])))
"""
RECIPE = """
num_shards: 6
bad_records: {{action: quarantine, max_bad: 1.0}}
stages:
  - kind: import
    sources: [{folder}]
  - kind: clean
    filters: [{{kind: fix_unicode}}, {{kind: normalize_whitespace}}]
  - kind: exact_dedup
  - kind: shuffle
    seed: 7
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("victim", "keep_stages", "most"),
    [
        ("all", True, 2),
        ("worker", False, 2),
        pytest.param("all", True, 8, marks=pytest.mark.exhaustive),
        pytest.param("worker", False, 8, marks=pytest.mark.exhaustive),
    ],
)
def test_a_killed_run_goes_on_and_gives_the_same_bytes(tmp_path, victim, keep_stages, most):
    folder, out = write_sources(tmp_path / "in", scale=4), tmp_path / "out"
    made(dataclasses.replace(recipe_of(folder, 6), keep_stages=keep_stages), tmp_path / "whole")
    settings = f"keep_stages: {str(keep_stages).lower()}\n"
    (tmp_path / "recipe.yaml").write_text(settings + RECIPE.format(folder=folder))
    (tmp_path / "run.py").write_text(RUN)
    command = [sys.executable, *(str(tmp_path / name) for name in ("run.py", "recipe.yaml", "out"))]
    command += ["2", str(busy := tmp_path / "busy")]
    generator = random.Random(os.urandom(8))
    kills = 0
    for _ in range(12):
        before, moment = finished(out), None
        shutil.rmtree(busy, ignore_errors=True)
        busy.mkdir()
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as running:
            deadline = time.monotonic() + 120
            # A random moment after something more is done, while a worker is in the middle of a shard.
            while running.poll() is None:
                assert time.monotonic() < deadline
                if moment is None and not finished(out).items() <= before.items():
                    moment = time.monotonic() + generator.random() * 0.05
                workers = [int(path.name) for path in busy.iterdir() if path.name != str(running.pid)]
                if moment is not None and time.monotonic() >= moment and workers:
                    worker = generator.choice(workers)
                    os.kill(worker if victim == "worker" else running.pid, signal.SIGKILL)
                    running.wait(timeout=60)
                time.sleep(0.002)
        if running.returncode == 0:  # it had come to its end
            shutil.rmtree(out)
        kills = kills + 1 if running.returncode else 0
        if kills == most:
            break
    subprocess.run(command, check=True, timeout=120)
    assert kills  # the last of them left something to do
    assert content(out) == content(tmp_path / "whole")
    assert not list(out.rglob(".*.tmp"))


@pytest.mark.parametrize("keep_stages", [True, False])
def test_ranks_share_the_work_and_a_run_without_rank_ends_it(tmp_path, keep_stages):
    folder, out = write_sources(tmp_path / "in"), tmp_path / "out"
    recipe = dataclasses.replace(recipe_of(folder, 5), keep_stages=keep_stages)
    made(recipe, tmp_path / "whole")
    first = run_rank(recipe, out, SERIAL, rank=0, world_size=2)
    # Its shares of the lines and of two stages; the duplicates need all shards.
    assert (first.stage, first.left) == ("01-clean" if keep_stages else "00-import", 2)
    second = run_rank(recipe, out, SERIAL, rank=1, world_size=2)
    assert (second.stage, second.left) == ("02-exact_dedup", 3)
    rounds = 0
    while (
        run_rank(recipe, out, SERIAL, rank=0, world_size=2).left
        | (last := run_rank(recipe, out, SERIAL, rank=1, world_size=2)).left
    ):
        rounds += 1
        assert rounds < 10
    assert last.stage == "04-finish" and not (out / "manifest.json").exists()
    made(recipe, out)
    assert content(out) == content(tmp_path / "whole")
    with pytest.raises(ConfigError, match="rank 2 of 2"):
        run_rank(recipe, out, SERIAL, rank=2, world_size=2)


RAY = """
import sys
from ray.cluster_utils import Cluster
from groundup.__main__ import main
if __name__ == "__main__":
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    cluster.add_node(num_cpus=1)
    words = ["corpus", "run", "recipe.yaml", "-o", "ray", "--executor", "ray", "--address", cluster.address]
    sys.argv = ["groundup", *words]
    try:
        main()
    finally:
        cluster.shutdown()
"""


@pytest.mark.exhaustive  # that Ray gives the same bytes is tested with tokens, on one node
def test_a_ray_cluster_of_two_nodes_gives_the_same_bytes(tmp_path):
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'groundup[ray]'")
    folder = write_sources(tmp_path / "in")
    made(recipe_of(folder, 6), tmp_path / "whole")
    (tmp_path / "recipe.yaml").write_text(RECIPE.format(folder=folder))
    (tmp_path / "cluster.py").write_text(RAY)
    subprocess.run([sys.executable, "cluster.py"], cwd=tmp_path, check=True, timeout=250)
    assert content(tmp_path / "ray") == content(tmp_path / "whole")


# Bad input and bad luck


def test_a_run_that_fails_leaves_the_corpus_before_it(source, tmp_path, monkeypatch):
    recipe, out = default_recipe([source]), tmp_path / "out"
    made(recipe, out)
    before = content(out)
    source.write_bytes(b"broken\n" * 30 + source.read_bytes())
    with pytest.raises(DataError, match=r"30 of 37 records are bad"):
        made(recipe, out)
    assert content(out) == before

    source.write_bytes(b'{"text": "x"}\n')

    def full(*_: object) -> bytes:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shard_module, "to_json_line", full)
    with pytest.raises(MachineError, match="No space left"):
        made(recipe, out)
    assert content(out) == before


def test_an_interrupted_run_leaves_no_corpus(source, tmp_path, monkeypatch):
    def interrupted(*_: object) -> bytes:
        raise KeyboardInterrupt

    monkeypatch.setattr(shard_module, "to_json_line", interrupted)
    with pytest.raises(KeyboardInterrupt):
        made(default_recipe([source]), tmp_path / "out")
    assert content(tmp_path / "out") == {}
    assert not list((tmp_path / "out").rglob("*.tmp"))


def test_what_a_killed_run_left_is_cleared_away(source, tmp_path):
    out = tmp_path / "out"
    (out / ".stages/00-import").mkdir(parents=True)
    (out / ".stages/00-import/.scratch-x1").mkdir()
    (out / ".stages/00-import/.scratch-x1/part").write_bytes(b"old")
    for name in (".stages/00-import/.documents-00000-of-00001.jsonl.zst.77.tmp", "quarantine.jsonl"):
        (out / name).write_bytes(b"old")
    made(default_recipe([source]), out)
    assert set(content(out)) == {"documents-00000-of-00001.jsonl.zst", "excluded.jsonl.zst", "manifest.json"}
    assert not list(out.rglob("*.tmp")) and not list(out.rglob(".scratch*"))


def test_the_manifest_goes_before_its_documents_do(source, tmp_path, monkeypatch):
    """A kill between the two must not leave new documents under an old manifest."""
    made(default_recipe([source]), tmp_path / "out")

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(publish_module, "describe_files", killed)
    with pytest.raises(KeyboardInterrupt):
        made(default_recipe([source], shuffle_seed=9), tmp_path / "out")
    assert not (tmp_path / "out/manifest.json").exists()


def test_an_empty_result_says_why(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'{"text": ""}\n{"text": " "}\nbroken\n')
    with pytest.raises(DataError, match=r"no document is left of 3 .*no text 2; bad record: not JSON 1"):
        made(default_recipe([tmp_path / "a.jsonl"]), tmp_path / "out")
    (tmp_path / "empty.txt").write_bytes(b"")
    with pytest.raises(DataError, match="no document is left of 1"):
        made(default_recipe([tmp_path / "empty.txt"]), tmp_path / "out")


def test_a_corpus_folder_within_a_source_means_its_documents(source, tmp_path):
    recipe = default_recipe([tmp_path])
    first = made(recipe, tmp_path / "out")
    assert made(recipe, tmp_path / "out").reused and first.counts.documents_read == len(TEXTS)
    again = made(default_recipe([tmp_path / "out"], shuffle_seed=None), tmp_path / "again")
    assert again.counts.documents_read == first.counts.documents
    assert [entry["text"] for entry in documents(again)] == [entry["text"] for entry in documents(first)]
    with pytest.raises(ConfigError, match="is a file"):
        made(default_recipe([source]), source)


def test_the_policy_judges_the_whole_input(tmp_path):
    folder = write_sources(tmp_path / "in")
    for runner in (SERIAL, TWO):
        recipe = dataclasses.replace(recipe_of(folder, 5), bad_records=BadRecordPolicy(action="skip"))
        with pytest.raises(
            DataError,
            match=r"3 of 921 records are bad .* more than max_bad.*`groundup corpus run bad_records\.",
        ):
            run_recipe(recipe, tmp_path / "skip", runner)
        recipe = dataclasses.replace(recipe, bad_records=BadRecordPolicy(action="fail"))
        with pytest.raises(DataError, match=r"a\.jsonl:(6|501)|d\.txt: bad record"):
            run_recipe(recipe, tmp_path / "fail", runner)
    # More is accepted: what was read counts.
    before = finished(tmp_path / "skip")
    recipe = dataclasses.replace(recipe, bad_records=BadRecordPolicy(action="skip", max_bad=0.5))
    made(recipe, tmp_path / "skip")
    assert before and before.items() <= finished(tmp_path / "skip").items()


def test_quarantine_lies_beside_the_corpus(source, tmp_path):
    source.write_bytes(source.read_bytes() + b"broken\n")
    report = made(
        default_recipe([source], bad_records=BadRecordPolicy(action="quarantine")), tmp_path / "out"
    )
    assert report.counts.bad_records.by_reason == {"not JSON": 1}
    assert json.loads((tmp_path / "out/quarantine.jsonl").read_text())["where"] == f"{source}:8"


def test_a_file_that_changes_while_it_is_read_is_refused(source, tmp_path, monkeypatch):
    plain = shard_module.to_json_line

    def changing(document):
        os.utime(source, ns=(1, 1))
        return plain(document)

    monkeypatch.setattr(shard_module, "to_json_line", changing)
    with pytest.raises(DataError, match=r"in\.jsonl: was changed while it was read"):
        made(default_recipe([source]), tmp_path / "out")
    assert not finished(tmp_path / "out")


# The command line


def test_the_command_prints_a_table_on_stdout(source, tmp_path, capsys):
    build(source, out=tmp_path / "out", min_characters=4, workers=0)
    out = capsys.readouterr().out
    assert "length: too short" in out and str(tmp_path / "out/documents-00000-of-00001.jsonl.zst") in out
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines() if line}
    assert rows["read"][0] == "7" and rows["kept"][0] == "2"
    build(source, out=tmp_path / "out", min_characters=4, workers=0)
    assert "was there already" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="command line: --max-bad = 7"):
        build(source, out=tmp_path / "out", max_bad=7)
    with pytest.raises(ConfigError, match="command line: --cut-characters = -1"):
        build(source, out=tmp_path / "out", cut_characters=-1)
    with pytest.raises(GroundupError, match="--python-library"):
        build(out=tmp_path / "out")


def groundup(monkeypatch, *words: object) -> int:
    monkeypatch.setattr(sys, "argv", ["groundup", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def test_a_recipe_is_run_and_overridden(tmp_path, monkeypatch, capsys):
    folder, out = write_sources(tmp_path / "in"), tmp_path / "out"
    path = tmp_path / "recipe.yaml"
    path.write_text(RECIPE.format(folder=folder))
    run = ("corpus", "run", path, "--workers", "0")
    assert groundup(monkeypatch, *run, "-o", out) == 0
    assert "a.jsonl" in (out / "report.html").read_text()
    made(recipe_of(folder, 6), tmp_path / "whole")
    assert content(out) == content(tmp_path / "whole")
    ranked = (*run, "num_shards=3", "stages.shuffle.seed=1", "-o", tmp_path / "ranked")
    assert groundup(monkeypatch, *ranked, "--rank", 0, "--world-size", 2) == 0
    assert "rank 0 of 2: 7 tasks done; 1 tasks of 01-clean are left" in capsys.readouterr().out
    for words, says in (
        (("stages.shufle.seed=1",), "or its kind: import, clean, exact_dedup, shuffle"),
        (("stages.9.seed=1",), "by its number, 0 to 3"),
        (("stages.shuffle.sed=1",), "unknown key stages.3.sed. Did you mean 'seed'?"),
        (("stages.clean.filters=[{kind: lenth}]",), "stages.1.filters.0.kind is 'lenth'"),
        (("stages=[{kind: shuffle}]",), "the first stage, and no other, is of the kind import"),
        (("--rank", 1), "--rank and --world-size go together"),
        (("--address", "x"), "--address is without effect"),
    ):
        assert groundup(monkeypatch, *run, *words, "-o", tmp_path / "no") == 1
        assert says in capsys.readouterr().err
    assert groundup(monkeypatch, *run, "num_shards=3", "-o", tmp_path / "no", "--print-config") == 0
    assert "num_shards: 3" in capsys.readouterr().out
    assert not (tmp_path / "no").exists()


def test_real_text_comes_through_unharmed(shared_data, tmp_path):
    """Chinese and code lose nothing but white space and decomposed letters."""
    for name, kept, edited in (("corpus_zh", 268, {}), ("corpus_code", 296, {"fix_unicode": 1})):
        recipe = default_recipe([shared_data / name], text_key="content", shuffle_seed=None)
        counts = made(recipe, tmp_path / name).counts
        assert counts.documents == kept and counts.bad_records.bad == 0
        assert {key: count for key, count in counts.edited.items() if key == "fix_unicode"} == edited
        assert counts.bytes > 0.998 * counts.bytes_read
