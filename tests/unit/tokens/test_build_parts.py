"""Builds in parts: the same bytes however the input is cut, whoever does it, and whatever is killed."""

import gzip
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from groundup.core.errors import DataError, MachineError
from groundup.corpus.bad_records import BadRecordPolicy
from groundup.corpus.source_ranges import cut_into_parts
from groundup.corpus.sources import find_source_files
from groundup.tokens.dataset.dataset_manifest import manifest_path
from groundup.tokens.dataset.document_sources import DocumentSource, DocumentSources, document_sources_path
from groundup.tokens.dataset.indexed import IndexedDataset, bin_path, idx_path
from groundup.tokens.tokenize import build_rank, build_tokens, part_writer
from groundup.tokens.tokenizer.base import Tokenizer
from tests.forked import python

ANY = BadRecordPolicy(action="quarantine", max_bad=1.0)


def artefacts(prefix: Path, key: str = "text") -> dict[str, bytes]:
    """The content of all files of a dataset."""
    path = prefix.with_name(f"{prefix.name}_{key}_document")
    files = [bin_path(path), idx_path(path), document_sources_path(path)]
    return {file.suffix: file.read_bytes() for file in files}


def counts(prefix: Path, key: str = "text") -> dict[str, Any]:
    return json.loads(manifest_path(prefix.with_name(f"{prefix.name}_{key}_document")).read_text())["counts"]


# What is read, against a reader that knows no parts

good = st.fixed_dictionaries(
    {"text": st.sampled_from(["", "the cat", "  ", "naïve 你好\n\n", "x" * 300])},
    optional={
        "url": st.sampled_from(["http://a", "", None, 3]),
        "meta": st.sampled_from([{"url": "http://é"}, {}, []]),
    },
)
BAD = {
    b"{broken": "not JSON",
    b'{"text": 3}': "text is not a string",
    b'{"title": "a"}': "no text key",
    b"[1]": "not an object",
    b'{"text": "\xff"}': "not UTF-8",
    b'{"text": "\\ud800"}': "lone surrogate",
    b'{"text": "\x00"}': "not JSON",
    b"\x00": "not JSON",
}
line = st.one_of(
    good.map(lambda record: json.dumps(record, ensure_ascii=False).encode()),
    st.sampled_from([*BAD, b"", b"  ", b"\r"]),
)
files = st.lists(
    st.tuples(st.lists(line, max_size=12), st.booleans(), st.sampled_from(["", ".gz", ".zst"])),
    min_size=1,
    max_size=4,
)


def write_source(path: Path, content: bytes) -> None:
    if path.suffix == ".gz":
        content = gzip.compress(content, mtime=0)
    elif path.suffix == ".zst":
        content = zstandard.ZstdCompressor().compress(content)
    path.write_bytes(content)


def expected_of(name: str, lines: list[bytes]) -> tuple[list[tuple[str, DocumentSource]], list[str]]:
    """Texts with their sources, and ``file:line: reason`` of the bad records."""
    texts, bad = [], []
    for number, content in enumerate(lines, 1):
        if not content.strip():
            continue
        if content in BAD:
            bad.append(f"{name}:{number}: {BAD[content]}")
            continue
        record = json.loads(content)
        meta = record.get("meta")
        url = record.get("url")
        if url is None and isinstance(meta, dict):
            url = meta.get("url")
        if record["text"]:
            texts.append((record["text"], DocumentSource(name, number, url if isinstance(url, str) else "")))
    return texts, bad


@settings(max_examples=60)
@given(content=files, part_bytes=st.sampled_from([15, 40, 150, 10**6]), byte_order_mark=st.booleans())
def test_any_cut_gives_what_stands_in_the_lines(
    small_tokenizer: Tokenizer, tmp_path_factory, content, part_bytes, byte_order_mark
) -> None:
    folder = tmp_path_factory.mktemp("in")
    texts, bad = [], []
    for number, (lines, ends_with_newline, packing) in enumerate(content):
        path = folder / f"{number}.jsonl{packing}"
        joined = b"\n".join(lines) + (b"\n" if ends_with_newline else b"")
        write_source(path, (b"\xef\xbb\xbf" if byte_order_mark else b"") + joined)
        found = expected_of(str(path), lines)
        texts += found[0]
        bad += found[1]
    prefix = folder.parent / f"{folder.name}-out" / "data"

    def build() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "fsync", lambda descriptor: None)  # most of the time of such small parts
            build_tokens([folder], prefix, small_tokenizer, workers=0, bad_records=ANY, part_bytes=part_bytes)

    if not texts:
        with pytest.raises(DataError, match="no text under the key"):
            build()
        return
    build()
    data = IndexedDataset(prefix.with_name("data_text_document"))
    end = small_tokenizer.end_of_document_id
    assert [data.sequence(n).tolist() for n in range(data.num_sequences)] == [
        [*small_tokenizer.encode(text), end] for text, _ in texts
    ]
    sources = DocumentSources(data.prefix)
    assert [sources[n] for n in range(len(sources))] == [origin for _, origin in texts]
    shown = [offender.split(" (")[0] for offender in counts(prefix)["bad_records"]["offenders"]]
    assert shown == bad[:20]
    quarantine = prefix.with_name("data_quarantine.jsonl")
    kept = [json.loads(kept) for kept in quarantine.read_bytes().splitlines()] if bad else []
    assert [f"{record['where']}: {record['reason']}" for record in kept] == bad
    assert sorted(path.name for path in prefix.parent.iterdir() if "_parts" in path.name) == []


# Who does the parts


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Files of all kinds, with bad records: about 600 KB."""
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    generator = random.Random(1)
    folder = tmp_path / "in"
    folder.mkdir()

    def record(number: int) -> dict[str, str]:
        return {"text": f"{number} " + "the cat sat " * generator.randrange(60), "url": f"http://{number}"}

    rows = [json.dumps(record(number)).encode() for number in range(800)]
    rows[5] = rows[700] = b"{broken"
    (folder / "a.jsonl").write_bytes(b"\n".join(rows) + b"\n")
    write_source(folder / "b.jsonl.gz", b"\n".join(json.dumps(record(n)).encode() for n in range(200)))
    cut = gzip.compress(b"\n".join(json.dumps(record(n)).encode() for n in range(200)))
    (folder / "c.jsonl.gz").write_bytes(cut[: len(cut) // 2])
    for number in range(30):
        (folder / f"d{number:02d}.txt").write_text("the mat " * generator.randrange(1, 50))
    (folder / "e.txt").write_bytes(b"nul \0 byte")
    table = pyarrow.table(
        {"url": [f"http://{n}" for n in range(300)], "text": [f"{n} the dog" * (n % 50) for n in range(300)]}
    )
    parquet.write_table(table, folder / "f.parquet", row_group_size=40)
    return folder


@pytest.fixture
def in_one(corpus: Path, small_tokenizer: Tokenizer, tmp_path: Path) -> dict[str, bytes]:
    """The dataset of ``corpus``, built in one part by one process."""
    prefix = tmp_path / "one" / "data"
    build_tokens([corpus], prefix, small_tokenizer, workers=0, bad_records=ANY)
    return artefacts(prefix)


@pytest.mark.parametrize("part_bytes", [1 << 12, 1 << 16, 1 << 26])
@pytest.mark.parametrize("workers", [0, 1, 3])
def test_any_number_of_workers_gives_the_same_bytes(
    corpus: Path,
    in_one: dict[str, bytes],
    small_tokenizer: Tokenizer,
    tmp_path: Path,
    workers: int,
    part_bytes: int,
) -> None:
    prefix = tmp_path / "out" / "data"
    build_tokens([corpus], prefix, small_tokenizer, workers=workers, bad_records=ANY, part_bytes=part_bytes)
    assert artefacts(prefix) == in_one
    assert counts(prefix) == counts(tmp_path / "one" / "data")
    quarantines = [path / "data_quarantine.jsonl" for path in (tmp_path / "one", tmp_path / "out")]
    assert quarantines[0].read_bytes() == quarantines[1].read_bytes()


def test_ranks_do_their_parts_and_a_run_without_rank_joins(
    corpus: Path, in_one: dict[str, bytes], small_tokenizer: Tokenizer, tmp_path: Path
) -> None:
    prefix = tmp_path / "out" / "data"
    common: dict[str, Any] = {"bad_records": ANY, "part_bytes": 1 << 14}
    total = len(cut_into_parts(find_source_files([corpus]), 1 << 14))
    left = total
    for rank in (2, 0):
        report = build_rank([corpus], prefix, small_tokenizer, rank=rank, world_size=3, workers=0, **common)
        left -= report.done
        assert (report.left, report.total) == (left, total)
        assert report.done == len(range(rank, total, 3))
    again = build_rank([corpus], prefix, small_tokenizer, rank=0, world_size=3, workers=0, **common)
    assert (again.done, again.left) == (0, left)
    assert not bin_path(prefix.with_name("data_text_document")).exists()
    build_tokens([corpus], prefix, small_tokenizer, workers=0, **common)
    assert artefacts(prefix) == in_one
    report = build_rank([corpus], prefix, small_tokenizer, rank=1, world_size=3, workers=0, **common)
    assert (report.done, report.left) == (0, 0)


@pytest.mark.slow
def test_ray_gives_the_same_bytes(
    corpus: Path, in_one: dict[str, bytes], small_tokenizer: Tokenizer, tmp_path: Path
) -> None:
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'groundup[ray]'")
    small_tokenizer.save(tmp_path / "tokenizer")
    # A real cluster of one machine, in a process of its own; relative paths, as a user types them.
    code = (
        "from pathlib import Path\n"
        "from groundup.core.executor.tasks import RayRunner\n"
        "from groundup.corpus.bad_records import BadRecordPolicy\n"
        "from groundup.tokens.tokenize import build_tokens\n"
        "from groundup.tokens.tokenizer.load_tokenizer import load_tokenizer\n"
        "if __name__ == '__main__':\n"
        "    build_tokens([Path('in')], Path('ray/data'), load_tokenizer(Path('tokenizer')),\n"
        "        bad_records=BadRecordPolicy(action='quarantine', max_bad=1.0), part_bytes=1 << 15,\n"
        "        ray=RayRunner(workers=2))\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, timeout=200)
    found = artefacts(tmp_path / "ray" / "data")
    assert (found[".bin"], found[".idx"]) == (in_one[".bin"], in_one[".idx"])
    prefix = tmp_path / "ray" / "data_text_document"
    assert DocumentSources(prefix)[3].source == "in/a.jsonl"


# Kills


BUILD = """
import sys
from pathlib import Path
from groundup.core import log
from groundup.corpus.bad_records import BadRecordPolicy
from groundup.tokens.tokenize import build_tokens
from groundup.tokens.tokenizer.load_tokenizer import load_tokenizer
log.set_up()
policy = BadRecordPolicy(action="quarantine", max_bad=1.0)
build_tokens([Path(sys.argv[1])], Path(sys.argv[2]), load_tokenizer(Path(sys.argv[3])),
             workers=int(sys.argv[4]), bad_records=policy, part_bytes=1 << 13)
"""


def finished(parts: Path) -> dict[str, int]:
    """When each part was finished, of those that have not been joined and removed meanwhile."""
    try:
        return {path.name: path.stat().st_mtime_ns for path in parts.glob("*.done.json")}
    except FileNotFoundError:  # they are just being removed
        return {}


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_a_killed_build_goes_on_where_it_was(
    corpus: Path, in_one: dict[str, bytes], small_tokenizer: Tokenizer, tmp_path: Path, workers: int
) -> None:
    small_tokenizer.save(tmp_path / "tokenizer")
    prefix = tmp_path / "out" / "data"
    parts = tmp_path / "out" / "data_parts"
    total = len(cut_into_parts(find_source_files([corpus]), 1 << 13))
    command = [
        python(),
        "-c",
        BUILD,
        str(corpus),
        str(prefix),
        str(tmp_path / "tokenizer"),
        str(workers),
    ]
    generator = random.Random(os.urandom(8))
    kills = 0
    for _ in range(40):
        before = finished(parts)
        with subprocess.Popen(command, stderr=subprocess.PIPE) as build:
            want = len(before) + generator.randrange(1, 12)
            # A random moment after some more parts are done: the joining and the end are moments too.
            while build.poll() is None and len(finished(parts)) < min(want, total):
                time.sleep(0.001)
            time.sleep(generator.random() * 0.02)
            build.kill()
            assert build.stderr
            said = build.stderr.read().decode()
        if build.returncode == 0:
            break
        kills += 1
        after = finished(parts)
        removing = list(prefix.parent.glob("*_document.json"))  # the end is written: the parts are going
        again = [name for name in before if name in after and after[name] != before[name]]
        assert not again, "a finished part was done again"
        assert removing or before.keys() <= after.keys()
        if before and f"{len(before)} of {total} parts are done already" not in said:
            assert "parts are done" not in said  # killed before it could say so
    subprocess.run(command, check=True)
    assert kills >= 3
    assert artefacts(prefix) == in_one
    assert not parts.exists()
    assert not list(prefix.parent.glob(".*"))


@pytest.mark.parametrize("part_bytes", [1 << 12, 1 << 26])
def test_ctrl_c_ends_all_and_the_next_run_continues(
    corpus: Path, in_one: dict[str, bytes], small_tokenizer: Tokenizer, tmp_path: Path, part_bytes: int
) -> None:
    small_tokenizer.save(tmp_path / "tokenizer")
    prefix = tmp_path / "out" / "data"
    code = BUILD.replace("1 << 13", str(part_bytes)).replace(
        "log.set_up()",
        "log.set_up()\n"
        "import time, groundup.tokens.tokenize.part_writer as files\n"
        "plain = files.PartWriter.flush\n"
        "files.PartWriter.flush = lambda *arguments: (plain(*arguments), time.sleep(600))[0]\n",
    )
    command = [python(), "-c", code, str(corpus), str(prefix), str(tmp_path / "tokenizer"), "2"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, start_new_session=True) as build:
        while not any("part-" in path.name for path in prefix.parent.glob("data_parts/*")):
            assert build.poll() is None, build.stderr.read().decode()
            time.sleep(0.01)
        os.killpg(build.pid, signal.SIGINT)
        build.communicate()  # returns only when no process holds the pipe
    assert build.returncode != 0
    assert not bin_path(prefix.with_name("data_text_document")).exists()
    build_tokens([corpus], prefix, small_tokenizer, workers=2, bad_records=ANY, part_bytes=part_bytes)
    assert artefacts(prefix) == in_one


def test_parts_of_other_settings_or_input_are_done_again(
    corpus: Path, in_one: dict[str, bytes], small_tokenizer: Tokenizer, tmp_path: Path
) -> None:
    prefix = tmp_path / "out" / "data"
    common: dict[str, Any] = {"workers": 0, "bad_records": ANY, "part_bytes": 1 << 14}

    def rank(**settings: Any) -> int:
        return build_rank(
            [corpus], prefix, small_tokenizer, rank=0, world_size=1, **{**common, **settings}
        ).done

    total = rank()
    assert rank() == 0
    assert rank(append_end_of_document=False) == total
    assert rank() == total
    assert rank(bad_records=BadRecordPolicy(action="quarantine", max_bad=0.5)) == 0  # the same pieces
    (corpus / "d03.txt").write_text("changed")
    assert rank() == 1
    build_tokens([corpus], prefix, small_tokenizer, **common)
    assert artefacts(prefix) != in_one


# Bad input and bad luck


def test_the_policy_judges_the_whole_build(corpus: Path, small_tokenizer: Tokenizer, tmp_path: Path) -> None:
    for workers, part_bytes in ((0, 1 << 26), (2, 1 << 12)):
        with pytest.raises(DataError, match=r"4 of 1,.* records are bad .* more than max_bad"):
            build_tokens(
                [corpus],
                tmp_path / "skip" / "data",
                small_tokenizer,
                workers=workers,
                part_bytes=part_bytes,
                bad_records=BadRecordPolicy(action="skip"),
            )
        with pytest.raises(DataError, match=r"a\.jsonl:(6|701): bad record: not JSON"):
            build_tokens(
                [corpus / "a.jsonl"],
                tmp_path / "fail" / "data",
                small_tokenizer,
                workers=workers,
                part_bytes=part_bytes,
                bad_records=BadRecordPolicy(action="fail"),
            )
    # More is accepted: the parts that were done count.
    report = build_rank(
        [corpus], tmp_path / "skip" / "data", small_tokenizer, rank=0, world_size=1, workers=0,
        part_bytes=1 << 12, bad_records=BadRecordPolicy(action="skip", max_bad=0.5),
    )  # fmt: skip
    assert report.done == 0


def test_many_bad_records_stop_a_build_early(small_tokenizer: Tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes((b'{"text": "a"}\n' * 40 + b"{broken\n") * 100_000)
    with pytest.raises(DataError, match=rf"{path}:41: not JSON") as raised:
        build_tokens([path], tmp_path / "out", small_tokenizer, workers=0)
    read = int(str(raised.value).split(" of ")[1].split(" ")[0].replace(",", ""))
    assert read < 1_000_000


def test_a_tokenizer_that_fails_on_a_text_makes_it_a_bad_record(
    small_tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in ("a", "explode", "b")))
    plain = type(small_tokenizer).encode_array

    def encode(self: Any, text: str) -> Any:
        if text == "explode":
            raise RuntimeError("too deep")
        return plain(self, text)

    monkeypatch.setattr(type(small_tokenizer), "encode_array", encode)
    report = build_tokens([path], tmp_path / "out", small_tokenizer, workers=0)
    assert report.counts["text"].documents == 2
    assert list(report.counts["text"].bad_records.offenders) == [
        f"{path}:2: tokenizer failed (RuntimeError: too deep)"
    ]


def test_a_full_disk_loses_only_what_is_unfinished(
    corpus: Path, in_one: dict[str, bytes], small_tokenizer: Tokenizer, tmp_path: Path, monkeypatch
) -> None:
    prefix = tmp_path / "out" / "data"
    common: dict[str, Any] = {"workers": 0, "bad_records": ANY, "part_bytes": 1 << 14}
    fsync, calls = os.fsync, 0

    def full(descriptor: int) -> None:
        nonlocal calls
        calls += 1
        if calls > 60:
            raise OSError(28, "No space left on device", "somewhere")
        fsync(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(MachineError, match=r"the disk is full.*what is finished is kept"):
            build_tokens([corpus], prefix, small_tokenizer, **common)
    done = len(list((tmp_path / "out" / "data_parts").glob("*.done.json")))
    assert done > 2
    report = build_rank([corpus], prefix, small_tokenizer, rank=0, world_size=1, **common)
    assert report.done == report.total - done
    build_tokens([corpus], prefix, small_tokenizer, **common)
    assert artefacts(prefix) == in_one


def test_space_is_asked_for_before_the_work_and_before_the_join(
    corpus: Path, small_tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import shutil

    free = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: free)
    with pytest.raises(MachineError, match="by estimate"):
        build_tokens([corpus], tmp_path / "out", small_tokenizer, workers=0, bad_records=ANY)
    monkeypatch.undo()
    prefix = tmp_path / "out"
    settings: dict[str, Any] = {"workers": 0, "bad_records": ANY, "part_bytes": 1 << 14}
    build_rank([corpus], prefix, small_tokenizer, rank=0, world_size=1, **settings)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: free)
    with pytest.raises(MachineError, match="joining the parts needs"):
        build_tokens([corpus], prefix, small_tokenizer, **settings)


def test_a_file_that_changes_while_it_is_read_is_refused(
    corpus: Path, small_tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = part_writer.PartWriter.flush

    def flush(self: Any) -> Any:
        with (corpus / "a.jsonl").open("a") as file:
            file.write('{"text": "more"}\n')
        return plain(self)

    monkeypatch.setattr(part_writer.PartWriter, "flush", flush)
    with pytest.raises(DataError, match=r"a\.jsonl: was changed while it was read"):
        build_tokens([corpus], tmp_path / "out", small_tokenizer, workers=0, bad_records=ANY)
    assert not list((tmp_path / "out_parts").glob("part-*"))
    assert not list((tmp_path / "out_parts").glob(".part-*"))


def test_files_of_others_in_the_folder_of_parts_are_left(
    corpus: Path, small_tokenizer: Tokenizer, tmp_path: Path
) -> None:
    (tmp_path / "out_parts").mkdir()
    (tmp_path / "out_parts" / "notes.txt").write_text("mine")
    build_tokens([corpus], tmp_path / "out", small_tokenizer, workers=0, bad_records=ANY)
    assert [path.name for path in (tmp_path / "out_parts").iterdir()] == ["notes.txt"]


def test_a_long_line_and_a_line_too_long(
    small_tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("groundup.corpus.line_blocks.MAX_RECORD_BYTES", 3 << 20)
    path = tmp_path / "in.jsonl"
    texts = ["a", "cat " * 700_000, "b", "dog " * 1_000_000, "c"]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    for part_bytes in (1 << 20, 1 << 26):
        prefix = tmp_path / str(part_bytes)
        build_tokens([path], prefix, small_tokenizer, workers=0, bad_records=ANY, part_bytes=part_bytes)
        assert counts(prefix)["bad_records"]["by_reason"] == {"too long": 1}
        assert counts(prefix)["bad_records"]["offenders"][0].startswith(f"{path}:4: too long")
        sources = DocumentSources(prefix.with_name(f"{prefix.name}_text_document"))
        assert [sources[n].line for n in range(4)] == [1, 2, 3, 5]


# Parquet


def test_parquet_is_read_by_columns_with_its_bad_rows_named(
    small_tokenizer: Tokenizer, tmp_path: Path
) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "in.parquet"
    spoiled = pyarrow.array([b"the", b"\xff", None, b"cat", b""]).cast(pyarrow.binary())
    spoiled = pyarrow.Array.from_buffers(pyarrow.string(), 5, spoiled.buffers(), null_count=1)
    table = pyarrow.table(
        {
            "body": spoiled,
            "title": pyarrow.array(["a", "b", "c", "d", "e"]).dictionary_encode(),
            "meta": [{"url": f"http://{n}", "k": n} for n in range(5)],
            "number": list(range(5)),
        }
    )
    parquet.write_table(table, path, row_group_size=2)
    report = build_tokens(
        [path], tmp_path / "out", small_tokenizer, keys=["body", "title"], workers=0, bad_records=ANY,
        part_bytes=1,
    )  # fmt: skip
    assert report.counts["title"].documents == 3
    assert report.counts["body"].empty_documents == 1
    assert list(report.counts["body"].bad_records.offenders) == [
        f"{path}:2: not UTF-8 (invalid start byte at byte 0)",
        f"{path}:3: text is not a string ('body' is null)",
    ]
    sources = DocumentSources(report.prefixes["body"])
    assert [sources[n] for n in range(2)] == [
        DocumentSource(str(path), 1, "http://0"),
        DocumentSource(str(path), 4, "http://3"),
    ]
    with pytest.raises(DataError, match="no column 'txt'; the columns are: body, title, meta, number"):
        build_tokens([path], tmp_path / "no", small_tokenizer, keys=["txt"], workers=0)
    with pytest.raises(DataError, match="'number' is of type int"):
        build_tokens([path], tmp_path / "no", small_tokenizer, keys=["number"], workers=0)


def test_a_damaged_parquet_file_is_a_bad_record(small_tokenizer: Tokenizer, tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    folder = tmp_path / "in"
    folder.mkdir()
    for name in "ab":
        texts = ["".join(random.choices("abcdefg ", k=50)) for _ in range(2000)]
        parquet.write_table(pyarrow.table({"text": texts}), folder / f"{name}.parquet", row_group_size=500)
    whole = (folder / "b.parquet").read_bytes()
    (folder / "b.parquet").write_bytes(whole[:-20])
    for part_bytes in (1, 1 << 26):
        prefix = tmp_path / str(part_bytes)
        build_tokens([folder], prefix, small_tokenizer, workers=0, bad_records=ANY, part_bytes=part_bytes)
        assert counts(prefix)["documents"] == 2000
        assert counts(prefix)["bad_records"]["by_reason"] == {"damaged file": 1}


def test_parquet_documents_are_read_like_lines(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    import datetime

    from groundup.corpus.bad_records import BadRecords
    from groundup.corpus.document import Document, to_json_line
    from groundup.corpus.read_documents import read_documents

    path = tmp_path / "in" / "a.parquet"
    path.parent.mkdir()
    day = datetime.date(2020, 1, 2)
    table = pyarrow.table(
        {
            "id": ["x", None],
            "url": ["http://a", None],
            "text": ["one", "two"],
            "meta": [{"score": 1.5}, None],
            "day": [day, day],
            "raw": [b"\xff", b"ok"],
        }
    )
    parquet.write_table(table, path)
    with BadRecords(BadRecordPolicy()) as bad:
        documents = list(read_documents([path.parent], bad_records=bad))
    rest = {"day": "2020-01-02", "origin": f"{path}:1", "raw": "/w=="}
    assert documents[0] == Document("x", "http://a", "one", {"score": 1.5, **rest})
    assert (documents[1].id, documents[1].url, documents[1].text) == ("a.parquet:2", "", "two")
    assert all(to_json_line(document) for document in documents)


# Memory

MEASURE = """
import resource, sys
from pathlib import Path
from groundup.tokens.tokenize import build_tokens
from groundup.tokens.tokenizer.load_tokenizer import load_tokenizer
source, prefix, tokenizer = map(Path, sys.argv[1:4])
build_tokens([source], prefix, load_tokenizer(tokenizer), workers=int(sys.argv[4]))
# Not RUSAGE_SELF: that begins at what the process that started this one had.
status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
peaks = [int(status["VmHWM"].split()[0]), resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss]
print(*(peak * 1024 for peak in peaks))
"""


@pytest.mark.slow
@pytest.mark.parametrize(  # many parts, each worker its own; and one, shared
    ("packing", "number"),
    [
        pytest.param("", 700_000, marks=pytest.mark.exhaustive),
        pytest.param(".gz", 700_000, marks=pytest.mark.exhaustive),
        (".gz", 200_000),
    ],
)
def test_memory_does_not_grow_with_the_input(
    small_tokenizer: Tokenizer, tmp_path: Path, packing: str, number: int
) -> None:
    small_tokenizer.save(tmp_path / "tokenizer")
    peaks = []
    for scale in (1, 4):
        path = tmp_path / f"{scale}.jsonl{packing}"
        with gzip.GzipFile(path, "wb", compresslevel=1) if packing else path.open("wb") as file:
            for begin in range(0, number * scale, 1000):
                for_these = range(begin, begin + 1000)
                file.write(b"".join(b'{"text":"cat %d","url":"http://a/%d"}\n' % (n, n) for n in for_these))
        command = [sys.executable, "-c", MEASURE, str(path), str(tmp_path / f"out{scale}")]
        done = subprocess.run(
            [*command, str(tmp_path / "tokenizer"), "1"], capture_output=True, check=True, timeout=250
        )
        peaks.append(np.array(done.stdout.split(), dtype=np.int64))
        data = IndexedDataset(tmp_path / f"out{scale}_text_document")
        assert data.num_sequences == number * scale
    assert (peaks[1] < 1.1 * peaks[0]).all(), peaks
    assert peaks[1][0] < 1e9
    assert peaks[1][1] < 200e6
