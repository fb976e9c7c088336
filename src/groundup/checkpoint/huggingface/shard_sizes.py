"""How many files the weights of a Hugging Face folder become: a number of them, or a largest size."""

import dataclasses
import re
from collections.abc import Mapping

from groundup.checkpoint.lazy import LazyTensor
from groundup.core.errors import ConfigError

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


ONE_FILE = Sharding()


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
