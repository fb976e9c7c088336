"""Near-duplicates and the items of tasks leave a corpus, whoever does the work in however many shards."""

import json
import random
from pathlib import Path

import pytest

from groundup.core.errors import DataError
from groundup.core.executor.tasks import ProcessRunner, SerialRunner
from groundup.corpus.decontaminate import Decontaminate
from groundup.corpus.dedup import clusters, exact, near
from groundup.corpus.dedup.exact import ExactDedup
from groundup.corpus.dedup.minhash import MinHash
from groundup.corpus.dedup.near import NearDedup
from groundup.corpus.import_sources import Import
from groundup.corpus.ngram_overlap import Overlap
from groundup.corpus.pipeline import run_recipe
from groundup.corpus.recipe import Recipe
from tests.unit.corpus.test_pipeline import documents, lines_of

SERIAL = SerialRunner()
FindDuplicates = exact._FindDuplicates
RANDOM = random.Random(0)
ORIGINALS = [" ".join(f"w{RANDOM.randrange(9999)}" for _ in range(80 + number)) for number in range(12)]


def write_jsonl(path: Path, texts: list[str]) -> Path:
    path.write_text(
        "".join(json.dumps({"id": f"d{number}", "text": text}) + "\n" for number, text in enumerate(texts))
    )
    return path


def recipe_of(source: Path, stage, **settings) -> Recipe:
    return Recipe(stages=(Import(sources=(source,)), stage), **settings)


@pytest.fixture
def near_copies(tmp_path) -> Path:
    """Each original; then, with a word more, a copy of every third; then two texts without words."""
    copies = [f"{text} more" for text in ORIGINALS[::3]]
    return write_jsonl(tmp_path / "in.jsonl", [*ORIGINALS, *copies, "...", "!!!"])


def test_the_first_of_each_cluster_stays(near_copies, tmp_path):
    report = run_recipe(recipe_of(near_copies, NearDedup()), tmp_path / "out", SERIAL)
    kept = [entry["id"] for entry in documents(report)]
    assert kept == [*(f"d{number}" for number in range(12)), "d16", "d17"]
    (dropped,) = report.counts.dropped
    assert (dropped.rule, dropped.documents) == ("near_duplicate", 4)
    excluded = lines_of(tmp_path / "out/excluded.jsonl.zst")
    assert {entry["id"] for entry in excluded} == {"d12", "d13", "d14", "d15"}


def test_or_the_longest(near_copies, tmp_path):
    report = run_recipe(recipe_of(near_copies, NearDedup(keep="longest")), tmp_path / "out", SERIAL)
    kept = {entry["id"] for entry in documents(report)}
    assert kept == {f"d{number}" for number in range(18)} - {"d0", "d3", "d6", "d9"}


def test_shards_workers_and_memory_change_nothing(near_copies, tmp_path):
    whole = run_recipe(recipe_of(near_copies, NearDedup()), tmp_path / "one", SERIAL)
    small = NearDedup(memory_gigabytes=1e-6)
    parts = run_recipe(
        recipe_of(near_copies, small, num_shards=5), tmp_path / "five", ProcessRunner(workers=2)
    )
    assert documents(parts) == documents(whole)
    assert [path.name for path in sorted((tmp_path / "five/.stages/01-near_dedup").glob("*.bin"))] == []
    again = run_recipe(recipe_of(near_copies, NearDedup(), num_shards=5), tmp_path / "five", SERIAL)
    assert again.reused  # the memory decides nothing
    other = NearDedup(minhash=MinHash(threshold=0.8))
    changed = run_recipe(recipe_of(near_copies, other, num_shards=5), tmp_path / "five", SERIAL)
    assert not changed.reused and changed.counts.documents == 14


@pytest.mark.parametrize("keep", ["first", "longest"])
def test_near_duplicates_in_many_blocks_and_partitions_are_the_same(near_copies, tmp_path, monkeypatch, keep):
    whole = run_recipe(recipe_of(near_copies, NearDedup(keep=keep)), tmp_path / "whole", SERIAL)
    for module, name, value in (
        *((clusters, "BLOCK", 4), (near, "BLOCK", 4), (near, "_BATCH_CHARACTERS", 500)),
        *((clusters, "_CHUNK", 64), (near, "_WRITTEN_AT_ONCE", 3)),
    ):
        monkeypatch.setattr(module, name, value)
    small = NearDedup(keep=keep, memory_gigabytes=1e-7)
    for num_shards in (1, 3):
        out = tmp_path / str(num_shards)
        report = run_recipe(recipe_of(near_copies, small, num_shards=num_shards), out, SERIAL)
        assert documents(report) == documents(whole) and report.counts == whole.counts


@pytest.mark.parametrize("num_shards", [1, 3])
def test_exact_duplicates_in_many_blocks_and_parts_are_the_same(tmp_path, monkeypatch, num_shards):
    source = write_jsonl(
        tmp_path / "in.jsonl", [f"text {number % 71 * (number % 3)}" for number in range(400)]
    )
    whole = run_recipe(recipe_of(source, ExactDedup(), num_shards=2), tmp_path / "whole", SERIAL)
    monkeypatch.setattr(exact, "_BLOCK", 32)
    monkeypatch.setattr(exact, "_LEAST_KEYS", 8)
    parts = []
    monkeypatch.setattr(
        exact, "_FindDuplicates", lambda *given: (parts.append(given[-1]), FindDuplicates(*given))[1]
    )
    small = recipe_of(source, ExactDedup(memory_gigabytes=1e-7), num_shards=num_shards)
    report = run_recipe(small, tmp_path / "small", SERIAL)
    assert parts == [50]
    assert documents(report) == documents(whole) and report.counts == whole.counts
    assert 0 < report.counts.documents < 200
    assert run_recipe(
        recipe_of(source, ExactDedup(), num_shards=num_shards), tmp_path / "small", SERIAL
    ).reused


FILLER = "Nothing of a task stands in this sentence, which is here for its length alone. "
ITEM = "the quick brown fox jumps over the lazy dog while nine wise owls"  # one n-gram


@pytest.fixture
def items(tmp_path) -> Path:
    return write_jsonl(
        tmp_path / "items.jsonl", [ITEM, "too short an item", "an item that stands nowhere " * 4]
    )


@pytest.fixture
def contaminated(tmp_path) -> Path:
    many = f"{FILLER * 9}{ITEM}. " * 12
    texts = [FILLER * 3, f"{FILLER * 6}{ITEM.title()}! {FILLER * 6}", ITEM, many]
    return write_jsonl(tmp_path / "in.jsonl", texts)


def test_items_are_cut_out_of_the_documents(contaminated, items, tmp_path):
    stage = Decontaminate(against=(items,), overlap=Overlap(common_count=100))
    reports = [
        run_recipe(recipe_of(contaminated, stage, num_shards=shards), tmp_path / str(shards), SERIAL)
        for shards in (1, 3)
    ]
    found = documents(reports[0])
    assert [entry["id"] for entry in found] == ["d0", "d1#0", "d1#1"]
    assert not any("fox jumps" in entry["text"].lower() for entry in found)
    reasons = {entry.reason: entry.documents for entry in reports[0].counts.dropped}
    assert reasons == {"nothing left": 1, "too many pieces": 1}
    assert documents(reports[1]) == found


def test_common_language_stays(contaminated, items, tmp_path):
    stage = Decontaminate(against=(items,), overlap=Overlap(common_count=14))
    report = run_recipe(recipe_of(contaminated, stage), tmp_path / "out", SERIAL)
    assert report.counts.documents == 4  # it stands 14 times: once, once and 12 times


def test_items_are_counted_without_a_cut(contaminated, items, tmp_path):
    stage = Decontaminate(against=(items,), overlap=Overlap(common_count=100), report_only=True)
    report = run_recipe(recipe_of(contaminated, stage), tmp_path / "out", SERIAL)
    assert report.counts.documents == 4 and report.counts.dropped == ()
    (marker,) = (tmp_path / "out/.stages/01-decontaminate").glob("documents-*.done.json")
    assert json.loads(marker.read_text())["result"]["items_found"] == [0]


@pytest.mark.parametrize(
    ("line", "message"),
    [("{", "not JSON"), ('{"title": "x"}', "its fields are title"), ("[1]", "its fields are none")],
)
def test_a_wrong_file_of_items_is_refused_before_anything_is_done(contaminated, tmp_path, line, message):
    bad = tmp_path / "items.jsonl"
    bad.write_text(f'{{"ctx": "fine", "endings": ["a", "b"]}}\n{line}\n')
    with pytest.raises(DataError, match=message) as error:
        run_recipe(recipe_of(contaminated, Decontaminate(against=(bad,))), tmp_path / "out", SERIAL)
    assert str(error.value.where).endswith("items.jsonl:2")
    with pytest.raises(DataError, match="no such file"):
        run_recipe(
            recipe_of(contaminated, Decontaminate(against=(tmp_path / "none",))), tmp_path / "out", SERIAL
        )
