import io
import json
from pathlib import Path

import pytest

from groundup.cli import tokenizer as verbs
from groundup.cli.app import run
from groundup.cli.tokenizer_choice import chosen_tokenizer
from groundup.core.errors import ConfigError, DataError
from groundup.tokens.tokenizers.gpt2_by_name import cache_dir
from groundup.tokens.tokenizers.train_bpe import train_tokenizer

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
    verbs.encode(tokenizer_model=Path("own"))
    assert capsys.readouterr().out == " ".join(map(str, chosen_tokenizer(Path("own")).encode("a b"))) + "\n"


def test_which_tokenizer_must_be_clear(folder: Path) -> None:
    own, file = Path("own"), Path("own/vocab.json")
    with pytest.raises(ConfigError, match="none given"):
        verbs.inspect()
    with pytest.raises(ConfigError, match="--vocab-file given"):
        chosen_tokenizer(None, file)
    with pytest.raises(ConfigError, match="--tokenizer and --merge-file given"):
        chosen_tokenizer(own, None, file)
    with pytest.raises(ConfigError, match="--tokenizer and --tokenizer-model given"):
        chosen_tokenizer(own, None, None, own)
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
        "fingerprint": chosen_tokenizer(Path("own")).fingerprint,
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
    own, gpt2 = (chosen_tokenizer(Path(name)) for name in ("own", "gpt2"))
    num_own, num_gpt2 = (sum(len(x) for x in loaded.encode_batch(TEXTS)) for loaded in (own, gpt2))
    num_bytes = sum(len(text.encode()) for text in TEXTS)
    more = (
        f"{num_own / num_gpt2 - 1:.1%} more" if num_own > num_gpt2 else f"{1 - num_own / num_gpt2:.1%} fewer"
    )
    assert rows["with GPT-2's"].strip() == f"{num_bytes / num_gpt2:.3f}: {more} tokens here"
    assert rows["bytes per token"].strip() == f"{num_bytes / num_own:.3f}"
    verbs.inspect("gpt2", "in.jsonl")
    assert "with GPT-2's" not in capsys.readouterr().out


def test_inspect_says_when_nothing_was_measured(folder: Path) -> None:
    with pytest.raises(DataError, match="no document under the key 'body'"):
        verbs.inspect("own", "in.jsonl", key="body")
