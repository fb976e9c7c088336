import errno
import io
import json
from pathlib import Path

import pytest

from groundup.cli import tokenizer as verbs
from groundup.cli.app import run
from groundup.cli.corpus import build as build_corpus
from groundup.cli.options import TokenizerOptions
from groundup.cli.tokens import build as build_tokens
from groundup.core.errors import ConfigError, DataError, MachineError
from groundup.tokens.tokenizer.gpt2 import cache_dir
from groundup.tokens.tokenizer.load_tokenizer import load_tokenizer
from groundup.tokens.tokenizer.train_bpe import train_tokenizer

TEXTS = ["the cat sat on the mat, and the dog ate the cat's hat. ", "naïve café — 你好世界\n\n\tdone  "] * 20


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A saved tokenizer and documents, in a working directory without GPT-2's files."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    monkeypatch.chdir(tmp_path)
    train_tokenizer(TEXTS, vocab_size=291).save(tmp_path / "own")
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    return tmp_path


def _run(words: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run(words)
    assert ended.value.code == 0


def _rows(shown: str) -> dict[str, str]:
    return dict(line.split("  ", 1) for line in shown.splitlines())


def test_every_way_to_name_a_tokenizer(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = ["--vocab-file", "own/vocab.json", "--merge-file", "own/merges.txt"]
    shown = set()
    for words in (["own"], ["--tokenizer", "own"], ["own/tokenizer.json"], files):
        _run(["tokenizer", "encode", *words, "the cat"])
        shown.add(capsys.readouterr().out)
    assert len(shown) == 1
    ids = shown.pop()
    _run(["tokenizer", "decode", *files, *ids.split()])
    assert capsys.readouterr().out == "the cat\n"
    monkeypatch.setattr("sys.stdin", io.StringIO(ids))
    verbs.decode("own")
    assert capsys.readouterr().out == "the cat\n"
    _run(["tokenizer", "encode", "bytes", "a b"])
    assert capsys.readouterr().out == "97 32 98\n"
    monkeypatch.setattr("sys.stdin", io.StringIO("a b"))
    verbs.encode(tokenizer=TokenizerOptions(tokenizer_model=Path("own")))
    assert capsys.readouterr().out == " ".join(map(str, load_tokenizer(Path("own")).encode("a b"))) + "\n"


def test_which_tokenizer_must_be_clear(folder: Path) -> None:
    own, file = Path("own"), Path("own/vocab.json")
    with pytest.raises(ConfigError, match="none given"):
        verbs.inspect()
    with pytest.raises(ConfigError, match="--vocab-file given"):
        TokenizerOptions(vocab_file=file).load()
    with pytest.raises(ConfigError, match="--tokenizer and --merge-file given"):
        TokenizerOptions(tokenizer=own, merge_file=file).load()
    with pytest.raises(ConfigError, match="--tokenizer and --tokenizer-model given"):
        TokenizerOptions(tokenizer=own, tokenizer_model=own).load()
    with pytest.raises(DataError, match=r"not a token id \(invalid literal .*'x'\)"):
        verbs.decode("own", "x")
    with pytest.raises(ConfigError, match="--tp"):
        verbs.inspect("own", tp=0)


def test_inspect_shows_what_a_tokenizer_is(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    verbs.inspect("own", tp=4)
    rows = _rows(capsys.readouterr().out)
    assert {name: value.strip() for name, value in rows.items()} == {
        "kind": "byte-level BPE",
        "ids": "291",
        "ids, padded to 128": "384",
        "ids, padded to 128 x 4": "512",
        "special tokens": "290 <|endoftext|>",
        "end of document": "290 <|endoftext|>",
        "fingerprint": load_tokenizer(Path("own")).fingerprint,
        "longest": rows["longest"].strip(),
    }
    assert "' the'" in rows["longest"]


def test_inspect_measures_beside_gpt2(
    folder: Path, capsys: pytest.CaptureFixture[str], shared_data: Path
) -> None:
    verbs.inspect("bytes", "in.jsonl")
    rows = _rows(capsys.readouterr().out)
    assert rows["bytes per token"].strip() == "1.000"
    assert rows["measured on"].strip() == "1.86kB in 40 documents"
    assert rows["with GPT-2's"].strip().startswith("not measured: `groundup tokenizer inspect gpt2`")
    assert rows["same text back"].strip() == "40 of 40 documents"
    cache_dir().mkdir(parents=True)
    for name in ("vocab.json", "merges.txt"):
        (cache_dir() / name).symlink_to(shared_data / "gpt2" / name)
    verbs.inspect("own", "in.jsonl")
    rows = _rows(capsys.readouterr().out)
    own, gpt2 = (load_tokenizer(Path(name)) for name in ("own", "gpt2"))
    num_own, num_gpt2 = (sum(len(x) for x in map(loaded.encode, TEXTS)) for loaded in (own, gpt2))
    num_bytes = sum(len(text.encode()) for text in TEXTS)
    more = (
        f"{num_own / num_gpt2 - 1:.1%} more" if num_own > num_gpt2 else f"{1 - num_own / num_gpt2:.1%} fewer"
    )
    assert rows["with GPT-2's"].strip() == f"{num_bytes / num_gpt2:.3f}: {more} tokens here"
    assert rows["bytes per token"].strip() == f"{num_bytes / num_own:.3f}"
    verbs.inspect("gpt2", "in.jsonl")
    assert "with GPT-2's" not in capsys.readouterr().out


def test_inspect_says_when_nothing_was_measured(folder: Path) -> None:
    with pytest.raises(DataError, match=r"none of 40 records .*no key 'body'.* --key"):
        verbs.inspect("own", "in.jsonl", key="body")


def test_train_with_a_wrong_key_says_which_there_are(folder: Path) -> None:
    with pytest.raises(DataError, match=r"none of 40 records .*the keys are: text.* with --key\.") as raised:
        verbs.train(Path("in.jsonl"), out=Path("new"), key="wrong")
    assert "more text" not in str(raised.value) and "--max-bad" not in str(raised.value)
    Path("empty.jsonl").touch()
    with pytest.raises(DataError, match=r"empty\.jsonl: there is no document in it"):
        verbs.train(Path("empty.jsonl"), out=Path("new"))
    assert not Path("new").exists()


@pytest.mark.parametrize("max_bad", [5, -1, float("nan")])
def test_a_share_of_bad_records_is_between_none_and_all(folder: Path, max_bad: float) -> None:
    with pytest.raises(ConfigError, match="--max-bad"):
        verbs.train(Path("in.jsonl"), out=Path("new"), vocab_size=291, max_bad=max_bad)
    with pytest.raises(ConfigError, match="--max-bad"):
        build_tokens(
            Path("in.jsonl"),
            prefix=Path("new"),
            tokenizer=TokenizerOptions(tokenizer=Path("bytes")),
            max_bad=max_bad,
        )
    with pytest.raises(ConfigError, match="--max-bad"):
        build_corpus(Path("in.jsonl"), out=Path("new"), max_bad=max_bad)


def test_the_key_has_one_name_in_all_verbs(folder: Path) -> None:
    (folder / "two.jsonl").write_text(
        "".join(json.dumps({"title": text, "body": text}) + "\n" for text in TEXTS)
    )
    _run(["corpus", "build", "two.jsonl", "--key", "body", "--out", "corpus"])
    _run(["tokenizer", "train", "--key", "body", "two.jsonl", "--vocab-size", "291", "--out", "new"])
    _run(["tokenizer", "inspect", "new", "two.jsonl", "--key", "body"])
    words = ["--key", "body", "--key", "title", "two.jsonl", "--prefix", "both", "--tokenizer", "new"]
    _run(["tokens", "build", *words, "--workers", "0"])
    assert Path("both_body_document.bin").read_bytes() == Path("both_title_document.bin").read_bytes()


def test_where_a_tokenizer_cannot_be_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"--out in\.jsonl: is a file"):
        verbs.train(Path("in.jsonl"), out=Path("in.jsonl"), vocab_size=291)
    with pytest.raises(MachineError, match=r"cannot write the tokenizer \(Not a directory\).*--out"):
        verbs.train(Path("in.jsonl"), out=Path("in.jsonl/within"), vocab_size=291)

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(MachineError, match=r"the disk is full. Free some space"):
        verbs.train(Path("in.jsonl"), out=Path("new"), vocab_size=291)


def test_a_tokenizer_is_not_replaced_in_silence(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    for vocab_size, is_said in ((291, False), (291, False), (280, True)):
        verbs.train(Path("in.jsonl"), out=Path("own"), vocab_size=vocab_size)
        assert ("own held another tokenizer: it was replaced" in caplog.text) == is_said
