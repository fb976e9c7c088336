"""A checkpoint is the files that its manifest lists: others are not opened, and what it names is listed."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from groundup.checkpoint.lazy import in_memory
from groundup.checkpoint.native import store
from groundup.checkpoint.native.contents import read_manifest
from groundup.checkpoint.native.load import Group, file_name, group_names, write_parts
from groundup.checkpoint.native.shards import Chunk, ShardMetadata
from groundup.checkpoint.safetensors import write_safetensors
from groundup.core.config import to_dict
from groundup.core.errors import CheckpointError, DataError
from groundup.core.files import checksum
from groundup.core.manifest import Manifest, describe_files


def complete(folder: Path, names: list[str]) -> Path:
    Manifest(kind="checkpoint", files=describe_files(folder, names)).write(folder / "manifest.json")
    sign(folder)
    return folder


def sign(folder: Path) -> None:
    (folder / "COMPLETE").write_text(checksum(folder / "manifest.json") + "\n")


@pytest.fixture
def one(tmp_path) -> Path:
    """What one rank has written: ones."""
    folder = tmp_path / "one"
    folder.mkdir()
    write_safetensors(folder / "model.safetensors", {"x": in_memory(torch.ones(4))})
    return complete(folder, ["model.safetensors"])


@pytest.fixture
def two(tmp_path) -> Path:
    """What two ranks have written: zeros."""
    folder = tmp_path / "two"
    folder.mkdir()
    shares = [
        {("model", "x"): ShardMetadata(torch.float32, (4,), Chunk((2 * rank,), (2,)))} for rank in range(2)
    ]
    names = [file_name("model", rank, 2) for rank in range(2)]
    for name in names:
        write_safetensors(folder / name, {"x": in_memory(torch.zeros(2))})
    write_parts(folder, ["model"], shares)
    return complete(folder, [*names, "parts.json"])


def rewrite_manifest(folder: Path, **changes) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | changes))
    sign(folder)


def rewrite_parts(folder: Path, change) -> None:
    parts = json.loads((folder / "parts.json").read_text())
    change(parts)
    (folder / "parts.json").write_text(json.dumps(parts))
    complete(folder, list(read_manifest(folder).files))


def test_what_is_verified_is_what_is_read(one, two) -> None:
    assert Group(two, "model").read("x").tolist() == [0, 0, 0, 0]
    shutil.copytree(one, two, dirs_exist_ok=True)  # over it: parts.json and its files are still there
    assert store.verify(two) == ""
    assert group_names(two) == ["model"]
    assert Group(two, "model").read("x").tolist() == [1, 1, 1, 1]


def test_files_that_the_manifest_does_not_list_are_not_opened(one) -> None:
    write_safetensors(one / "optimizer.safetensors", {"x": in_memory(torch.ones(4))})
    assert group_names(one) == ["model"]
    with pytest.raises(CheckpointError, match="holds no optimizer, only model"):
        Group(one, "optimizer")


@pytest.mark.parametrize("name", ["../one/model.safetensors", "/etc/passwd", "sub/x.safetensors", "", ".."])
def test_paths_out_of_the_folder_are_refused(one, two, name) -> None:
    def lead_out(parts) -> None:
        parts["model"]["x"]["parts"][0][0] = name

    rewrite_parts(two, lead_out)
    assert "parts.json: names a file outside of the checkpoint" in store.verify(two)
    with pytest.raises(CheckpointError, match="names a file outside of the checkpoint"):
        Group(two, "model")
    files = read_manifest(one).files
    for listed in (name, f"tokenizer/{name}"):
        recorded = {**files, listed: files["model.safetensors"]}
        rewrite_manifest(one, files={name: to_dict(record) for name, record in recorded.items()})
        assert "manifest.json: names a file outside of the checkpoint" in store.verify(one), listed
        with pytest.raises(CheckpointError, match="names a file outside of the checkpoint"):
            group_names(one)


def test_every_file_that_parts_name_is_listed(two) -> None:
    complete(two, ["parts.json", "model-00001-of-00002.safetensors"])
    reason = "parts.json: names model-00002-of-00002.safetensors, which manifest.json does not list"
    assert store.verify(two) == store.verify_sizes(two) == reason
    with pytest.raises(CheckpointError, match=r"which manifest\.json does not list"):
        Group(two, "model")


@pytest.mark.parametrize("files", [{}, [], {"model.safetensors": 5}, {"model.safetensors": {"bytes": 1}}])
def test_a_manifest_without_files_or_their_checksums_is_refused(one, files) -> None:
    rewrite_manifest(one, files=files)
    assert store.verify(one).startswith("manifest.json: ")
    with pytest.raises((CheckpointError, DataError), match=r"manifest\.json: "):
        Group(one, "model")


@pytest.mark.parametrize(
    "entry",
    [
        5,
        {},
        {"dtype": "F32", "shape": [4], "parts": [5]},
        {"dtype": "F32", "shape": [4], "parts": [["model-00001-of-00002.safetensors"]]},
        {"dtype": "F32", "shape": ["a"], "parts": [["model-00001-of-00002.safetensors", [0], [2]]]},
        {"dtype": "F33", "shape": [4], "parts": [["model-00001-of-00002.safetensors", [0], [2]]]},
        {"dtype": "F32", "shape": [4], "parts": [["model-00001-of-00002.safetensors", [-1], [2]]]},
        {"dtype": "F32", "shape": [4], "parts": [["model-00001-of-00002.safetensors", [3], [2]]]},
    ],
)
def test_malformed_parts_are_one_message(two, entry) -> None:
    rewrite_parts(two, lambda parts: parts["model"].update(x=entry))
    with pytest.raises(CheckpointError, match=r"parts\.json"):
        Group(two, "model")


def test_a_file_beside_those_of_the_tokenizer_is_damage(one) -> None:
    (one / "tokenizer").mkdir()
    (one / "tokenizer/vocab.json").write_text("{}")
    complete(one, ["model.safetensors", "tokenizer/vocab.json"])
    assert store.verify(one) == ""
    (one / "tokenizer/tokenizer.json").write_text("{}")  # which would be read before the other
    assert store.verify(one) == "tokenizer/tokenizer.json is not listed in manifest.json"
    assert store.damage_of(one).state == ""
