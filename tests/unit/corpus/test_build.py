import json
from pathlib import Path

import pytest

from groundup.cli.corpus import build
from groundup.core.compressed import open_decompressed
from groundup.core.errors import ConfigError, DataError, GroundupError, MachineError
from groundup.core.files import read_json
from groundup.corpus import build as build_module
from groundup.corpus.bad_records import BadRecordPolicy
from groundup.corpus.build import CorpusConfig, build_corpus
from groundup.corpus.filters import FixUnicode, Length, NormalizeWhitespace

TEXTS = ["one  \n", "two", "one", "", "long " * 50, "three", "tw\x07o"]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"".join(json.dumps({"text": text}).encode() + b"\n" for text in TEXTS))
    return path


def documents(output_dir: Path, name: str = "documents.jsonl.zst") -> list[dict]:
    with open_decompressed(output_dir / name) as stream:
        return [json.loads(line) for line in stream]


def content(output_dir: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in output_dir.iterdir()}


def test_a_corpus_is_cleaned_deduplicated_and_counted(source, tmp_path):
    out = tmp_path / "out"
    steps = (FixUnicode(), NormalizeWhitespace(), Length(max_characters=100))
    report = build_corpus(CorpusConfig(output_dir=out, sources=(source,), steps=steps, shuffle_seed=None))
    assert [(entry["id"], entry["text"]) for entry in documents(out)] == [
        ("in.jsonl:1", "one\n"),
        ("in.jsonl:2", "two"),
        ("in.jsonl:6", "three"),
    ]
    dropped = {(entry.rule, entry.reason): (entry.documents, entry.examples) for entry in report.dropped}
    assert dropped == {
        ("exact_duplicate", "seen before"): (2, ("in.jsonl:3", "in.jsonl:7")),
        ("length", "too short"): (1, ("in.jsonl:4",)),
        ("length", "too long"): (1, ("in.jsonl:5",)),
    }
    assert (report.documents_read, report.documents) == (7, 3)
    assert report.bytes_read == sum(len(text) for text in TEXTS) and report.bytes == 12
    assert report.edited == {"fix_unicode": 1, "normalize_whitespace": 2}
    excluded = documents(out, "excluded.jsonl.zst")
    assert {(entry["rule"], entry["reason"]) for entry in excluded} == set(dropped) and len(excluded) == 4
    assert max(len(entry["text"]) for entry in excluded) == 200
    assert set(content(out)) == {"documents.jsonl.zst", "excluded.jsonl.zst", "manifest.json"}
    manifest = read_json(out / "manifest.json")
    assert manifest["kind"] == "corpus" and manifest["inputs"].keys() == {str(source)}


def test_a_second_run_has_nothing_to_do_until_something_changes(source, tmp_path):
    config = CorpusConfig(output_dir=tmp_path / "out", sources=(source,))
    first = build_corpus(config)
    before = (config.output_dir / "documents.jsonl.zst").stat().st_mtime_ns
    again = build_corpus(config)
    assert again.reused and not first.reused
    assert again.table() == first.table() and again.dropped == first.dropped
    assert (config.output_dir / "documents.jsonl.zst").stat().st_mtime_ns == before
    first.documents_path.write_bytes(b"cut")
    assert not build_corpus(config).reused
    source.write_bytes(source.read_bytes() + b'{"text": "more"}\n')
    changed = build_corpus(config)
    assert not changed.reused and changed.documents == first.documents + 1
    (config.output_dir / "manifest.json").write_text("{")
    assert not build_corpus(config).reused


def test_the_same_input_gives_the_same_bytes_and_a_seed_its_order(source, tmp_path):
    def built(name: str, **options) -> list[str]:
        config = CorpusConfig(output_dir=tmp_path / name, sources=(source,), **options)
        build_corpus(config, shuffle_memory_bytes=0 if name == "b" else 1 << 20)
        return [entry["text"] for entry in documents(config.output_dir)]

    orders = {tuple(built(f"seed{seed}", shuffle_seed=seed)) for seed in range(5)}
    assert len(orders) > 1 and len({frozenset(order) for order in orders}) == 1
    built("a"), built("b")
    a, b = content(tmp_path / "a"), content(tmp_path / "b")
    assert a["documents.jsonl.zst"] == b["documents.jsonl.zst"]


def test_a_run_that_fails_leaves_the_corpus_before_it(source, tmp_path, monkeypatch):
    config = CorpusConfig(output_dir=tmp_path / "out", sources=(source,))
    build_corpus(config)
    before = content(config.output_dir)
    source.write_bytes(b"broken\n" * 30 + source.read_bytes())
    with pytest.raises(DataError, match=r"30 of 37 records are bad"):
        build_corpus(config)
    assert content(config.output_dir) == before

    source.write_bytes(b'{"text": "x"}\n')

    def full(*_: object) -> bytes:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(build_module, "to_json_line", full)
    with pytest.raises(MachineError, match="No space left"):
        build_corpus(config)
    assert content(config.output_dir) == before


def test_an_interrupted_run_leaves_nothing_behind(source, tmp_path, monkeypatch):
    def interrupted(*_: object) -> bytes:
        raise KeyboardInterrupt

    monkeypatch.setattr(build_module, "to_json_line", interrupted)
    with pytest.raises(KeyboardInterrupt):
        build_corpus(CorpusConfig(output_dir=tmp_path / "out", sources=(source,)))
    assert content(tmp_path / "out") == {}


def test_what_a_killed_run_left_is_cleared_away(source, tmp_path):
    out = tmp_path / "out"
    (out / ".shuffle").mkdir(parents=True)
    for name in (".shuffle/bucket-00000", ".documents.jsonl.zst.77.tmp", "quarantine.jsonl"):
        (out / name).write_bytes(b"old")
    build_corpus(CorpusConfig(output_dir=out, sources=(source,)))
    assert set(content(out)) == {"documents.jsonl.zst", "excluded.jsonl.zst", "manifest.json"}


def test_the_manifest_goes_before_its_documents_do(source, tmp_path, monkeypatch):
    """A kill between the two must not leave new documents under an old manifest."""
    config = CorpusConfig(output_dir=tmp_path / "out", sources=(source,))
    build_corpus(config)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(build_module, "describe_files", killed)
    with pytest.raises(KeyboardInterrupt):
        build_corpus(CorpusConfig(output_dir=tmp_path / "out", sources=(source,), shuffle_seed=9))
    assert not (tmp_path / "out/manifest.json").exists()


def test_an_empty_result_says_why(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'{"text": ""}\n{"text": " "}\nbroken\n')
    with pytest.raises(DataError, match=r"no document is left of 3 .*no text 2; bad record: not JSON 1"):
        build_corpus(CorpusConfig(output_dir=tmp_path / "out", sources=(tmp_path / "a.jsonl",)))
    (tmp_path / "empty.txt").write_bytes(b"")
    with pytest.raises(DataError, match="no document is left of 1"):
        build_corpus(CorpusConfig(output_dir=tmp_path / "out", sources=(tmp_path / "empty.txt",)))


def test_an_output_folder_within_a_source_is_not_read(source, tmp_path):
    config = CorpusConfig(output_dir=tmp_path / "out", sources=(tmp_path,))
    first = build_corpus(config)
    assert build_corpus(config).reused and first.documents_read == len(TEXTS)
    with pytest.raises(ConfigError, match="is a file"):
        build_corpus(CorpusConfig(output_dir=source, sources=(source,)))


def test_quarantine_lies_beside_the_corpus(source, tmp_path):
    source.write_bytes(source.read_bytes() + b"broken\n")
    config = CorpusConfig(
        output_dir=tmp_path / "out", sources=(source,), bad_records=BadRecordPolicy(action="quarantine")
    )
    assert build_corpus(config).bad_by_reason == {"not JSON": 1}
    assert json.loads((tmp_path / "out/quarantine.jsonl").read_text())["where"] == f"{source}:8"


def test_the_command_prints_a_table_on_stdout(source, tmp_path, capsys):
    build(source, out=tmp_path / "out", min_characters=4)
    out = capsys.readouterr().out
    assert "length: too short" in out and str(tmp_path / "out/documents.jsonl.zst") in out
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines() if line}
    assert rows["read"][0] == "7" and rows["kept"][0] == "2"
    build(source, out=tmp_path / "out", min_characters=4)
    assert "was there already" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="command line: --max-bad = 7"):
        build(source, out=tmp_path / "out", max_bad=7)
    with pytest.raises(GroundupError, match="--python-library"):
        build(out=tmp_path / "out")


def test_real_text_comes_through_unharmed(shared_data, tmp_path):
    """Chinese and code lose nothing but white space and decomposed letters."""
    for name, kept, edited in (("corpus_zh", 268, {}), ("corpus_code", 296, {"fix_unicode": 1})):
        config = CorpusConfig(
            output_dir=tmp_path / name, sources=(shared_data / name,), text_key="content", shuffle_seed=None
        )
        report = build_corpus(config)
        assert report.documents == kept and report.bad_records == 0
        assert {key: count for key, count in report.edited.items() if key == "fix_unicode"} == edited
        assert report.bytes > 0.998 * report.bytes_read
