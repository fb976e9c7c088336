"""The torch_dist format, written with PyTorch's own classes."""

import io
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from groundup.checkpoint.lazy import LoadedModel, load
from groundup.checkpoint.megatron.read import open_megatron
from groundup.checkpoint.parity import compare
from groundup.core.errors import CheckpointError
from tests.megatron_files import flat_tensors, rank_files, write_checkpoint
from tests.tiny import tiny_model

Writer = Callable[[dict[str, Tensor], Path], None]


def with_pytorch(tensors: dict[str, Tensor], folder: Path) -> None:
    """By ``torch.distributed.checkpoint`` itself, each tensor in one piece."""
    dcp.save(tensors, checkpoint_id=folder, no_dist=True)


def in_pieces(tensors: dict[str, Tensor], folder: Path) -> None:
    """As two pipeline stages with two tensor-parallel ranks each write: cut along layers and rows."""
    described, places = {}, {}
    files = {name: io.BytesIO() for name in ("__0_0.distcp", "__1_0.distcp")}
    for key, tensor in tensors.items():
        pieces: list[tuple[tuple[int, ...], Tensor]] = [((0,) * tensor.ndim, tensor)]
        for dim in range(min(2, tensor.ndim)):
            halves = []
            for offset, piece in pieces:
                cut = (piece.shape[dim] + 1) // 2
                for begin, part in zip((0, cut), piece.split(cut, dim), strict=False):
                    halves.append(((*offset[:dim], begin, *offset[dim + 1 :]), part))
            pieces = halves
        for number, (offset, piece) in enumerate(pieces):
            name = list(files)[number % 2]
            begin = files[name].tell()
            torch.save(piece.clone(), files[name])
            length = files[name].tell() - begin
            places[MetadataIndex(key, torch.Size(offset))] = _StorageInfo(name, begin, length)
        described[key] = TensorStorageMetadata(
            properties=TensorProperties(dtype=tensor.dtype),
            size=tensor.shape,
            chunks=[ChunkStorageMetadata(torch.Size(offset), piece.shape) for offset, piece in pieces],
        )
    folder.mkdir(parents=True)
    for name, file in files.items():
        (folder / name).write_bytes(file.getvalue())
    metadata = Metadata(state_dict_metadata=described, storage_data=places)  # type: ignore[arg-type]
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))


def write_distributed(loaded: LoadedModel, folder: Path, write: Writer, *, stacked: bool) -> Path:
    """A checkpoint of iteration 20, of the names that Transformer Engine has."""
    write_checkpoint(loaded, folder / "whole", names="core-fused")
    content = torch.load(rank_files(folder / "whole")[0], weights_only=False)
    tensors = dict(flat_tensors(content["model"]))
    if stacked:
        layers: dict[str, list[Tensor]] = {}
        for name in [name for name in tensors if name.startswith("decoder.layers.")]:
            rest = name.split(".", 3)[3]
            layers.setdefault(f"decoder.layers.{rest}", []).append(tensors.pop(name))
        tensors |= {name: torch.stack(parts) for name, parts in layers.items()}
    tensors["optimizer.state.exp_avg.embedding.word_embeddings.weight"] = torch.zeros(3)
    target = folder / "out" / "iter_0000020"
    write(tensors, target)
    common = {"args": content["args"], "iteration": 20, "checkpoint_version": 3.0}
    torch.save(common, target / "common.pt")
    (folder / "out" / "latest_checkpointed_iteration.txt").write_text("20")
    (folder / "whole" / "tokenizer").rename(folder / "out" / "tokenizer")
    return folder / "out"


@pytest.mark.parametrize("stacked", [True, False])
@pytest.mark.parametrize("write", [with_pytorch, in_pieces])
@pytest.mark.parametrize("name", ["gpt2", "llama-grouped-tied", "llama"])
def test_whole_tensors_are_found(name: str, write: Writer, stacked: bool, tmp_path: Path) -> None:
    ours = tiny_model(name)
    folder = write_distributed(ours, tmp_path, write, stacked=stacked)
    found = open_megatron(folder)
    assert (found.config, found.step) == (ours.config, 20)
    assert compare(ours, load(found, device="cpu")).max_difference == 0


def test_damage_is_refused(tmp_path: Path) -> None:
    folder = write_distributed(tiny_model("gpt2"), tmp_path, in_pieces, stacked=True)
    target = folder / "iter_0000020"
    second = target / "__1_0.distcp"
    content = second.read_bytes()
    second.write_bytes(content[: len(content) // 2])
    with pytest.raises(CheckpointError, match=r"__1_0\.distcp: cannot be read"):
        load(open_megatron(folder), device="cpu")
    second.unlink()
    with pytest.raises(CheckpointError, match=r"__1_0\.distcp: no such file, though \.metadata names it"):
        open_megatron(folder)
    (target / ".metadata").write_bytes(pickle.dumps({"state_dict_metadata": {}}))
    with pytest.raises(CheckpointError, match=r"is not as torch\.distributed\.checkpoint writes it"):
        open_megatron(folder)

    class Payload:
        def __reduce__(self) -> Any:
            return os.system, (f"touch {tmp_path / 'victim'}",)

    (target / ".metadata").write_bytes(pickle.dumps(Payload()))
    with pytest.raises(CheckpointError, match=r"wants to call posix\.system"):
        open_megatron(folder)
    assert not (tmp_path / "victim").exists()


def edit_metadata(folder: Path, change: Callable[[Metadata], None]) -> None:
    path = folder / "iter_0000020" / ".metadata"
    metadata = pickle.loads(path.read_bytes())
    change(metadata)
    path.write_bytes(pickle.dumps(metadata))


FC1 = "decoder.layers.mlp.linear_fc1.weight"


def first_twice(metadata: Metadata) -> None:
    """The second half has the bytes of the first, and is to lie at its place too."""
    described: Any = metadata.state_dict_metadata[FC1]
    described.chunks[1] = described.chunks[0]


def one_less(metadata: Metadata) -> None:
    metadata.state_dict_metadata[FC1].chunks.pop()  # type: ignore[union-attr]


def wild_shape(metadata: Metadata) -> None:
    metadata.state_dict_metadata[FC1].size = torch.Size([2**50, 48, 32])  # type: ignore[union-attr]


def outside(metadata: Metadata) -> None:
    described: Any = metadata.state_dict_metadata[FC1]
    chunk = described.chunks[0]
    place = metadata.storage_data[MetadataIndex(FC1, chunk.offsets)]
    chunk.offsets = torch.Size([7, 0, 0])
    metadata.storage_data[MetadataIndex(FC1, chunk.offsets)] = place


def negative(metadata: Metadata) -> None:
    for place in metadata.storage_data.values():
        place.offset = -5


def too_long(metadata: Metadata) -> None:
    for place in metadata.storage_data.values():
        place.length = 2**60


def other_dtype(metadata: Metadata) -> None:
    described: Any = metadata.state_dict_metadata[FC1]
    described.properties.dtype = torch.int32


def no_file(metadata: Metadata) -> None:
    for place in metadata.storage_data.values():
        place.relative_path = "../../../../../../etc/passwd"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (first_twice, "two pieces of .* overlap"),
        (one_less, "values of layer 1 of .* are there"),
        (wild_shape, "do not make a tensor of shape"),
        (outside, "do not make a tensor of shape"),
        (negative, "do not make a tensor of shape"),
        (too_long, "the file ends early"),
        (other_dtype, "is not what .metadata says"),
        (no_file, "passwd: no such file, though .metadata names it"),
    ],
)
def test_pieces_make_a_tensor_once_and_wholly(
    change: Callable[[Metadata], None], message: str, tmp_path: Path
) -> None:
    """What no piece fills would be memory that was used before, written into somebody's model."""
    folder = write_distributed(tiny_model("gpt2"), tmp_path, in_pieces, stacked=True)
    edit_metadata(folder, change)
    with pytest.raises(CheckpointError, match=message):
        load(open_megatron(folder), device="cpu")
