"""Datasets that are renamed, replaced, or in the way of another."""

import json
import shutil
from pathlib import Path

import pytest

from groundup.cli import tokens as tokens_verbs
from groundup.cli import tokens_files
from groundup.cli.options import DataTokenizerOptions, TokenizerOptions
from groundup.core.errors import ConfigError, DataError
from groundup.tokens.dataset.indexed import bin_path, idx_path
from groundup.tokens.dataset.merge import merge_tokens
from groundup.tokens.tokenizer.load_tokenizer import load_tokenizer

ENDINGS = (".bin", ".idx", ".sources.npz", ".json")


@pytest.fixture
def source(tmp_path: Path, texts: list[str], monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = Path("in.jsonl")
    path.write_text("\n".join(json.dumps({"text": text, "title": text[:9]}) for text in texts))
    return path


def build(source: Path, tokenizer: str = "bytes", **settings) -> Path:
    prefix = settings.pop("prefix", Path("data"))
    tokens_verbs.build(
        source, prefix=prefix, tokenizer=TokenizerOptions(tokenizer=Path(tokenizer)), workers=0, **settings
    )
    return prefix.with_name(f"{prefix.name}_{settings.get('key', ('text',))[0]}_document")


def rename(prefix: Path, to: Path) -> Path:
    for ending in ENDINGS:
        shutil.move(f"{prefix}{ending}", f"{to}{ending}")
    return to


def test_a_renamed_dataset_is_verified(
    source: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    data = rename(build(source), Path("renamed"))
    capsys.readouterr()
    tokens_files.verify(data)
    assert capsys.readouterr().out == "renamed: structure, ids and checksums are right\n"
    merge_tokens([data], Path("merged"))
    assert not caplog.text.count("is replaced")
    merged = rename(Path("merged"), Path("again"))
    assert merge_tokens([data], merged).reused
    capsys.readouterr()
    content = bytearray(bin_path(data).read_bytes())
    content[2] ^= 1
    bin_path(data).write_bytes(content)
    with pytest.raises(DataError, match=r"renamed\.bin does not match its checksum"):
        tokens_files.verify(data)
    with pytest.raises(DataError, match=r"renamed\.bin does not match its checksum"):
        merge_tokens([data], Path("new"))  # which would give the damage a checksum of its own
    assert not list(Path().glob("new*"))
    shutil.move("data_tokenizer", "elsewhere")
    with pytest.raises(
        DataError, match=r"data_tokenizer: the tokenizer that renamed\.json names is not there"
    ):
        tokens_files.verify(data)
    with pytest.raises(DataError, match=r"renamed\.bin does not match its checksum"):
        tokens_files.verify(data, tokenizer=DataTokenizerOptions(tokenizer=Path("elsewhere")))


def test_another_dataset_is_not_replaced_in_silence(
    source: Path, caplog: pytest.LogCaptureFixture, small_tokenizer
) -> None:
    small_tokenizer.save(Path("small"))
    (Path("other.jsonl")).write_text('{"text": "another"}\n')
    data = build(source)
    assert "is replaced" not in caplog.text
    for call, why in (
        (lambda: build(source, "small"), "it was made with another tokenizer"),
        (lambda: build(source, "small", append_end_of_document=False), "it was made with other settings"),
        (lambda: build(Path("other.jsonl"), "small"), "it was made from other files"),
    ):
        caplog.clear()
        call()
        assert f"{data}: the dataset there (40 documents, " in caplog.text
        assert f"is replaced: {why}" in caplog.text
    caplog.clear()
    merge_tokens([build(source, prefix=Path("more"))], data, tokenizer=load_tokenizer("bytes"))
    assert f"{data}: the dataset there (1 documents, 5 tokens) is replaced" in caplog.text


def test_a_dataset_of_somebody_else_stays(source: Path) -> None:
    data = build(source)
    before = idx_path(data).read_bytes()
    for ending in (".json", ".sources.npz"):
        Path(f"{data}{ending}").unlink()  # as Megatron-LM leaves it
    with pytest.raises(
        ConfigError, match=r"data_text_document\.idx: .*not built here. Choose another --prefix"
    ):
        build(source)
    assert idx_path(data).read_bytes() == before


def test_the_tokenizer_of_another_key_stays(source: Path, small_tokenizer) -> None:
    small_tokenizer.save(Path("small"))
    data = build(source)
    with pytest.raises(ConfigError, match=r"data_tokenizer: .* and data_text_document was built with it"):
        build(source, "small", key=("title",))
    build(source, key=("title",))  # with the same tokenizer
    tokens_files.verify(data)
