"""The files of weights in a Hugging Face folder: one or several, safetensors or old ``.bin``."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from torch import Tensor

from groundup.checkpoint.safetensors_file import read_safetensors, write_safetensors
from groundup.checkpoint.stored import StoredTensor, in_memory
from groundup.checkpoint.unpickle import load_pickled
from groundup.core.errors import CheckpointError, ConfigError
from groundup.core.files import read_json, write_json

_WEIGHTS = "model.safetensors"
_NAMES = (_WEIGHTS, "pytorch_model.bin")


def stored_tensors(folder: Path) -> Iterator[tuple[str, StoredTensor]]:
    """Name and content of each stored tensor, of one file or of all shards.

    Raises:
        CheckpointError: Files are missing or damaged.
    """
    for path in _weight_files(folder):
        yield from (read_safetensors(path) if path.suffix == ".safetensors" else _read_bin(path)).items()


def write_shards(
    folder: Path,
    tensors: Mapping[str, StoredTensor],
    num_shards: int,
    *,
    on_write: Callable[[int], None] | None = None,
) -> None:
    """Writes tensors to ``num_shards`` files of about the same size, with an index where there are several.

    Raises:
        ConfigError: There are fewer tensors than shards.
    """
    if not 1 <= num_shards <= len(tensors):
        raise ConfigError(
            f"{num_shards} shards of {len(tensors)} tensors", where="--shards", fix="Give 1 or a few."
        )
    if num_shards == 1:
        write_safetensors(folder / _WEIGHTS, tensors, on_write=on_write)
        return
    total = sum(tensor.size_bytes for tensor in tensors.values())
    shards: list[dict[str, StoredTensor]] = [{}]
    written = 0
    for position, (name, tensor) in enumerate(tensors.items()):
        left = len(tensors) - position
        full = written >= total * len(shards) / num_shards or left <= num_shards - len(shards)
        if full and shards[-1] and len(shards) < num_shards:
            shards.append({})
        shards[-1][name] = tensor
        written += tensor.size_bytes
    names = [f"model-{i + 1:05}-of-{num_shards:05}.safetensors" for i in range(num_shards)]
    for name, shard in zip(names, shards, strict=True):
        write_safetensors(folder / name, shard, on_write=on_write)
    weight_map = {key: name for name, shard in zip(names, shards, strict=True) for key in shard}
    write_json(
        folder / f"{_WEIGHTS}.index.json", {"metadata": {"total_size": total}, "weight_map": weight_map}
    )


def _read_bin(path: Path) -> dict[str, StoredTensor]:
    content = load_pickled(path)
    if not isinstance(content, dict) or not all(isinstance(value, Tensor) for value in content.values()):
        raise CheckpointError("holds something else than tensors by name", where=path)
    return {name: in_memory(tensor) for name, tensor in content.items()}


def _weight_files(folder: Path) -> list[Path]:
    for name in _NAMES:
        index = folder / f"{name}.index.json"
        if index.is_file():
            paths = [folder / shard for shard in sorted(set(read_json(index).get("weight_map", {}).values()))]
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
