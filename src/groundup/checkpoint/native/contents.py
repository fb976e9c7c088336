"""What a checkpoint says of itself: the manifest, and ``parts.json``, which says where chunks of tensors lie.

Only files that the manifest lists are opened. One rank writes each group of tensors into one file,
``model.safetensors``; several write one each, ``model-00002-of-00004.safetensors``, and ``parts.json``.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from groundup import __version__
from groundup.checkpoint.companions import CHAT_TEMPLATES
from groundup.checkpoint.low_rank import AdapterAbout
from groundup.checkpoint.native.shards import Chunk, ChunkLocation, SavePlan, TensorMetadata
from groundup.checkpoint.safetensors import DTYPE_NAMES, DTYPES
from groundup.core.config_class import NotNegative, config
from groundup.core.errors import CheckpointError
from groundup.core.files import read_json, write_json
from groundup.core.manifest import FileRecord, read_manifest

MANIFEST = "manifest.json"
CHUNKS = "parts.json"
TOKENIZER = "tokenizer"
_WEIGHTS = ".safetensors"


@config
class TrainingCounts:
    """Progress of the training.

    Attributes:
        step: Steps done.
        samples: Position in the data.
        updated_samples: Samples of the steps with an update; None for all.
        tokens: Targets trained on; 0 of converted models.
        skipped_steps: Steps without an update.
        loss_scale: State of the loss scaler; None but for fp16.
        spike_guard: State of the spike guard; None without one.
    """

    step: NotNegative
    samples: NotNegative
    updated_samples: NotNegative | None = None
    tokens: NotNegative = 0
    skipped_steps: NotNegative = 0
    loss_scale: dict[str, Any] | None = None
    spike_guard: dict[str, Any] | None = None


@config
class CheckpointAbout:
    """What a checkpoint is of.

    Attributes:
        config: Resolved config of the run; of a converted model only its ``model``.
        tokenizer: Fingerprint of the tokenizer.
        torch: Version of PyTorch that wrote it.
        data: Fingerprint of the training data; empty for converted models.
        bos_ids: Ids that stand before every prompt.
        converted_from: Folder that the model was converted from; None for a run.
        megatron_args: Plain values that Megatron-LM kept with a model that was converted.
        adapter: Of what the model's tensors are a low-rank adapter; None where they are the whole model.
    """

    config: dict[str, Any]
    tokenizer: str
    torch: str = "unknown"
    data: str = ""
    bos_ids: tuple[NotNegative, ...] = ()
    converted_from: str | None = None
    megatron_args: dict[str, Any] | None = None
    adapter: AdapterAbout | None = None


@config
class CheckpointManifest:
    """Manifest of a checkpoint."""

    kind: Literal["checkpoint"] = "checkpoint"
    fingerprint: str = ""
    inputs: dict[str, str] = dataclasses.field(default_factory=dict)
    counts: TrainingCounts
    files: dict[str, FileRecord]
    about: CheckpointAbout
    format_version: Literal[1] = 1
    groundup_version: str = __version__


def read_checkpoint_manifest(folder: Path) -> CheckpointManifest:
    """Reads the manifest of a checkpoint.

    Raises:
        DataError: Missing, not JSON, damaged, or not a manifest of a checkpoint.
        CheckpointError: It lists no files, or paths that a checkpoint does not have.
    """
    path = folder / MANIFEST
    manifest = read_manifest(path, CheckpointManifest)
    if not manifest.files:
        raise CheckpointError("lists no files", where=path, fix="Copy the checkpoint again.")
    for name in manifest.files:
        _require_plain(name.removeprefix(f"{TOKENIZER}/").removeprefix(f"{CHAT_TEMPLATES}/"), name, path)
    return manifest


def file_name(group: str, rank: int, num_ranks: int) -> str:
    """Returns the name of the file that a rank writes of a group."""
    return f"{group}{_WEIGHTS}" if num_ranks == 1 else f"{group}-{rank + 1:05}-of-{num_ranks:05}{_WEIGHTS}"


def read_groups(folder: Path) -> dict[str, dict[str, TensorMetadata] | None]:
    """Reads which groups ("model", "optimizer", ...) a checkpoint has, and where the tensors of each lie.

    Returns:
        None for the tensors of a group that lies in one file of its own.

    Raises:
        CheckpointError, DataError: Its manifest or ``parts.json`` is malformed.
    """
    files = read_checkpoint_manifest(folder).files
    table = read_chunks(folder, files)
    if table is not None:
        return dict(table)
    return {name.removesuffix(_WEIGHTS): None for name in sorted(files) if name.endswith(_WEIGHTS)}


def write_chunks(folder: Path, groups: Iterable[str], writes: Sequence[SavePlan]) -> None:
    """Writes ``parts.json``: the groups, and what each rank has written of them."""
    table: dict[str, dict[str, Any]] = {group: {} for group in groups}
    for rank, plan in enumerate(writes):
        for (group, name), held in plan.items():
            entry = table[group].setdefault(
                name, {"dtype": DTYPE_NAMES[held.dtype], "shape": list(held.shape), "parts": []}
            )
            file = file_name(group, rank, len(writes))
            entry["parts"].append([file, list(held.chunk.offset), list(held.chunk.shape)])
    write_json(folder / CHUNKS, table, indent=None)


def read_chunks(folder: Path, files: Mapping[str, Any]) -> dict[str, dict[str, TensorMetadata]] | None:
    """Reads ``parts.json``: the tensors of each group; None where the manifest does not list it.

    Args:
        folder: The checkpoint.
        files: Those that its manifest lists.

    Raises:
        CheckpointError: It is malformed, names a file that the manifest does not list, or the chunks of a
            tensor are not all of it.
        DataError: It is missing, or not JSON.
    """
    if CHUNKS not in files:
        return None
    path = folder / CHUNKS
    content: Any = read_json(path)
    try:
        table = {
            group: {name: _tensor(name, entry, folder) for name, entry in entries.items()}
            for group, entries in content.items()
        }
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"describes a tensor wrongly ({error!r})", where=path) from None
    if not table:
        raise CheckpointError("names no tensors", where=path)
    named = {
        part.file.name for group in table.values() for tensor in group.values() for part in tensor.chunks
    }
    if unlisted := sorted(named - files.keys()):
        raise CheckpointError(f"names {unlisted[0]}, which {MANIFEST} does not list", where=path)
    return table


def _tensor(name: str, entry: Mapping[str, Any], folder: Path) -> TensorMetadata:
    shape = tuple(map(int, entry["shape"]))
    chunks = []
    for file, offset, chunk_shape in entry["parts"]:
        if not isinstance(file, str):
            raise TypeError(f"a file {file!r}")
        _require_plain(file, file, folder / CHUNKS)
        chunk = Chunk(tuple(map(int, offset)), tuple(map(int, chunk_shape)))
        for begin, length, end, limit in zip(chunk.offset, chunk.shape, chunk.end, shape, strict=True):
            if begin < 0 or length < 0 or end > limit:
                raise ValueError(f"{chunk} lies outside of the shape {shape}")
        chunks.append(ChunkLocation(folder / file, chunk))
    if problem := _find_gap([one.chunk for one in chunks], shape):
        raise CheckpointError(f"{problem} of {name}", where=folder / CHUNKS, fix="Copy it again.")
    return TensorMetadata(DTYPES[entry["dtype"]], shape, tuple(chunks))


def _find_gap(chunks: Sequence[Chunk], shape: tuple[int, ...]) -> str | None:
    """Finds out whether chunks within a shape leave some of it out, or overlap."""
    covered, size = sum(chunk.size for chunk in chunks), math.prod(shape)
    if covered != size:
        return f"has {covered:,} of {size:,} values"
    reaching: list[Chunk] = []  # those before, in the order of rows, that go on behind where this one begins
    for chunk in sorted(chunks, key=lambda chunk: chunk.offset) if shape else ():
        reaching = [other for other in reaching if other.end[0] > chunk.offset[0]]
        if any(chunk.overlap(other) for other in reaching):
            return "has some values twice and others not at all"
        reaching.append(chunk)
    return None


def _require_plain(name: str, path: str, where: Path) -> None:
    """Refuses what is more than the name of a file."""
    if not name or name == ".." or PurePosixPath(name).name != name or "\\" in name:
        raise CheckpointError(f"names a file outside of the checkpoint: {path!r}", where=where)
