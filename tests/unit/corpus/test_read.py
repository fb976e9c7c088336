import gzip
import json
import os
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from groundup.core.errors import ConfigError, DataError
from groundup.corpus import line_blocks
from groundup.corpus.bad_records import BadRecordPolicy, BadRecords
from groundup.corpus.document import Document, from_json_line, text_bytes, to_json_line
from groundup.corpus.python_library import find_python_library, read_python_library
from groundup.corpus.read_documents import read_documents
from groundup.corpus.sources import find_files, find_source_files

ANY = BadRecordPolicy(action="skip", max_bad=1.0)


def lines(*records: object) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def read(path: Path, **options) -> tuple[list[Document], BadRecords]:
    with BadRecords(ANY) as bad:
        return list(read_documents([path], bad_records=bad, **options)), bad


# Documents

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(), children, max_size=3),
    max_leaves=5,
)


@given(st.text(), st.text(), st.text(), st.dictionaries(st.text(), json_values, max_size=3))
def test_a_document_survives_its_line(identity, url, text, meta):
    document = Document(identity, url, text, meta)
    line = to_json_line(document)
    assert line.endswith(b"\n") and line.count(b"\n") == 1
    assert from_json_line(line) == document


@given(st.text())
def test_text_bytes_is_the_length_in_utf8(text):
    assert text_bytes(text) == len(text.encode())


def test_a_written_corpus_reads_back_as_it_was(tmp_path):
    documents = [
        Document("1", "http://a", "x", {"meta": 1, "origin": "a:1", "url": 3}),
        Document("b", "", "y", {"origin": "f"}),
    ]
    (tmp_path / "a.jsonl").write_bytes(b"".join(map(to_json_line, documents)))
    assert read(tmp_path / "a.jsonl")[0] == documents


# Finding files


def test_a_folder_gives_its_text_files_sorted_without_hidden_ones(tmp_path):
    for name in ("b.txt", "a/z.md", "a/b.jsonl.gz", ".git/x.txt", "__pycache__/y.py", "p.png", ".h.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    (tmp_path / "a/loop").symlink_to(tmp_path)
    names = [file.name for file in find_source_files([tmp_path])]
    assert names == ["a/b.jsonl.gz", "a/z.md", "b.txt"]
    assert find_files([tmp_path / "b.txt", tmp_path])[0] == tmp_path / "b.txt"  # each file once
    assert len(find_files([tmp_path / "b.txt", tmp_path])) == 3
    assert [file.name for file in find_source_files([tmp_path / "*" / "*.md"])] == ["a/z.md"]
    assert find_files([tmp_path / "p.png"]) == [tmp_path / "p.png"]


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("nowhere/x.txt", "no such file or folder"),
        ("*.txt", "no file matches the pattern"),
        ("empty", "no text, JSONL, Parquet, Arrow, WARC or HTML file in the folder"),
        ("pictures", r"other endings: \.png: 1"),
        ("pipe", "neither a file nor a folder"),
    ],
)
def test_a_source_of_no_use_is_refused(tmp_path, source, says):
    (tmp_path / "empty").mkdir()
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures/a.png").write_text("")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match=says) as raised:
        find_files([tmp_path / source])
    assert source in str(raised.value)


def test_a_folder_that_cannot_be_listed_is_refused(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("x")
    (tmp_path / "shut").mkdir()
    scandir = os.scandir

    def guarded(path):
        if str(path).endswith("shut"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", guarded)
    with pytest.raises(DataError, match=r"shut: .*Permission denied"):
        find_files([tmp_path])


def test_a_name_that_is_not_unicode_can_be_written(tmp_path):
    path = tmp_path / os.fsdecode(b"caf\xe9.txt")
    path.write_text("x")
    (document,) = read(path)[0]
    assert document.id == "caf\ufffd.txt"
    to_json_line(document)


# Reading


@pytest.mark.parametrize("ending", [".jsonl", ".json", ".ndjson", ".jsonl.gz", ".jsonl.zst"])
def test_a_line_is_a_document(tmp_path, ending):
    content = b"\xef\xbb\xbf" + lines({"id": 7, "url": "u", "content": "a\n", "n": 1}) + b"\n \n"
    content += lines({"content": "b", "id": [1], "url": None})[:-1]  # no newline at the end
    compress = {".gz": gzip.compress, ".zst": zstandard.compress}.get(Path(ending).suffix, bytes)
    path = tmp_path / f"f{ending}"
    path.write_bytes(compress(content))
    documents, bad = read(path, text_key="content")
    assert documents == [
        Document("7", "u", "a\n", {"n": 1, "origin": f"{path}:1"}),
        Document(f"f{ending}:4", "", "b", {"id": [1], "url": None, "origin": f"{path}:4"}),
    ]
    assert (bad.good, bad.bad) == (2, 0)


@pytest.mark.parametrize("ending", [".txt", ".py", ".txt.gz", ".md.zst"])
def test_a_text_file_is_a_document(tmp_path, ending):
    compress = {".gz": gzip.compress, ".zst": zstandard.compress}.get(Path(ending).suffix, bytes)
    (tmp_path / "in").mkdir()
    path = tmp_path / f"in/f{ending}"
    path.write_bytes(compress("\ufeffé\r\n".encode()))
    assert read(tmp_path)[0] == [Document(f"in/f{ending}", "", "é\r\n", {"origin": str(path)})]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"nonsense", "not JSON"),
        (b'{"text": "a', "not JSON"),
        (b"[1]", "not an object"),
        (b'{"txt": "a"}', "no text key"),
        (b'{"text": 1}', "text is not a string"),
        (b'{"text": null}', "text is not a string"),
        (b'{"text": "\\u0000"}', "NUL byte"),
        (b'{"text": "\\ud800"}', "lone surrogate"),
        (b'{"text": "\xff"}', "not UTF-8"),
    ],
)
def test_a_malformed_line_is_counted_with_its_place_and_reason(tmp_path, line, reason):
    path = tmp_path / "f.jsonl"
    path.write_bytes(lines({"text": "a"}) + line + b"\n" + lines({"text": "b"}))
    documents, bad = read(path)
    assert [document.text for document in documents] == ["a", "b"]
    assert bad.by_reason == {reason: 1}
    assert bad.offenders[0].startswith(f"{path}:2: {reason}")


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"a\0b", "NUL byte"), (b"ab\n\xff", "not UTF-8"), ("hi".encode("utf-16"), "NUL byte")],
)
def test_a_file_that_is_not_text_is_a_bad_record(tmp_path, content, reason):
    (tmp_path / "f.txt").write_bytes(content)
    documents, bad = read(tmp_path)
    assert documents == [] and bad.by_reason == {reason: 1}


@pytest.mark.parametrize(("ending", "compress"), [(".gz", gzip.compress), (".zst", zstandard.compress)])
@pytest.mark.parametrize("damage", ["cut", "junk behind", "only junk"])
def test_what_stands_before_the_damage_is_kept(tmp_path, ending, compress, damage):
    content = lines(*({"text": f"{number} {number * 7919 % 10007}"} for number in range(30_000)))
    packed = compress(content)
    packed = {"cut": packed[:-1000], "junk behind": packed + b"junk", "only junk": b"junk"}[damage]
    path = tmp_path / f"f.jsonl{ending}"
    path.write_bytes(packed)
    documents, bad = read(path)
    assert bad.by_reason == {"damaged file": 1}
    least, most = {"cut": (10_000, 29_999), "junk behind": (29_000, 30_000), "only junk": (0, 0)}[damage]
    assert least <= len(documents) <= most
    assert bad.offenders[0].startswith(f"{path}:{len(documents) + 1}: damaged file")


def test_a_line_beyond_the_limit_is_a_bad_record(tmp_path, monkeypatch):
    monkeypatch.setattr(line_blocks, "MAX_RECORD_BYTES", 20)
    monkeypatch.setattr(line_blocks, "_BLOCK_BYTES", 16)
    path = tmp_path / "f.jsonl"
    path.write_bytes(lines({"text": "x" * 90}, {"text": "a"}))
    documents, bad = read(path)
    assert [document.text for document in documents] == ["a"] and bad.by_reason == {"too long": 1}


def test_formats_that_are_not_read_are_named(tmp_path):
    for name, kind in (("a.zip", "zip"), ("a.parquet.gz", "compressed Parquet"), ("a.xz", "xz")):
        (tmp_path / name).write_bytes(b"PK")
        with pytest.raises(DataError, match=f"{kind} files are not read"):
            read(tmp_path / name)


# The policy


def test_fail_stops_at_the_first_with_its_place(tmp_path):
    (tmp_path / "f.jsonl").write_bytes(lines({"text": "a"}) + b"x\n")
    with pytest.raises(DataError, match=r"f\.jsonl:2: bad record: not JSON"):
        list(read_documents([tmp_path], bad_records=BadRecords(BadRecordPolicy(action="fail"))))


@pytest.mark.parametrize(
    ("good", "bad", "max_bad", "fine"),
    [
        (2, 1, 0.001, True),
        (2, 2, 0.001, False),
        (2, 1, 0.0, False),
        (1998, 2, 0.001, True),
        (3, 7, 1.0, True),
    ],
)
def test_the_share_is_judged_at_the_end(good, bad, max_bad, fine):
    def run() -> None:
        with BadRecords(BadRecordPolicy(max_bad=max_bad)) as records:
            records.add_good(good)
            for _ in range(bad):
                records.add("f:1", "not JSON")

    if fine:
        run()
    else:
        with pytest.raises(DataError, match="f:1: not JSON"):
            run()


def test_a_hopeless_run_is_stopped_early():
    records = BadRecords(BadRecordPolicy())
    records.add_good(5000)
    for _ in range(19):
        records.add("f:1", "not JSON")  # too early to say
    with pytest.raises(DataError, match="20 of 5,020"):
        records.add("f:1", "not JSON")


def test_quarantine_keeps_the_records(tmp_path):
    path = tmp_path / "out/quarantine.jsonl"
    (tmp_path / "f.jsonl").write_bytes(b'{"text": 1}\n\xff\n')
    policy = BadRecordPolicy(action="quarantine", max_bad=0.0)
    with (
        pytest.raises(DataError),
        BadRecords(policy, quarantine_path=path) as bad,
    ):  # kept for a failed run too
        list(read_documents([tmp_path / "f.jsonl"], bad_records=bad))
    first, second = map(json.loads, path.read_text().splitlines())
    assert (first["where"], first["record"]) == (f"{tmp_path}/f.jsonl:1", '{"text": 1}')
    assert second["record_base64"] == "/w=="
    with pytest.raises(ConfigError):
        BadRecords(policy)


# The Python library


def test_the_python_library_is_code_without_tests_and_tables():
    files = find_python_library()
    names = [file.name for file in files]
    assert len(names) > 400 and names == sorted(names) and "json/decoder.py" in names
    parts = {part for name in names for part in name.split("/")}
    assert not parts & {
        "test",
        "tests",
        "idle_test",
        "site-packages",
        "encodings",
        "topics.py",
        "entities.py",
    }
    with BadRecords(ANY) as bad:
        documents = list(read_python_library(files, bad_records=bad))
    assert len(documents) == len(files) and bad.bad == 0
    assert documents[0].meta.keys() == {"path", "python"} and documents[0].id == names[0]


def test_a_python_without_library_sources_is_refused(tmp_path):
    with pytest.raises(DataError, match="standard library"):
        find_python_library(tmp_path)
