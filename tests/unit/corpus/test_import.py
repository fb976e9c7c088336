"""Pages, Arrow and Parquet are sources like any others, whoever reads them in however many parts."""

import dataclasses
import json
import random
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet
import pytest

from groundup.cli.corpus_import import import_
from groundup.cli.corpus_steps import StepOptions
from groundup.core.compressed import DamagedFile
from groundup.core.errors import ConfigError, DataError
from groundup.core.executor.tasks import ProcessRunner, SerialRunner
from groundup.corpus.bad_records import BadRecordPolicy, BadRecords
from groundup.corpus.extraction.limits import ExtractionLimits
from groundup.corpus.extraction.page_reader import PageExtractor, PageReading
from groundup.corpus.import_sources import Import
from groundup.corpus.look_up import dropped_for, trace
from groundup.corpus.pipeline import run_recipe
from groundup.corpus.read_documents import read_documents
from groundup.corpus.recipe import Recipe, default_recipe
from groundup.corpus.sources import find_source_files
from groundup.corpus.text_key import proposed_key
from groundup.corpus.warc import page_record, read_warc
from tests.unit.corpus.test_extraction import write_pages
from tests.unit.corpus.test_pipeline import content, documents
from tests.web_server import html

SERIAL = SerialRunner()
FAST = PageReading(engine="resiliparse", min_characters=20)
STRICT = BadRecords(BadRecordPolicy(action="fail"))


def recipe_of(*sources: Path, **settings) -> Recipe:
    num_shards, output = settings.pop("num_shards", None), settings.pop("format", "jsonl")
    first = Import(sources=sources, **{"pages": FAST, **settings})
    return Recipe(stages=(first,), num_shards=num_shards, format=output)


def texts(*sources: Path, **settings) -> list[str]:
    return [document.text for document in read_documents(sources, bad_records=STRICT, **settings)]


# Pages


def write_warc(path: Path, number: int = 40) -> Path:
    """Pages that compress so badly that each is behind another chunk of the disk."""
    import datetime

    generator = random.Random(0)
    members = []
    for page in range(number):
        noise = generator.randbytes(40_000).hex()
        body = html(f"Page {page}", f"<p>{f'Sentence {page} of the harbour. ' * 20}<!-- {noise} -->").encode()
        when = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
        headers = ((b"Content-Type", b"text/html"),)
        members.append(page_record(f"http://site{page % 3}.example/{page}", 200, headers, body, when))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(members))
    return path


def ranges_of(size: int, number: int) -> list[tuple[int, int]]:
    bounds = [size * part // number for part in range(number)]
    return list(zip(bounds, [*bounds[1:], 0], strict=True))


def test_each_page_of_a_warc_file_is_in_one_of_its_ranges(tmp_path):
    path = write_warc(tmp_path / "a.warc.gz")
    whole = [(page.number, page.url) for page in read_warc(path)]
    assert [number for number, _ in whole] == list(range(1, 41))
    size = path.stat().st_size
    for number in (2, 5, 8):
        found, read = [], []
        for begin, end in ranges_of(size, number):
            of_range = [(page.number, page.url) for page in read_warc(path, begin, end, read.append)]
            assert 0 < len(of_range) < 40
            found += of_range
        assert found == whole
        assert size - number * (1 << 17) < sum(read) <= size
    path.write_bytes(path.read_bytes()[: size * 2 // 3])
    damaged = 0
    for begin, end in ranges_of(size, 5):
        try:
            list(read_warc(path, begin, end))
        except DamagedFile:
            damaged += 1
    assert damaged == 1  # told by one range alone


@pytest.fixture
def mixed(tmp_path) -> Path:
    """HTML, WARC, text, JSON lines, Arrow and Parquet in a folder."""
    folder = tmp_path / "in"
    write_pages(folder / "html")
    write_warc(folder / "warc" / "a.warc.gz", 12)
    (folder / "b.jsonl").write_text('{"text": "one line", "id": "first"}\n{"text": "another"}\n')
    write_dataset(folder / "saved", ROWS)
    pa.parquet.write_table(pa.table({"text": ["a row"], "n": [1]}), folder / "z.parquet")
    return folder


def test_a_folder_of_everything_gives_the_same_in_any_number_of_parts(mixed, tmp_path):
    whole = run_recipe(recipe_of(mixed, num_shards=1), tmp_path / "one", SERIAL)
    found = {entry["id"]: entry for entry in documents(whole)}
    expected = {
        *("html/a.html", "html/notes.txt", "html/sub/b.htm.gz", "first", "b.jsonl:2", "z.parquet:1"),
        *(f"http://site{page % 3}.example/{page}" for page in range(12)),
        *(
            f"saved/{name}:{row}"
            for name, row in (("data-0.arrow", 1), ("data-0.arrow", 2), ("data-1.arrow", 1))
        ),
    }
    assert found.keys() == expected
    assert found["http://site1.example/4"]["meta"]["origin"] == f"{mixed}/warc/a.warc.gz:5"
    assert found["http://site1.example/4"]["text"].count("Sentence 4 of the harbour.") == 20
    assert whole.counts.read_profile.domains == {f"site{n}.example": 4 for n in range(3)}
    (dropped,) = whole.counts.dropped
    assert (dropped.rule, dropped.reason, dropped.examples) == (
        "extract",
        "no main text",
        ("html/sub/c.xhtml",),
    )
    assert [each.fields["id"] for each in dropped_for(tmp_path / "one", "extract:no main text")] == [
        "html/sub/c.xhtml"
    ]
    parts = run_recipe(recipe_of(mixed, num_shards=5), tmp_path / "five", ProcessRunner(workers=2))
    assert documents(parts) == documents(whole)
    assert parts.counts == whole.counts


def test_pages_that_end_their_process_cost_these_pages_alone(mixed, tmp_path):
    impossible = dataclasses.replace(FAST, limits=ExtractionLimits(seconds=1e-6))
    report = run_recipe(
        recipe_of(mixed, pages=impossible, num_shards=3), tmp_path / "out", ProcessRunner(workers=2)
    )
    assert {(entry.rule, entry.reason, entry.documents) for entry in report.counts.dropped} == {
        ("extract", "extraction time limit", 15)
    }
    assert report.counts.documents == 7  # all that are no pages


def test_an_interrupted_import_does_not_extract_again_what_is_done(mixed, tmp_path, monkeypatch):
    recipe = recipe_of(mixed / "warc", mixed / "html", num_shards=4)
    run_recipe(recipe, tmp_path / "whole", SERIAL)
    asked: list[str] = []
    extract = PageExtractor.__call__

    def counted(extractor, page):
        asked.append(page.id)
        if len(asked) == 10:
            raise KeyboardInterrupt
        return extract(extractor, page)

    monkeypatch.setattr(PageExtractor, "__call__", counted)
    with pytest.raises(KeyboardInterrupt):
        run_recipe(recipe, tmp_path / "out", SERIAL)
    done = len(list((tmp_path / "out/.stages/00-import").glob("*.done.json")))
    assert done >= 2
    run_recipe(recipe, tmp_path / "out", SERIAL)
    assert len(set(asked)) == 15 and len(asked) < 15 + 10  # not all ten again
    assert content(tmp_path / "out") == content(tmp_path / "whole")


def test_html_is_text_where_no_engine_is_wanted(tmp_path):
    write_pages(tmp_path / "in")
    raw = PageReading(engine="none")
    report = run_recipe(recipe_of(tmp_path / "in/a.html", pages=raw), tmp_path / "out", SERIAL)
    assert documents(report)[0]["text"] == (tmp_path / "in/a.html").read_text()
    with pytest.raises(ConfigError, match=r"a\.warc\.gz:1: .*none is chosen"):
        run_recipe(recipe_of(write_warc(tmp_path / "a.warc.gz", 1), pages=raw), tmp_path / "w", SERIAL)


def test_the_folder_of_a_crawl_means_its_documents(tmp_path):
    folder = tmp_path / "pages"
    write_warc(folder / "warc" / "pages-00000.warc.gz", 2)
    (folder / ".crawl").mkdir()
    assert [file.name for file in find_source_files([folder])] == ["warc/pages-00000.warc.gz"]  # raw alone
    (folder / "documents-00000.jsonl").write_text('{"text": "x"}\n')
    assert [file.name for file in find_source_files([folder])] == ["documents-00000.jsonl"]
    assert [file.name for file in find_source_files([folder], only_pages=True)] == [
        "warc/pages-00000.warc.gz"
    ]


def test_damage_of_pages_is_judged_by_the_policy(tmp_path):
    path = write_warc(tmp_path / "a.warc.gz", 12)
    path.write_bytes(path.read_bytes()[:-5000])
    with pytest.raises(
        DataError, match=r"a\.warc\.gz: the file is damaged|a\.warc\.gz:\d+: the file is damaged"
    ):
        run_recipe(recipe_of(path), tmp_path / "out", SERIAL)
    recipe = dataclasses.replace(recipe_of(path), bad_records=BadRecordPolicy(action="skip", max_bad=0.5))
    report = run_recipe(recipe, tmp_path / "out", SERIAL)
    assert report.counts.documents == 11 and report.counts.bad_records.by_reason == {"damaged file": 1}


# Arrow, as Hugging Face's datasets write it

ROWS = [["one row", "two rows"], ["of another file"]]


def write_stream(path: Path, rows: list[str], batch: int = 1000) -> None:
    table = pa.table({"text": rows, "id_of": [str(number) for number in range(len(rows))]})
    path.parent.mkdir(parents=True, exist_ok=True)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=batch)


def write_dataset(folder: Path, files: list[list[str]]) -> Path:
    """What ``Dataset.save_to_disk`` leaves, with a cache of ``filter`` beside it."""
    for number, rows in enumerate(files):
        write_stream(folder / f"data-{number}.arrow", rows)
    write_stream(folder / "cache-0123.arrow", ["of a cache"])
    listed = [{"filename": f"data-{number}.arrow"} for number in range(len(files))]
    (folder / "state.json").write_text(json.dumps({"_data_files": listed, "_fingerprint": "a"}))
    (folder / "dataset_info.json").write_text(json.dumps({"features": {"text": {"dtype": "string"}}}))
    return folder


def test_a_saved_dataset_is_its_rows(tmp_path):
    folder = write_dataset(tmp_path / "set", ROWS)
    assert texts(folder) == ["one row", "two rows", "of another file"]
    (folder / "state.json").unlink()  # as in the cache of the library
    assert texts(folder) == ["one row", "two rows", "of another file"]
    found = list(read_documents([folder], bad_records=STRICT, text_key="text"))
    assert (found[0].id, found[0].meta["id_of"]) == ("data-0.arrow:1", "0")


def test_a_dict_of_saved_datasets_is_the_rows_of_all(tmp_path):
    for split in ("train", "test"):
        write_dataset(tmp_path / "sets" / split, [[split]])
    (tmp_path / "sets/dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    assert texts(tmp_path / "sets") == ["test", "train"]
    assert texts(tmp_path / "sets" / "train") == ["train"]


def test_a_repository_of_parquet_is_its_rows_without_its_card(tmp_path):
    (tmp_path / "data").mkdir()
    pa.parquet.write_table(pa.table({"text": ["a row"]}), tmp_path / "data/train-0.parquet")
    (tmp_path / "README.md").write_text("---\nlicense: mit\n---\n# The card\n")
    (tmp_path / ".gitattributes").write_text("*.parquet filter=lfs\n")
    assert texts(tmp_path) == ["a row"]
    (tmp_path / "README.md").write_text("# A text like others\n")
    assert texts(tmp_path) == ["# A text like others\n", "a row"]


def test_a_dataset_that_lacks_a_file_is_refused(tmp_path):
    folder = write_dataset(tmp_path / "set", ROWS)
    (folder / "data-1.arrow").unlink()
    with pytest.raises(DataError, match=r"lacks 1 of its 2 files: data-1\.arrow"):
        texts(folder)


def test_ranges_of_an_arrow_file_are_its_batches(tmp_path):
    rows = [f"row {number} " * 50 for number in range(1000)]
    write_stream(tmp_path / "a.arrow", rows, batch=10)
    report = run_recipe(recipe_of(tmp_path / "a.arrow", num_shards=7), tmp_path / "out", SERIAL)
    found = documents(report)
    assert [entry["text"] for entry in found] == rows
    assert [entry["id"] for entry in found] == [f"a.arrow:{number}" for number in range(1, 1001)]
    assert len([path for path in report.documents_paths if path.stat().st_size > 100]) == 7
    table = pa.table({"text": rows})
    with pa.OSFile(str(tmp_path / "b.arrow"), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=10)
    assert texts(tmp_path / "b.arrow") == rows  # the form with a footer


@pytest.mark.parametrize("damage", ["cut", "offsets", "nonsense"])
def test_a_damaged_arrow_file_is_named(tmp_path, damage):
    path = tmp_path / "a.arrow"
    write_stream(path, [f"row {number} of many" for number in range(2000)])
    packed = bytearray(path.read_bytes())
    if damage == "cut":
        del packed[-100:]
    elif damage == "offsets":
        packed[1000:5000] = b"\xee" * 4000
    else:
        packed = bytearray(b"nonsense")
    path.write_bytes(packed)
    with pytest.raises(DataError, match=r"a\.arrow(:1)?: the file is damaged"):
        texts(path)


# Keys


@pytest.mark.parametrize(
    ("fields", "proposed"),
    [
        ({"content": "x" * 50, "title": "short"}, "content"),
        ({"story": "x" * 50, "content": "short"}, "story"),
        ({"label": 1, "content": "short", "tex": "also"}, "content"),
        ({"label": None, "Text": None}, "Text"),
        ({"label": 1, "n": 2}, ""),
    ],
)
def test_the_key_that_may_hold_the_text(fields, proposed):
    assert proposed_key("text", fields) == proposed


def test_a_missing_key_names_those_that_there_are_and_the_likely_one(tmp_path):
    (tmp_path / "a.jsonl").write_text(json.dumps({"title": "t", "body": "b" * 60}) + "\n")
    with pytest.raises(DataError, match=r"the keys are: title, body; the text may be under 'body'.* --key"):
        import_(tmp_path / "a.jsonl", step=StepOptions(out=tmp_path / "out", workers=0))
    pa.parquet.write_table(pa.table({"title": ["t"], "body": ["b"]}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"the columns are: title, body\..* with --key body"):
        import_(tmp_path / "a.parquet", step=StepOptions(out=tmp_path / "out", workers=0))


# Parquet out


def test_documents_come_back_from_parquet_as_they_were(tmp_path):
    rows = [
        {
            "id": "1",
            "url": "http://a.example/x",
            "text": "Über \u2028 all\n",
            "meta": {"n": [1, {"b": None}]},
        },
        {"id": "2", "text": "", "title": "no text"},
        {"text": "𝔘nicode", "language": "de"},
    ]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    plain = run_recipe(recipe_of(tmp_path / "in.jsonl"), tmp_path / "plain", SERIAL)
    made = run_recipe(recipe_of(tmp_path / "in.jsonl", format="parquet"), tmp_path / "out", SERIAL)
    assert [path.name for path in made.documents_paths] == ["documents-00000-of-00001.parquet"]
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        *("documents-00000-of-00001.parquet", "excluded.jsonl.zst", "manifest.json", ".stages")
    }
    again = run_recipe(recipe_of(tmp_path / "out"), tmp_path / "again", SERIAL)
    assert documents(again) == documents(plain)
    assert made.counts == plain.counts
    assert pa.parquet.read_table(made.documents_paths[0])["url"].to_pylist()[0] == "http://a.example/x"
    (found,) = trace(tmp_path / "out", "in.jsonl:3")
    assert (found.fields["text"], found.fields["meta"]["language"]) == ("𝔘nicode", "de")
    # Back to JSON lines: nothing of the other form is left.
    run_recipe(recipe_of(tmp_path / "in.jsonl"), tmp_path / "out", SERIAL)
    assert content(tmp_path / "out").keys() == content(tmp_path / "plain").keys()


def test_parquet_is_the_same_for_any_number_of_workers_and_after_a_kill(mixed, tmp_path):
    recipe = dataclasses.replace(default_recipe([mixed / "b.jsonl", mixed / "saved"]), num_shards=3)
    recipe = dataclasses.replace(recipe, format="parquet")
    run_recipe(recipe, tmp_path / "whole", SERIAL)
    run_recipe(recipe, tmp_path / "out", ProcessRunner(workers=2))
    assert content(tmp_path / "out") == content(tmp_path / "whole")
    finish = next((tmp_path / "out/.stages").glob("*-finish"))
    (finish / "documents-00001-of-00003.parquet").unlink()
    (tmp_path / "out/manifest.json").unlink()
    run_recipe(recipe, tmp_path / "out", SERIAL)
    assert content(tmp_path / "out") == content(tmp_path / "whole")
    shutil.rmtree(tmp_path / "out/.stages")


def test_tokens_of_parquet_are_those_of_json_lines(mixed, tmp_path):
    from groundup.tokens.tokenize import build_tokens
    from groundup.tokens.tokenizer.load_tokenizer import load_tokenizer

    tokenizer = load_tokenizer(Path("bytes"))
    made = {}
    for form in ("jsonl", "parquet"):
        run_recipe(recipe_of(mixed, format=form), tmp_path / form, SERIAL)
        prefixes = build_tokens([tmp_path / form], tmp_path / f"{form}-tokens", tokenizer).prefixes
        made[form] = prefixes["text"].with_name(prefixes["text"].name + ".bin").read_bytes()
    assert made["jsonl"] == made["parquet"] and len(made["jsonl"]) > 1000


def test_tokens_of_pages_are_those_of_their_main_text(tmp_path):
    from groundup.tokens.tokenize import build_tokens
    from groundup.tokens.tokenizer.load_tokenizer import load_tokenizer

    write_pages(tmp_path / "in")
    tokenizer = load_tokenizer(Path("bytes"))
    report = build_tokens([tmp_path / "in" / "a.html"], tmp_path / "tokens", tokenizer)
    (document,) = read_documents([tmp_path / "in" / "a.html"], bad_records=STRICT)
    path = report.prefixes["text"].with_name(report.prefixes["text"].name + ".bin")
    assert path.stat().st_size >= len(document.text.encode()) > 100
    assert report.counts["text"].text_bytes == len(document.text.encode())
