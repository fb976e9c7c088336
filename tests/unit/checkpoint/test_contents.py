"""A checkpoint is the files that its manifest lists: others are not opened, and what it names is listed."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from groundup.checkpoint.lazy import in_memory
from groundup.checkpoint.native.contents import file_name, read_checkpoint_manifest, read_groups, write_chunks
from groundup.checkpoint.native.folder import check_files, find_damage, find_missing
from groundup.checkpoint.native.load import TensorGroup
from groundup.checkpoint.native.shards import Chunk, ShardMetadata
from groundup.checkpoint.safetensors import write_safetensors
from groundup.core.config import to_dict
from groundup.core.errors import CheckpointError, DataError
from groundup.core.files import checksum
from groundup.core.manifest import describe_files, write_manifest
from tests.runs import checkpoint_manifest


def complete(folder: Path, names: list[str]) -> Path:
    write_manifest(folder / "manifest.json", checkpoint_manifest(describe_files(folder, names)))
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
    write_chunks(folder, ["model"], shares)
    return complete(folder, [*names, "parts.json"])


def rewrite_manifest(folder: Path, **changes) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | changes))
    sign(folder)


def rewrite_parts(folder: Path, change) -> None:
    parts = json.loads((folder / "parts.json").read_text())
    change(parts)
    (folder / "parts.json").write_text(json.dumps(parts))
    complete(folder, list(read_checkpoint_manifest(folder).files))


def test_what_is_verified_is_what_is_read(one, two) -> None:
    assert TensorGroup(two, "model").read("x").tolist() == [0, 0, 0, 0]
    shutil.copytree(one, two, dirs_exist_ok=True)  # over it: parts.json and its files are still there
    assert find_damage(two) is None
    assert list(read_groups(two)) == ["model"]
    assert TensorGroup(two, "model").read("x").tolist() == [1, 1, 1, 1]


def test_files_that_the_manifest_does_not_list_are_not_opened(one) -> None:
    write_safetensors(one / "optimizer.safetensors", {"x": in_memory(torch.ones(4))})
    assert list(read_groups(one)) == ["model"]
    with pytest.raises(CheckpointError, match="holds no optimizer, only model"):
        TensorGroup(one, "optimizer")


@pytest.mark.parametrize("name", ["../one/model.safetensors", "/etc/passwd", "sub/x.safetensors", "", ".."])
def test_paths_out_of_the_folder_are_refused(one, two, name) -> None:
    def lead_out(parts) -> None:
        parts["model"]["x"]["parts"][0][0] = name

    rewrite_parts(two, lead_out)
    assert "parts.json: names a file outside of the checkpoint" in find_damage(two)
    with pytest.raises(CheckpointError, match="names a file outside of the checkpoint"):
        TensorGroup(two, "model")
    files = read_checkpoint_manifest(one).files
    for listed in (name, f"tokenizer/{name}"):
        recorded = {**files, listed: files["model.safetensors"]}
        rewrite_manifest(one, files={name: to_dict(record) for name, record in recorded.items()})
        assert "manifest.json: names a file outside of the checkpoint" in find_damage(one), listed
        with pytest.raises(CheckpointError, match="names a file outside of the checkpoint"):
            read_groups(one)


def test_every_file_that_chunks_name_is_listed(two) -> None:
    complete(two, ["parts.json", "model-00001-of-00002.safetensors"])
    reason = "parts.json: names model-00002-of-00002.safetensors, which manifest.json does not list"
    assert find_damage(two) == find_missing(two) == reason
    with pytest.raises(CheckpointError, match=r"which manifest\.json does not list"):
        TensorGroup(two, "model")


@pytest.mark.parametrize("files", [{}, [], {"model.safetensors": 5}, {"model.safetensors": {"bytes": 1}}])
def test_a_manifest_without_files_or_their_checksums_is_refused(one, files) -> None:
    rewrite_manifest(one, files=files)
    assert find_damage(one).startswith("manifest.json: ")
    with pytest.raises((CheckpointError, DataError), match=r"manifest\.json: "):
        TensorGroup(one, "model")


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
        TensorGroup(two, "model")


@pytest.mark.parametrize(
    ("offsets", "problem"),
    [
        ([[0]], "has 2 of 4 values of x"),
        ([[0], [1]], "has some values twice and others not at all of x"),
        ([[0], [2], [2]], "has 6 of 4 values of x"),
    ],
)
def test_chunks_that_are_not_the_whole_tensor_are_damage(two, offsets, problem) -> None:
    def cover(parts) -> None:
        parts["model"]["x"]["parts"] = [["model-00001-of-00002.safetensors", begin, [2]] for begin in offsets]

    rewrite_parts(two, cover)
    assert find_damage(two) == f"parts.json: {problem}"
    with pytest.raises(CheckpointError, match=problem):
        TensorGroup(two, "model")


def test_columns_of_chunks_that_overlap_are_damage(tmp_path) -> None:
    names = [file_name("model", rank, 4) for rank in range(4)]
    shares = [{("model", "x"): ShardMetadata(torch.float32, (4, 4), Chunk((0, 0), (4, 2)))} for _ in names]
    for column, good in (((0, 0), False), ((0, 2), True)):
        for rank, offset in enumerate([(0, 0), (2, 0), column, (2, 2)]):
            shares[rank] = {("model", "x"): ShardMetadata(torch.float32, (4, 4), Chunk(offset, (2, 2)))}
            write_safetensors(tmp_path / names[rank], {"x": in_memory(torch.ones(2, 2))})
        write_chunks(tmp_path, ["model"], shares)
        complete(tmp_path, [*names, "parts.json"])
        assert (find_damage(tmp_path) is None) == good


def test_unknown_and_missing_fields_of_a_manifest_are_named(one) -> None:
    written = json.loads((one / "manifest.json").read_text())
    for about, problem in (
        ({**written["about"], "colour": "red"}, "unknown key about.colour"),
        ({"config": {}}, "about.tokenizer is required"),
        ({**written["about"], "bos_ids": ["a"]}, "about.bos_ids"),
    ):
        rewrite_manifest(one, about=about)
        assert problem in (find_damage(one) or "")
        with pytest.raises(DataError, match=rf"manifest\.json: .*{problem}"):
            read_checkpoint_manifest(one)


def test_a_file_beside_those_of_the_tokenizer_is_damage(one) -> None:
    (one / "tokenizer").mkdir()
    (one / "tokenizer/vocab.json").write_text("{}")
    complete(one, ["model.safetensors", "tokenizer/vocab.json"])
    assert find_damage(one) is None
    (one / "tokenizer/tokenizer.json").write_text("{}")  # which would be read before the other
    assert find_damage(one) == "tokenizer/tokenizer.json is not listed in manifest.json"
    assert check_files(one).state is None
