"""``groundup import nanogpt``: runs, data and shards of nanoGPT's, as its own scripts write them."""

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from groundup.checkpoint.formats import open_lazy
from groundup.cli.app import build_app
from groundup.core.errors import CheckpointError, ConfigError, DataError
from groundup.tokens.dataset.open import open_source, shards_by_split
from groundup.tokens.tokenizer.load_tokenizer import load_tokenizer
from groundup.tokens.tokenizer.word_list import WordListTokenizer
from tests.unit.checkpoint.test_nanogpt import save, their_model

TEXT = "the tide,\nthe ebb and the eel.\n" * 40


def groundup(*words: object) -> None:
    build_app()([str(word) for word in words], result_action="return_value")


def prepare(folder: Path, text: str = TEXT) -> Path:
    """As data/shakespeare_char/prepare.py."""
    folder.mkdir(parents=True)
    chars = sorted(set(text))
    stoi = {character: number for number, character in enumerate(chars)}
    cut = int(len(text) * 0.9)
    for name, part in (("train", text[:cut]), ("val", text[cut:])):
        np.array([stoi[character] for character in part], np.uint16).tofile(folder / f"{name}.bin")
    meta = {"vocab_size": len(chars), "itos": dict(enumerate(chars)), "stoi": stoi}
    (folder / "meta.pkl").write_bytes(pickle.dumps(meta))
    return folder


def run_of(folder: Path) -> Path:
    """A checkpoint of the data that lies in ``data/shakespeare_char`` beside it."""
    size = len(set(TEXT))
    return save(their_model(vocab_size=size), folder / "out", vocab_size=size)


def test_a_run_and_its_data_are_gone_on_with(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = prepare(tmp_path / "data" / "shakespeare_char")
    groundup("import", "nanogpt", data)
    assert (
        f"{data / 'train'}: 1 documents, {int(len(TEXT) * 0.9):,} tokens, characters"
        in capsys.readouterr().out
    )
    assert {name: [path.name for path in files] for name, files in shards_by_split(data).items()} == {
        "train": ["train"],
        "validation": ["val"],
    }
    run_of(tmp_path)
    groundup("import", "nanogpt", tmp_path / "out", "--out", tmp_path / "run")
    shown = capsys.readouterr().out
    assert "with the optimizer's moments" in shown
    assert "largest difference of logits 0.0e+00" in shown
    stored = open_lazy(tmp_path / "run")
    assert (stored.step, stored.samples) == (250, 15000)
    assert stored.tokenizer.decode(stored.tokenizer.encode(TEXT)) == TEXT
    groundup(
        "train", f"data.path={data}", "data.sequence_length=32", f"start.path={tmp_path / 'run'}",
        "start.state=true", "num_steps=252", f"run_dir={tmp_path / 'more'}", "micro_batch_size=2",
        "global_batch_size=2", "device=cpu", "precision=fp32", "validation.num_batches=1",
    )  # fmt: skip
    more = open_lazy(tmp_path / "more")
    assert (more.step, more.samples) == (252, 15004)
    names = [name for name in more.moments if name.endswith("/step")]
    assert {more.moments[name].read().item() for name in names} == {
        3
    }  # theirs was one, at any count of steps
    groundup("generate", tmp_path / "more", "--prompt", "the ", "--max-new-tokens", 20, "--temperature", 2)
    assert len(capsys.readouterr().out.strip("\n")) >= 20, "a line's end ends no text of characters"


def test_tokens_are_linked_and_an_index_is_never_replaced_by_another(tmp_path: Path) -> None:
    data = prepare(tmp_path / "chars")
    with pytest.raises(DataError, match="of nanoGPT's make a data set with `groundup import nanogpt FOLDER`"):
        open_source(data)
    for path in (data, data / "train.bin"):  # again, it does the same
        groundup("import", "nanogpt", path, "--out", tmp_path / "linked")
    assert (tmp_path / "linked" / "train.bin").samefile(data / "train.bin")
    source = open_source(tmp_path / "linked" / "train")
    text = load_tokenizer(tmp_path / "linked" / "train_tokenizer").decode(
        source.tokens[0 : len(source.tokens)]
    )
    assert text == TEXT[: int(len(TEXT) * 0.9)]
    index = (tmp_path / "linked" / "val.idx").read_bytes()
    (tmp_path / "linked" / "val.idx").write_bytes(index[:-1] + b"\x07")
    with pytest.raises(DataError, match="is there already and says otherwise where documents end"):
        groundup("import", "nanogpt", data, "--out", tmp_path / "linked")
    prepare(tmp_path / "others")
    with pytest.raises(DataError, match=r"train\.bin: is there already"):
        groundup("import", "nanogpt", data, "--out", tmp_path / "others")


def test_another_file_system_gets_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*paths: Path) -> None:
        raise OSError("Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    data = prepare(tmp_path / "chars")
    groundup("import", "nanogpt", data, "--out", tmp_path / "linked")
    assert (tmp_path / "linked" / "train.bin").is_symlink()
    assert len(open_source(tmp_path / "linked" / "train").tokens) == int(len(TEXT) * 0.9)


def test_documents_end_where_their_tokenizer_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As data/openwebtext/prepare.py: each document is closed by the end-of-document id."""
    folder = tmp_path / "openwebtext"
    folder.mkdir()
    np.array([5, 9, 256, 256, 7, 8, 9, 256, 11], np.uint16).tofile(folder / "train.bin")
    groundup("import", "nanogpt", folder, "--tokenizer", "bytes")
    assert "4 documents, 9 tokens, bytes" in capsys.readouterr().out
    source = open_source(folder / "train")
    assert source.document_lengths(0, 4).tolist() == [3, 1, 4, 1]


def test_shards_are_read_as_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    header = np.zeros(256, np.int32)
    header[:3] = (20240520, 1, 7)
    path = tmp_path / "tiny_train.bin"
    path.write_bytes(header.tobytes() + np.arange(7, dtype=np.uint16).tobytes())
    np.save(tmp_path / "edu_train.npy", np.arange(5, dtype=np.uint16))
    for shard, count in ((path, 7), (tmp_path / "edu_train.npy", 5)):
        groundup("import", "nanogpt", shard)
        shown = capsys.readouterr().out
        assert f"{count} tokens of uint16, read as they are" in shown
        assert f"groundup train data.path={shard} data.tokenizer=gpt2" in shown
    assert sorted(path.name for path in tmp_path.iterdir()) == ["edu_train.npy", "tiny_train.bin"]
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match="its header says 1,038"):
        groundup("import", "nanogpt", path)


def test_what_cannot_be_taken_over_is_refused_by_name(tmp_path: Path) -> None:
    path = run_of(tmp_path)
    with pytest.raises(ConfigError, match=r"where to write .* is not given\. Give --out"):
        groundup("import", "nanogpt", path)
    with pytest.raises(DataError, match=r"a vocabulary of 13 ids.*no meta.pkl in .*shakespeare_char.*--data"):
        groundup("import", "nanogpt", path, "--out", tmp_path / "run")
    data = prepare(tmp_path / "elsewhere")
    groundup("import", "nanogpt", path, "--data", data, "--out", tmp_path / "run")
    assert isinstance(open_lazy(tmp_path / "run").tokenizer, WordListTokenizer)
    more = prepare(tmp_path / "more", TEXT + "Z")
    with pytest.raises(CheckpointError, match="its tokenizer has 14 ids, the model only 13"):
        groundup("import", "nanogpt", path, "--data", more, "--out", tmp_path / "other")
    np.array([3, 13], np.uint16).tofile(data / "train.bin")
    with pytest.raises(DataError, match="token 13 at token 1 is outside the vocabulary of 13 ids"):
        groundup("import", "nanogpt", data)
    (data / "train.bin").write_bytes(b"odd")
    with pytest.raises(DataError, match="holds 3 bytes, not a number of uint16 tokens"):
        groundup("import", "nanogpt", data)
    assert not (data / "train.idx").exists()


@pytest.mark.parametrize(
    ("meta", "message"),
    [
        ([3], "holds no itos"),
        ({"itos": {}}, "holds no itos"),
        ({"itos": {0: "a", 2: "b"}}, "not one character for each id"),
        ({"itos": {0: "a", 1: "ab"}}, "not one character for each id"),
        ({"itos": {0: "a", 1: "a"}}, "not one character for each id"),
        (os.getcwd, "its pickle wants to call"),
    ],
)
def test_a_meta_that_is_no_vocabulary_is_refused(meta: Any, message: str, tmp_path: Path) -> None:
    class Calls:
        def __reduce__(self) -> Any:
            return meta, ()

    data = prepare(tmp_path / "data")
    (data / "meta.pkl").write_bytes(pickle.dumps(Calls() if callable(meta) else meta))
    with pytest.raises(CheckpointError, match=message):
        groundup("import", "nanogpt", data)
