"""``groundup tokens inspect``, ``verify`` and ``merge`` as a user types them."""

import shutil
import signal
import subprocess
import sys

import pytest

from groundup.__main__ import main
from groundup.tokens.dataset.dataset_manifest import describe_dataset
from groundup.tokens.dataset.indexed import bin_path
from tests.unit.tokens.token_files import write_indexed, write_llmc, write_npy


@pytest.fixture
def run(monkeypatch, capsys):
    """Runs a command line; returns its standard output and, where it is refused, the last error line."""

    def run_it(*words):
        monkeypatch.setattr(sys, "argv", ["groundup", "tokens", *map(str, words)])
        try:
            main()
        except SystemExit as stop:
            if stop.code:
                err = capsys.readouterr().err
                assert "Traceback" not in err
                return err.strip().splitlines()[-1]
        return capsys.readouterr().out

    return run_it


@pytest.fixture
def tokenizer_dir(small_tokenizer, tmp_path):
    small_tokenizer.save(tmp_path / "tokenizer")
    return tmp_path / "tokenizer"


def _write(prefix, texts, tokenizer):
    documents = [[[*tokenizer.encode(text), tokenizer.end_of_document_id]] for text in texts]
    return write_indexed(prefix, documents)


def test_inspects_megatrons_files(run, megatron, shared_data):
    prefix = megatron / "indexed" / "wt2_200_text_document"
    bare = run("inspect", f"{prefix}.bin", "--documents", 1, "--characters", 12)
    assert bare.splitlines()[:4] == [
        "documents             200",
        "tokens                36,449",
        "dtype                 uint16",
        "tokens in a document  least, 25%, median, 75%, 99%, most: 6 67 156 259 559 629",
    ]
    gpt2 = shared_data / "gpt2"
    files = ("--vocab-file", gpt2 / "vocab.json", "--merge-file", gpt2 / "merges.txt")
    named = run("inspect", prefix, *files, "--documents", 1, "--characters", 12)
    assert "50,257 ids" in named
    text = named.split("[0] ")[1].split("\n")[1]
    assert text.endswith(" ...")
    assert len(text) == 16
    assert not set(text) <= set("0123456789 .")
    assert run("verify", prefix) == (
        f"{prefix}: structure is right; unchecked: ids (name the --tokenizer), checksums (no manifest records"
        " them)\n"
    )
    checked = run("verify", prefix, "--tokenizer", gpt2)
    assert checked == (
        f"{prefix}: structure and ids are right; unchecked: checksums (no manifest records them)\n"
    )


def test_inspects_shards(run, tmp_path, small_tokenizer, tokenizer_dir):
    end = small_tokenizer.end_of_document_id
    stream = [end, *small_tokenizer.encode("the cat"), end, *small_tokenizer.encode("sat on the mat")]
    (tmp_path / "shards").mkdir()
    write_llmc(tmp_path / "shards" / "a_train_0.bin", stream[:5])
    write_llmc(tmp_path / "shards" / "a_train_1.bin", stream[5:])
    bare = run("inspect", tmp_path / "shards")
    assert "shards     2\ndocuments  unknown: --tokenizer or --end-of-document-id" in bare
    assert f"[all] {len(stream)} tokens\n{end} " in bare
    named = run("inspect", tmp_path / "shards", "--tokenizer", tokenizer_dir)
    assert "documents             2\n" in named
    assert named.endswith("tokens\n<|endoftext|>sat on the mat\n")
    by_number = run("inspect", tmp_path / "shards", "--end-of-document-id", end)
    assert "documents             2\n" in by_number
    right = "structure and ids are right; unchecked: checksums (no manifest records them)"
    said = run("verify", tmp_path / "shards", "--tokenizer", tokenizer_dir)
    assert said == f"{tmp_path / 'shards'}: {right}\n"
    write_llmc(tmp_path / "shards" / "a_train_1.bin", [*stream[5:], 291])
    assert "token 291 at position" in run("verify", tmp_path / "shards", "--tokenizer", tokenizer_dir)


def test_merges_and_verifies(run, tmp_path, small_tokenizer):
    (tmp_path / "parts").mkdir()
    for name in ("one", "two"):
        prefix = _write(tmp_path / "parts" / name, ["the cat", "the dog", "the mat"], small_tokenizer)
        describe_dataset(prefix, small_tokenizer, inputs={}, counts={"text_bytes": 21})
    both = tmp_path / "both"
    shown = run("merge", tmp_path / "parts", "--prefix", both)
    assert shown.startswith(f"{both}\n  6 documents, ")
    assert shown.endswith("tokens, merged files: 2\n")
    assert run("verify", both) == f"{both}: structure, ids and checksums are right\n"
    assert run("verify", tmp_path / "parts") == (
        f"{tmp_path / 'parts'}: structure, ids and checksums are right\n"
    )
    inspected = run("inspect", tmp_path / "parts", "--documents", 0)
    assert "shards                2\ndocuments             6\n" in inspected
    assert "bytes per token" in inspected


def test_verify_finds_damage(run, tmp_path, small_tokenizer, tokenizer_dir):
    prefix = _write(tmp_path / "data", ["the cat", "the dog"], small_tokenizer)
    describe_dataset(prefix, small_tokenizer, inputs={})
    whole = bin_path(prefix).read_bytes()
    bin_path(prefix).write_bytes(whole[:-2])
    assert f"holds {len(whole) - 2} bytes, its index data.idx says {len(whole)}" in run("verify", prefix)
    bin_path(prefix).write_bytes(b"\0\0" + whole[2:])
    assert "data.bin does not match its checksum" in run("verify", prefix)
    bin_path(prefix).write_bytes(whole[:-2] + b"\xff\xff")
    message = run("verify", prefix)
    assert "token 65535 at position" in message
    assert "of document 1 is outside the vocabulary of 291 ids" in message
    bin_path(prefix).write_bytes(whole)
    shutil.rmtree(tmp_path / "data_tokenizer")
    assert "data_tokenizer" in run("inspect", prefix)
    assert run("verify", prefix, "--tokenizer", tokenizer_dir).endswith("checksums are right\n")


def test_converts_shards(run, tmp_path, tokenizer_dir, small_tokenizer):
    write_npy(tmp_path / "a.npy", [small_tokenizer.end_of_document_id, 1, 2])
    assert "Give --tokenizer, or --end-of-document-id" in run(
        "merge", tmp_path / "a.npy", "--prefix", tmp_path / "out"
    )
    assert run("merge", tmp_path / "a.npy", "--prefix", tmp_path / "out", "--tokenizer", tokenizer_dir) == (
        f"{tmp_path / 'out'}\n  1 documents, 3 tokens, merged files: 1\n"
    )
    assert run("verify", tmp_path / "out") == f"{tmp_path / 'out'}: structure, ids and checksums are right\n"


def test_a_text_is_refused(run, tmp_path):
    (tmp_path / "corpus.jsonl").write_text('{"text": "the cat"}\n')
    for words in (("inspect",), ("verify",), ("merge", "--prefix", tmp_path / "out")):
        assert "is not a file of tokens. Turn text into tokens with `groundup tokens build`." in run(
            words[0], tmp_path / "corpus.jsonl", *words[1:]
        )


def test_a_second_run_says_so(run, tmp_path, small_tokenizer):
    prefix = _write(tmp_path / "one", ["the cat", "the dog"], small_tokenizer)
    describe_dataset(prefix, small_tokenizer, inputs={})
    merge = ("merge", prefix, "--prefix", tmp_path / "out")
    assert "was there already" not in run(*merge)
    assert run(*merge).startswith(f"{tmp_path / 'out'} (was there already)\n  2 documents")


def test_megatrons_flag_for_sentencepiece(run, tmp_path, monkeypatch, small_tokenizer):
    asked = []

    def load(path):
        asked.append(path)
        return small_tokenizer

    monkeypatch.setattr("groundup.tokens.tokenizer.load_tokenizer.load_tokenizer", load)
    prefix = _write(tmp_path / "one", ["the cat"], small_tokenizer)
    flag = ("--tokenizer-model", tmp_path / "tokenizer.model")
    assert "the cat" in run("inspect", prefix, *flag)
    assert "structure and ids are right" in run("verify", prefix, *flag)
    assert "1 documents" in run("merge", prefix, "--prefix", tmp_path / "out", *flag)
    assert asked == [tmp_path / "tokenizer.model"] * 3


def test_ctrl_c_is_one_line(tmp_path):
    """At a moment that does not depend on the machine's speed: while the copy of the tokens waits."""
    prefix = write_indexed(tmp_path / "one", [[[1, 2]]])
    script = """
import sys, time
from groundup.__main__ import main
from groundup.tokens.dataset import indexed_writer
def wait(*_):
    print("copying", flush=True)
    time.sleep(60)
indexed_writer.append_range = wait
sys.argv[0] = "groundup"
main()
"""
    command = [sys.executable, "-c", script, "tokens", "merge", prefix, "--prefix", tmp_path / "out"]
    for flags in ((), ("--debug",)):
        process = subprocess.Popen(
            [*map(str, command), *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert process.stdout.readline() == "copying\n"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        said = "groundup: interrupted; the same command continues or begins again"
        assert (said in err.splitlines()) is not bool(flags)
        assert ("Traceback" in err) is bool(flags)
        assert process.returncode == (-signal.SIGINT if flags else 130)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.bin", "one.idx"]
