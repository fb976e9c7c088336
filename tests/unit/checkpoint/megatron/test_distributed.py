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

from groundup.checkpoint.loaded import LoadedModel
from groundup.checkpoint.megatron.read import open_megatron
from groundup.checkpoint.parity import compare
from groundup.checkpoint.stored import load
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
    write_checkpoint(loaded, folder / "whole", naming="core-fused")
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
