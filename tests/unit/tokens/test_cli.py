import io
import json
from pathlib import Path

import pytest

from groundup.cli import tokenizer as tokenizer_verbs
from groundup.cli import tokens as tokens_verbs
from groundup.cli import tokens_files as tokens_files_verbs
from groundup.cli.options import TokenizerOptions
from groundup.core.errors import ConfigError, DataError
from groundup.tokens.dataset.indexed import bin_path


@pytest.fixture
def source(tmp_path: Path, texts: list[str]) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_text("\n".join(json.dumps({"body": text}) for text in texts) + "\n")
    return path


def test_train_build_inspect_verify(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, prefix = tmp_path / "tokenizer", tmp_path / "out" / "data"
    tokenizer_verbs.train(source, out=folder, vocab_size=290, key="body")
    assert capsys.readouterr().out == f"{folder}\n"

    tokenizer_verbs.inspect(folder, source, key="body")
    shown = capsys.readouterr().out
    assert "ids                 290" in shown
    assert "ids, padded to 128  384" in shown
    assert "289 <|endoftext|>" in shown

    tokenizer_verbs.encode(folder, "the", "cat")
    ids = capsys.readouterr().out
    monkeypatch.setattr("sys.stdin", io.StringIO(ids))
    tokenizer_verbs.decode(folder)
    assert capsys.readouterr().out == "the cat\n"
    monkeypatch.setattr("sys.stdin", io.StringIO("the cat"))
    tokenizer_verbs.encode(folder)
    assert capsys.readouterr().out == ids

    for state in ("\n", " (was there already)\n"):
        tokens_verbs.build(
            source, prefix=prefix, tokenizer=TokenizerOptions(tokenizer=folder), key=("body",), workers=0
        )
        shown = capsys.readouterr().out
        assert shown.startswith(f"{prefix}_body_document{state}  40 documents, ")

    data = tmp_path / "out" / "data_body_document"
    tokens_files_verbs.inspect(data, documents=1, characters=7)
    shown = capsys.readouterr().out
    assert "documents             40" in shown
    assert shown.endswith("tokens\nthe cat ...\n")
    tokens_files_verbs.verify(data)
    assert capsys.readouterr().out == f"{data}: structure, ids and checksums are right\n"

    content = bytearray(bin_path(data).read_bytes())
    content[0] ^= 1
    bin_path(data).write_bytes(content)
    with pytest.raises(DataError, match="does not match its checksum"):
        tokens_files_verbs.verify(data)


def test_gpt2_files_are_understood(source: Path, tmp_path: Path) -> None:
    folder = tmp_path / "tokenizer"
    tokenizer_verbs.train(source, out=folder, vocab_size=290, key="body")
    (folder / "tokenizer.json").unlink()
    files = {"vocab_file": folder / "vocab.json", "merge_file": folder / "merges.txt"}
    tokens_verbs.build(
        source, prefix=tmp_path / "a", key=("body",), workers=0, tokenizer=TokenizerOptions(**files)
    )
    assert bin_path(tmp_path / "a_body_document").stat().st_size
    for given in ({}, {"vocab_file": folder / "vocab.json"}, {**files, "tokenizer": folder}):
        with pytest.raises(ConfigError, match="which tokenizer"):
            tokens_verbs.build(source, prefix=tmp_path / "b", tokenizer=TokenizerOptions(**given))


def test_a_dataset_of_megatrons_is_read_without_a_manifest(
    megatron: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokens_files_verbs.inspect(megatron / "indexed" / "wt2_200_text_document.idx", documents=1, characters=3)
    assert "tokens                36,449" in capsys.readouterr().out
    tokens_files_verbs.verify(megatron / "indexed" / "wt2_200_text_document")
    assert "no manifest" in capsys.readouterr().out
