"""Near-duplicates and the items of tasks leave a corpus, whoever does the work in however many shards."""

import dataclasses
import json
import random
from pathlib import Path

import pytest

from groundup.core.errors import DataError
from groundup.core.executor.tasks import ProcessRunner, SerialRunner
from groundup.corpus.bad_records import BadRecordPolicy
from groundup.corpus.clean import Clean
from groundup.corpus.corpus_manifest import find_corpus_manifest
from groundup.corpus.decontaminate import Decontaminate
from groundup.corpus.dedup import clusters, exact, near
from groundup.corpus.dedup.exact import ExactDedup
from groundup.corpus.dedup.minhash import MinHash
from groundup.corpus.dedup.near import NearDedup
from groundup.corpus.filters import Length
from groundup.corpus.import_sources import Import
from groundup.corpus.ngram_overlap import Overlap
from groundup.corpus.overlap_report import joint_overlaps
from groundup.corpus.pipeline import run_recipe
from groundup.corpus.recipe import Recipe
from groundup.corpus.shuffle import Shuffle
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
    because = {entry["id"]: entry["because"] for entry in excluded}
    assert because == {f"d{12 + n}": f"kept in its place: d{3 * n}" for n in range(4)}


def test_or_the_longest(near_copies, tmp_path):
    report = run_recipe(recipe_of(near_copies, NearDedup(keep="longest")), tmp_path / "out", SERIAL)
    kept = {entry["id"] for entry in documents(report)}
    assert kept == {f"d{number}" for number in range(18)} - {"d0", "d3", "d6", "d9"}
    excluded = lines_of(tmp_path / "out/excluded.jsonl.zst")
    assert [entry["because"] for entry in excluded] == [f"kept in its place: d{12 + n}" for n in range(4)]


@pytest.mark.parametrize("shards", [1, 3])
def test_documents_of_the_same_id_are_told(tmp_path, caplog, shards):
    one, other = (tmp_path / name for name in ("one.jsonl", "other.jsonl"))
    write_jsonl(one, ORIGINALS[:4])
    write_jsonl(other, ORIGINALS[2:5])  # whose ids begin again
    recipe = Recipe(stages=(Import(sources=(one, other)),), num_shards=shards)
    assert run_recipe(recipe, tmp_path / "out", SERIAL).counts.documents == 7
    (warning,) = (line.getMessage() for line in caplog.records if "an id" in line.getMessage())
    assert warning.startswith("3 documents have an id that an earlier one has: 'd")
    assert f"that of {one}:" in warning and f" and of {other}:" in warning
    refused = dataclasses.replace(recipe, bad_records=BadRecordPolicy(action="fail"))
    with pytest.raises(
        DataError, match=r"3 documents have an id .*Give each document an id of its own"
    ) as error:
        run_recipe(refused, tmp_path / "refused", SERIAL)
    assert str(error.value.where).startswith(f"{other}:")


def test_no_document_at_all_is_told_by_every_stage(tmp_path, items):
    source = write_jsonl(tmp_path / "in.jsonl", ["brief"])
    stages = [Clean(filters=(Length(min_characters=9),)), ExactDedup(), NearDedup()]
    stages += [Decontaminate(against=(str(items),)), Shuffle()]
    with pytest.raises(DataError, match=r"no document is left of 1 \(length: too short 1\)"):
        run_recipe(Recipe(stages=(Import(sources=(source,)), *stages)), tmp_path / "out", SERIAL)


def test_shards_workers_and_memory_change_nothing(near_copies, tmp_path):
    whole = run_recipe(recipe_of(near_copies, NearDedup()), tmp_path / "one", SERIAL)
    small = NearDedup(memory_gigabytes=1e-6)
    parts = run_recipe(
        recipe_of(near_copies, small, num_shards=5), tmp_path / "five", ProcessRunner(workers=2)
    )
    assert documents(parts) == documents(whole)
    excluded = [lines_of(tmp_path / name / "excluded.jsonl.zst") for name in ("one", "five")]
    assert excluded[0] == excluded[1]
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
    stage = Decontaminate(against=(str(items),), overlap=Overlap(common_count=100))
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
    excluded = lines_of(tmp_path / "3/excluded.jsonl.zst")
    assert {entry["because"] for entry in excluded} == {"it shares words with items.jsonl:1"}
    assert [entry["meta"].get("decontaminated") for entry in found] == [
        None,
        ["items.jsonl:1"],
        ["items.jsonl:1"],
    ]
    for report in reports:
        (overlap,) = report.overlaps
        assert (overlap.items, overlap.found, overlap.left) == (3, (":1",), ())
        assert (overlap.documents, overlap.documents_cut, overlap.documents_dropped) == (3, 1, 2)


def test_what_was_found_goes_with_the_documents_into_every_corpus_made_of_them(contaminated, items, tmp_path):
    stage = Decontaminate(against=(str(items),), report_only=True)
    first = run_recipe(recipe_of(contaminated, stage), tmp_path / "first", SERIAL)
    shuffled = run_recipe(recipe_of(tmp_path / "first", Shuffle(seed=1)), tmp_path / "shuffled", SERIAL)
    assert shuffled.overlaps == first.overlaps and first.overlaps[0].left == (":1",)
    raw = write_jsonl(tmp_path / "raw.jsonl", ["Nobody has compared this with anything."])
    both = Recipe(stages=(Import(sources=(tmp_path / "first", raw)), Shuffle(seed=1)))
    assert run_recipe(both, tmp_path / "both", SERIAL).overlaps == ()
    assert find_corpus_manifest(tmp_path / "both").overlaps is None
    again = recipe_of(
        tmp_path / "first", Decontaminate(against=(str(items),), overlap=Overlap(common_count=99))
    )
    assert run_recipe(again, tmp_path / "again", SERIAL).overlaps[0].left == ()


def test_corpora_hold_together_what_each_of_them_holds(contaminated, items, tmp_path):
    other = write_jsonl(tmp_path / "other.jsonl", ["an item that stands nowhere " * 9])
    stage = Decontaminate(against=(str(items),), report_only=True)
    overlaps = [
        run_recipe(recipe_of(source, stage), tmp_path / source.stem, SERIAL).overlaps
        for source in (contaminated, other)
    ]
    (joint,) = joint_overlaps(overlaps)
    assert joint.left == joint.found == (":1", ":3") and joint.documents == 4
    looser = dataclasses.replace(stage, overlap=Overlap(max_ngram=9))
    by_other_rule = run_recipe(recipe_of(other, looser), tmp_path / "looser", SERIAL).overlaps
    assert joint_overlaps([overlaps[0], by_other_rule]) == ()
    assert joint_overlaps([overlaps[0], None]) is None


def test_common_language_stays(contaminated, items, tmp_path):
    stage = Decontaminate(against=(str(items),), overlap=Overlap(common_count=14))
    report = run_recipe(recipe_of(contaminated, stage), tmp_path / "out", SERIAL)
    assert report.counts.documents == 4  # it stands 14 times: once, once and 12 times
    assert report.overlaps[0].left == report.overlaps[0].found == (":1",)
    assert "1 of 3 items overlap by 13 words; 3 documents: 0 cut, 0 dropped; 1 still do" in report.table()


def test_items_are_counted_without_a_cut(contaminated, items, tmp_path):
    stage = Decontaminate(against=(str(items),), overlap=Overlap(common_count=100), report_only=True)
    report = run_recipe(recipe_of(contaminated, stage), tmp_path / "out", SERIAL)
    assert report.counts.documents == 4 and report.counts.dropped == ()
    assert report.overlaps[0].found == report.overlaps[0].left == (":1",)
    again = run_recipe(recipe_of(contaminated, stage), tmp_path / "out", SERIAL)
    assert again.reused and again.overlaps == report.overlaps


@pytest.mark.parametrize(
    ("line", "message"),
    [("{", "is no JSON"), ('{"title": "x"}', "its fields are title"), ("[1]", "must be an object")],
)
def test_a_wrong_file_of_items_is_refused_before_anything_is_done(contaminated, tmp_path, line, message):
    bad = tmp_path / "items.jsonl"
    bad.write_text(f'{{"ctx": "fine", "endings": ["a", "b"]}}\n{line}\n')
    with pytest.raises(DataError, match=message) as error:
        run_recipe(recipe_of(contaminated, Decontaminate(against=(str(bad),))), tmp_path / "out", SERIAL)
    assert str(error.value.where).endswith("items.jsonl:2")
    with pytest.raises(DataError, match="no such file"):
        run_recipe(
            recipe_of(contaminated, Decontaminate(against=(str(tmp_path / "none"),))),
            tmp_path / "out",
            SERIAL,
        )
