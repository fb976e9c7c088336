import gzip
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from groundup.core.errors import ConfigError, DataError, MachineError
from groundup.core.executor.run import run_tasks
from groundup.core.executor.tasks import Markers, ProcessRunner, Task
from groundup.corpus.bad_records import BadRecordPolicy
from groundup.corpus.source_ranges import cut_into_parts
from groundup.corpus.sources import find_source_files
from groundup.tokens.dataset.dataset_manifest import manifest_path, tokenizer_of
from groundup.tokens.dataset.indexed import IndexedDataset, bin_path, idx_path
from groundup.tokens.tokenize import build_tokens
from groundup.tokens.tokenize.tokenize_part import TokenizePart
from groundup.tokens.tokenizer.base import Tokenizer
from groundup.tokens.tokenizer.train_bpe import train_tokenizer

LINES = [
    {"text": "the cat", "title": "one"},
    {"text": "", "title": "two"},
    {"text": " ", "title": "three"},
    {"text": "<|endoftext|>", "title": ""},
]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_text("\n".join(map(json.dumps, LINES)) + "\n")
    return path


def _documents(prefix: Path) -> list[list[int]]:
    data = IndexedDataset(prefix)
    return [data.sequence(index).tolist() for index in range(data.num_sequences)]


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_equals_megatrons_preprocess_data(
    gpt2: Tokenizer, megatron: Path, tmp_path: Path, workers: int
) -> None:
    source = megatron / "indexed" / "wt2_200.jsonl"
    report = build_tokens([source], tmp_path / "wt2", gpt2, workers=workers)
    ours, theirs = report.prefixes["text"], megatron / "indexed" / "wt2_200_text_document"
    assert bin_path(ours).read_bytes() == bin_path(theirs).read_bytes()
    assert idx_path(ours).read_bytes() == idx_path(theirs).read_bytes()


def test_empty_documents_are_left_out_and_specials_are_text(
    source: Path, small_tokenizer: Tokenizer, tmp_path: Path
) -> None:
    report = build_tokens([source], tmp_path / "out", small_tokenizer, keys=["text", "title"], workers=0)
    end = small_tokenizer.end_of_document_id
    expected = [[*small_tokenizer.encode(text), end] for text in ("the cat", " ", "<|endoftext|>")]
    assert _documents(report.prefixes["text"]) == expected
    assert report.counts["text"].empty_documents == 1
    assert report.counts["text"].text_bytes == len("the cat <|endoftext|>")
    titles = [[*small_tokenizer.encode(text), end] for text in ("one", "two", "three")]
    assert _documents(report.prefixes["title"]) == titles


def test_without_end_of_document(source: Path, small_tokenizer: Tokenizer, tmp_path: Path) -> None:
    report = build_tokens(
        [source], tmp_path / "out", small_tokenizer, append_end_of_document=False, workers=0
    )
    assert _documents(report.prefixes["text"])[0] == small_tokenizer.encode("the cat")


def test_workers_keep_the_order(small_tokenizer: Tokenizer, tmp_path: Path) -> None:
    texts = [f"{number} " + "the cat sat " * (number * 37 % 900) for number in range(600)]
    path = tmp_path / "in.jsonl.gz"
    with gzip.open(path, "wt") as file:
        file.writelines(json.dumps({"text": text}) + "\n" for text in texts)
    contents = []
    for workers in (0, 3):
        report = build_tokens([path], tmp_path / f"w{workers}", small_tokenizer, workers=workers)
        contents.append(
            (bin_path(report.prefixes["text"]).read_bytes(), idx_path(report.prefixes["text"]).read_bytes())
        )
    assert contents[0] == contents[1]


def test_text_files_are_documents(small_tokenizer: Tokenizer, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "b.py").write_text("print()\n")
    (folder / "a.txt").write_text("the mat")
    report = build_tokens([folder], tmp_path / "out", small_tokenizer, workers=0)
    decoded = [small_tokenizer.decode(ids[:-1]) for ids in _documents(report.prefixes["text"])]
    assert decoded == ["the mat", "print()\n"]
    with pytest.raises(ConfigError, match="a text file or page has no keys"):
        build_tokens([folder], tmp_path / "two", small_tokenizer, keys=["a", "b"], workers=0)


def test_a_rerun_does_nothing_until_something_changes(
    texts: list[str], source: Path, small_tokenizer: Tokenizer, tmp_path: Path
) -> None:
    def build(tokenizer: Tokenizer = small_tokenizer, **settings: bool) -> bool:
        return build_tokens([source], tmp_path / "out", tokenizer, workers=0, **settings).reused  # type: ignore[arg-type]

    assert [build(), build()] == [False, True]
    assert [build(append_end_of_document=False), build(append_end_of_document=False)] == [False, True]
    assert [build(), build(train_tokenizer(texts, vocab_size=280))] == [False, False]
    source.write_text(json.dumps(LINES[0]) + "\n")
    assert [build(), build()] == [False, True]
    bin_path(tmp_path / "out_text_document").unlink()
    assert not build()


def test_the_tokenizer_is_found_again_or_refused(
    texts: list[str], source: Path, small_tokenizer: Tokenizer, tmp_path: Path
) -> None:
    prefix = build_tokens([source], tmp_path / "out", small_tokenizer, workers=0).prefixes["text"]
    for path in (prefix, bin_path(prefix)):
        assert tokenizer_of(path).fingerprint == small_tokenizer.fingerprint
    other = train_tokenizer(texts, vocab_size=280)
    other.save(tmp_path / "out_tokenizer")
    with pytest.raises(DataError, match=f"{other.fingerprint}.*{small_tokenizer.fingerprint}"):
        tokenizer_of(prefix)
    manifest_path(prefix).unlink()
    with pytest.raises(DataError, match="no manifest says which tokenizer"):
        tokenizer_of(prefix)


def test_bad_records_are_counted_with_their_line(
    source: Path, small_tokenizer: Tokenizer, tmp_path: Path
) -> None:
    source.write_text(source.read_text() + "{broken\n")
    report = build_tokens([source], tmp_path / "skip", small_tokenizer, workers=0)
    assert report.counts["text"].bad_records.by_reason == {"not JSON": 1}
    assert report.counts["text"].bad_records.offenders[0].startswith(f"{source}:5: not JSON")
    with pytest.raises(DataError, match=r"in\.jsonl:5: bad record: not JSON"):
        build_tokens(
            [source],
            tmp_path / "fail",
            small_tokenizer,
            workers=1,
            bad_records=BadRecordPolicy(action="fail"),
        )
    assert not list(tmp_path.glob("*fail_text*"))


def test_nothing_to_write_is_an_error(small_tokenizer: Tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text('{"text": ""}\n')
    with pytest.raises(DataError, match="no text under the key 'text': 1 records read, 0 bad, 1 empty"):
        build_tokens([path], tmp_path / "out", small_tokenizer, workers=0)
    assert not list(tmp_path.glob("*_document*"))
    for keys in ([], ["a", "a"], ["a/b"]):
        with pytest.raises(ConfigError, match="not a list of different field names"):
            build_tokens([path], tmp_path / "out", small_tokenizer, keys=keys)


class _Deadly:
    """A tokenizer whose process is killed."""

    vocab_size = 2
    end_of_document_id = 1

    def encode_array(self, text: str) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.skipif(sys.platform != "linux", reason="needs fork and SIGKILL")
def test_a_killed_worker_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "groundup.core.executor.local._start_method", lambda: "fork"
    )  # tests are not importable
    (tmp_path / "in.jsonl").write_text('{"text": "a"}\n')
    (part,) = cut_into_parts(find_source_files([tmp_path / "in.jsonl"]), 1 << 20)
    work = TokenizePart(_Deadly(), ("text",), True, "uint16", tmp_path, False)  # type: ignore[arg-type]
    tasks = [Task(name=part.name, fingerprint="", input=part)]
    with pytest.raises(MachineError, match=r"exit code -9 \(SIGKILL\) in part-000000"):
        run_tasks(tasks, work, Markers(tmp_path), ProcessRunner(workers=1), on_report=print)


@pytest.mark.skipif(sys.platform != "linux", reason="needs fork")
def test_forked_workers_write_the_same(small_tokenizer: Tokenizer, tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text("".join(json.dumps({"text": f"the cat {n} " * 3000}) + "\n" for n in range(60)))
    small_tokenizer.save(tmp_path / "tokenizer")
    code = (
        "from pathlib import Path\n"
        "from groundup.core.executor import local\n"
        "from groundup.tokens.tokenize import build_tokens\n"
        "from groundup.tokens.tokenizer.load_tokenizer import load_tokenizer\n"
        "assert local._start_method() == 'fork'\n"
        "build_tokens([Path('in.jsonl')], Path('forked'), load_tokenizer(Path('tokenizer')), workers=3)\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, timeout=60)
    build_tokens([source], tmp_path / "serial", small_tokenizer, workers=0)
    for ending in (".bin", ".idx"):
        forked, serial = (tmp_path / f"{name}_text_document{ending}" for name in ("forked", "serial"))
        assert forked.read_bytes() == serial.read_bytes()
