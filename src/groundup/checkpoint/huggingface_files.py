"""The files of weights in a Hugging Face folder: one or several, safetensors or old ``.bin``."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from torch import Tensor

from groundup.checkpoint.safetensors_file import read_safetensors, write_safetensors
from groundup.checkpoint.sharding import Sharding
from groundup.checkpoint.stored import StoredTensor, in_memory
from groundup.checkpoint.unpickle import load_pickled
from groundup.core.errors import CheckpointError
from groundup.core.files import read_json, write_json

_WEIGHTS = "model.safetensors"
_NAMES = (_WEIGHTS, "pytorch_model.bin")


def stored_tensors(folder: Path) -> Iterator[tuple[str, StoredTensor]]:
    """Name and content of each stored tensor, of one file or of all shards.

    Raises:
        CheckpointError: Files are missing or damaged, or two of them hold a tensor of one name.
    """
    seen: dict[str, Path] = {}
    for path in _weight_files(folder):
        for name, tensor in (
            read_safetensors(path) if path.suffix == ".safetensors" else _read_bin(path)
        ).items():
            if name in seen:
                raise CheckpointError(
                    f"holds {name}, which {seen[name].name} holds too",
                    where=path,
                    fix="Copy the folder again: its files are of different models or saves.",
                )
            seen[name] = path
            yield name, tensor


def write_shards(
    folder: Path,
    tensors: Mapping[str, StoredTensor],
    sharding: Sharding,
    *,
    on_write: Callable[[int], None] | None = None,
) -> None:
    """Writes tensors to one or more files, with an index where there are several.

    Raises:
        ConfigError: There are fewer tensors than files.
    """
    shards = sharding.divide(tensors)
    if len(shards) == 1:
        write_safetensors(folder / _WEIGHTS, tensors, on_write=on_write)
        return
    names = [f"model-{i + 1:05}-of-{len(shards):05}.safetensors" for i in range(len(shards))]
    for name, shard in zip(names, shards, strict=True):
        write_safetensors(folder / name, shard, on_write=on_write)
    total = sum(tensor.size_bytes for tensor in tensors.values())
    weight_map = {key: name for name, shard in zip(names, shards, strict=True) for key in shard}
    write_json(
        folder / f"{_WEIGHTS}.index.json", {"metadata": {"total_size": total}, "weight_map": weight_map}
    )


def _read_bin(path: Path) -> dict[str, StoredTensor]:
    content = load_pickled(path)
    if not isinstance(content, dict) or not all(
        isinstance(name, str) and isinstance(value, Tensor) for name, value in content.items()
    ):
        raise CheckpointError("holds something else than tensors by name", where=path)
    return {name: in_memory(tensor) for name, tensor in content.items()}


def _weight_files(folder: Path) -> list[Path]:
    for name in _NAMES:
        index = folder / f"{name}.index.json"
        if index.is_file():
            paths = [folder / shard for shard in _shards(index)]
        elif (folder / name).is_file():
            paths = [folder / name]
        else:
            continue
        for path in paths:
            if not path.is_file():
                raise CheckpointError(f"{path.name} is missing", where=folder, fix="Copy the folder again.")
        return paths
    raise CheckpointError(
        f"holds no weights: no {' and no '.join(_NAMES)}, nor their indices",
        where=folder,
        fix="Copy the folder again, whole.",
    )


def _shards(index: Path) -> list[str]:
    """The files that an index names; they lie beside it."""
    content = read_json(index)
    weight_map = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(
            "has no weight_map, which names files", where=index, fix="Copy the folder again."
        )
    for shard in weight_map.values():
        if (
            not isinstance(shard, str)
            or shard in ("", ".", "..")
            or Path(shard).name != shard
            or "\0" in shard
        ):
            raise CheckpointError(
                f"names {str(shard)[:80]!r}, which is no file beside it",
                where=index,
                fix="Do not use this folder: its index leads to files of others.",
            )
    return sorted(set(weight_map.values()))
