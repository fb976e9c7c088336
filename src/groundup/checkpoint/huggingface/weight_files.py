"""The files of weights in a Hugging Face folder: one or several, safetensors or old ``.bin``."""

import dataclasses
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from torch import Tensor

from groundup.checkpoint.lazy import LazyTensor, in_memory
from groundup.checkpoint.safe_pickle.unpickle import load_pickled
from groundup.checkpoint.safetensors import read_safetensors, write_safetensors
from groundup.core.errors import CheckpointError, ConfigError
from groundup.core.files import read_json, write_json

_WEIGHTS = "model.safetensors"
_NAMES = (_WEIGHTS, "pytorch_model.bin")
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12,
          "KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}  # fmt: skip
_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([KMGT]I?)?B", re.IGNORECASE)
_MIN_SIZE = 1000
_HEADER_BYTES, _ENTRY_BYTES = 200, 150
"""No less than a safetensors header takes, and a tensor's entry in it beside its name."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sharding:
    """A number of files of about the same size, or as many as are needed for a largest size.

    Attributes:
        num_files: How many; ignored where a size is given.
        max_bytes: Of a file, but for one that holds a single tensor larger than this.
    """

    num_files: int = 1
    max_bytes: int | None = None

    def divide(self, tensors: Mapping[str, LazyTensor]) -> list[dict[str, LazyTensor]]:
        """The tensors of each file, in their order.

        Raises:
            ConfigError: There are fewer tensors than files.
        """
        return self._by_size(tensors) if self.max_bytes is not None else self._by_number(tensors)

    def _by_number(self, tensors: Mapping[str, LazyTensor]) -> list[dict[str, LazyTensor]]:
        if not 1 <= self.num_files <= len(tensors):
            raise ConfigError(
                f"{self.num_files} files cannot hold {len(tensors)} tensors, of which none is divided",
                where="--shards",
                fix=f"Give 1 to {len(tensors)}, or a size like 5GB.",
            )
        total = sum(tensor.size_bytes for tensor in tensors.values())
        files: list[dict[str, LazyTensor]] = [{}]
        written = 0
        for position, (name, tensor) in enumerate(tensors.items()):
            left = len(tensors) - position
            full = written >= total * len(files) / self.num_files or left <= self.num_files - len(files)
            if full and files[-1] and len(files) < self.num_files:
                files.append({})
            files[-1][name] = tensor
            written += tensor.size_bytes
        return files

    def _by_size(self, tensors: Mapping[str, LazyTensor]) -> list[dict[str, LazyTensor]]:
        assert self.max_bytes is not None
        files: list[dict[str, LazyTensor]] = [{}]
        used = _HEADER_BYTES
        for name, tensor in tensors.items():
            needed = tensor.size_bytes + _ENTRY_BYTES + len(name.encode())
            if files[-1] and used + needed > self.max_bytes:
                files.append({})
                used = _HEADER_BYTES
            files[-1][name] = tensor
            used += needed
        return files


def parse_sharding(text: str) -> Sharding:
    """What a user means by ``--shards``: "4" or "5GB" (of 1000s; GiB are of 1024s).

    Raises:
        ConfigError: It is neither.
    """
    text = text.strip()
    if re.fullmatch(r"\d+", text, re.ASCII) and int(text):
        return Sharding(num_files=int(text))
    if match := _SIZE.fullmatch(text):
        size_bytes = int(float(match[1]) * _UNITS[(match[2] or "").upper()])
        if size_bytes < _MIN_SIZE:
            raise ConfigError(
                f"{text} is too small for a file of weights",
                where="--shards",
                fix="Give 1KB at least, e.g. 5GB.",
            )
        return Sharding(max_bytes=size_bytes)
    raise ConfigError(
        f"{text!r} is neither a number of files (1 or more) nor a size",
        where="--shards",
        fix="Write e.g. 4, or 5GB, 500MB, 2GiB for the largest size of a file.",
    )


def stored_tensors(folder: Path) -> dict[str, LazyTensor]:
    """Name and content of each stored tensor, of one file or of all shards.

    Raises:
        CheckpointError: Files are missing or damaged, or are not those that the index describes.
    """
    for name in _NAMES:
        if (folder / f"{name}.index.json").is_file():
            return _of_shards(folder / f"{name}.index.json")
        if (folder / name).is_file():
            return _read_file(folder / name)
    raise CheckpointError(
        f"holds no weights: no {' and no '.join(_NAMES)}, nor their indices",
        where=folder,
        fix="Copy the folder again, whole.",
    )


def write_shards(
    folder: Path,
    tensors: Mapping[str, LazyTensor],
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


def _of_shards(index: Path) -> dict[str, LazyTensor]:
    """The tensors of all files that an index names, each from the file where the index has it."""
    weight_map = _weight_map(index)
    tensors: dict[str, LazyTensor] = {}
    for file_name in sorted(set(weight_map.values())):
        path = index.with_name(file_name)
        if not path.is_file():
            raise CheckpointError(f"{file_name} is missing", where=index.parent, fix="Copy the folder again.")
        found = _read_file(path)
        lacking = [name for name, place in weight_map.items() if place == file_name and name not in found]
        if lacking:
            more = f" and {len(lacking) - 1} more" if len(lacking) > 1 else ""
            raise CheckpointError(
                f"has no tensor {lacking[0]}{more}, which {index.name} says is in it",
                where=path,
                fix="Copy the folder again, whole.",
            )
        for name, tensor in found.items():
            if name in tensors and name not in weight_map:
                raise CheckpointError(
                    f"has a tensor {name}, which another file has too, and {index.name} names neither",
                    where=path,
                    fix="Copy the folder again, whole.",
                )
            if weight_map.get(name, file_name) == file_name:
                tensors[name] = tensor
    return tensors


def _weight_map(index: Path) -> dict[str, str]:
    """Tensor -> name of the file beside the index that holds it."""
    content = read_json(index)
    weight_map = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError("has no weight_map of tensors and files", where=index, fix="Copy it again.")
    for name, file_name in weight_map.items():
        if (
            not isinstance(file_name, str)
            or file_name in ("", ".", "..")
            or Path(file_name).name != file_name
            or "\0" in file_name
        ):
            raise CheckpointError(
                f"weight_map.{name} = {file_name!r} is not the name of a file beside it",
                where=index,
                fix="Copy the folder again, whole.",
            )
    return weight_map


def _read_file(path: Path) -> dict[str, LazyTensor]:
    return dict(read_safetensors(path)) if path.suffix == ".safetensors" else _read_bin(path)


def _read_bin(path: Path) -> dict[str, LazyTensor]:
    content = load_pickled(path)
    if not isinstance(content, dict) or not all(
        isinstance(name, str) and isinstance(value, Tensor) for name, value in content.items()
    ):
        raise CheckpointError("holds something else than tensors by name", where=path)
    return {name: in_memory(tensor) for name, tensor in content.items()}
