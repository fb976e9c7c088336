"""Does a model stay the same in every format? Each is written, read back, and compared with the original."""

import dataclasses
import importlib
import importlib.util
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from groundup.checkpoint.families import family_of, with_biases
from groundup.checkpoint.formats import open_lazy
from groundup.checkpoint.huggingface.weight_files import Sharding
from groundup.checkpoint.huggingface.weights import is_huggingface, write_stored
from groundup.checkpoint.lazy import LazyModel, LazyTensor, in_dtype, without_moments
from groundup.checkpoint.megatron.args import padded_rows
from groundup.checkpoint.megatron.optimizer import why_without_moments
from groundup.checkpoint.megatron.parameters import Naming
from groundup.checkpoint.megatron.write import require_divides, write_megatron
from groundup.checkpoint.native.model import write_native
from groundup.checkpoint.parity import TOLERANCE, Parity, Reference
from groundup.core.errors import ConfigError, GroundupError
from groundup.core.files import checksum, require_free_space
from groundup.models import ModelConfig

_COPIES = 3
"""On the disk at a time: in the circle its first, the one that is read and the one that is written."""

_WEIGHTS = "model.safetensors"
_TRANSFORMERS = "hf, computed by transformers"
_SOURCE = "the source, computed by transformers"

OnWrite = Callable[[float], None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Converted:
    """What became of a model on one path through the formats.

    Attributes:
        path: Its name.
        parity: Of the logits with the original's; None where they were not computed.
        bits_equal: Whether all weights (and kept moments) are those of the original to the bit; None where
            no weights came back.
        problem: What is wrong beside that; empty when nothing is.
        omitted: Why the path was not taken; empty when it was.
    """

    path: str
    parity: Parity | None = None
    bits_equal: bool | None = None
    problem: str = ""
    omitted: str = ""

    @property
    def is_right(self) -> bool:
        """Whether the model came back the same, or there was no path to take."""
        close = self.parity is None or self.parity.within(TOLERANCE)
        return not self.problem and self.bits_equal is not False and close


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Path:
    name: str
    write: Callable[..., object]  # of the model, the folder and on_write
    keeps_moments: bool = False
    dtype: torch.dtype | None = None
    biased: bool = True  # a format that knows no GPT-2 without biases
    refuses: bool = False  # a format that does not know all models, and says so


def verify_convert(stored: LazyModel, scratch: Path, *, on_write: OnWrite) -> Iterator[Converted]:
    """Takes a model through every format and back.

    Args:
        stored: The model, with its moments if it has any.
        scratch: An existing folder, in which up to three copies of the model lie at a time.
        on_write: Told the bytes of each tensor when it is written.

    Raises:
        MachineError: The disk is too small.
    """
    require_free_space(scratch, _needed_bytes(stored), "the conversion of the model through every format")
    originals: dict[torch.dtype | None, Reference] = {}
    for path in _paths(stored):
        wanted = in_dtype(stored, path.dtype) if path.dtype else stored
        wanted = with_biases(wanted) if path.biased else wanted
        wanted = wanted if path.keeps_moments else without_moments(wanted)
        if path.dtype not in originals:
            originals[path.dtype] = Reference(wanted)
        write = partial(path.write, on_write=on_write)
        yield _taken(path, write, wanted, originals[path.dtype], scratch / "one")
        shutil.rmtree(scratch / "one", ignore_errors=True)
    wanted = without_moments(with_biases(stored))
    yield _circle(wanted, originals[None], scratch, on_write)
    yield _in_transformers(wanted, originals[None], scratch / "one", on_write)
    if is_huggingface(stored.source):
        yield _computed_by_transformers(_SOURCE, stored.source, wanted, originals[None])


def _paths(stored: LazyModel) -> Iterator[_Path]:
    yield _Path(name="hf", write=write_stored)
    yield _Path(name="hf, 3 shards", write=partial(write_stored, sharding=Sharding(num_files=3)))
    yield _Path(name="hf, bfloat16 (from the rounded)", write=write_stored, dtype=torch.bfloat16)
    yield _Path(name="native", write=write_native, keeps_moments=True, biased=False)
    tp, pp = largest_degrees(stored.config)
    namings: tuple[tuple[Naming, int, int], ...] = (("legacy", 1, 1), ("core", 1, 1), ("core-fused", 1, 1))
    if (tp, pp) != (1, 1):
        namings = (("legacy", 1, 1), ("legacy", tp, pp), ("core", tp, pp), ("core-fused", tp, pp))
    for naming, ranks, stages in namings:
        write = partial(write_megatron, tp=ranks, pp=stages, naming=naming)
        yield _Path(
            name=f"megatron {naming} {ranks}x{stages}",
            write=write,
            keeps_moments=not why_without_moments(with_biases(stored), naming),
            refuses=True,
        )


def largest_degrees(config: ModelConfig) -> tuple[int, int]:
    """Tensor parallelism and stages of Megatron-LM's, 2 where the model divides and else 1."""

    def divides(tp: int, pp: int) -> bool:
        try:
            require_divides(config, tp=tp, pp=pp)
        except ConfigError:
            return False
        return True

    return 2 if divides(2, 1) else 1, 2 if divides(1, 2) else 1


def _taken(
    path: _Path, write: Callable[..., object], wanted: LazyModel, original: Reference, folder: Path
) -> Converted:
    try:
        write(wanted, folder)
    except ConfigError as error:
        if not path.refuses:
            return Converted(path=path.name, problem=str(error))
        return Converted(path=path.name, omitted=f"refused: {error.what}")
    except GroundupError as error:
        return Converted(path=path.name, problem=str(error))
    return _read_back(path.name, wanted, original, folder)


def _read_back(name: str, wanted: LazyModel, original: Reference, folder: Path) -> Converted:
    try:
        found = open_lazy(folder, moments=bool(wanted.moments))
        different = [
            *differing(wanted.weights, found.weights),
            *(differing(wanted.moments, found.moments) if wanted.moments else ()),
        ]
        problem = f"{_listed(different)} came back different" if different else ""
        if found.config.max_sequence_length != wanted.config.max_sequence_length:
            problem = f"its length became {found.config.max_sequence_length}"
            return Converted(path=name, bits_equal=not different, problem=problem)
        if not original.same_ids(found):
            problem = "its tokenizer makes other ids"
        if lost := wanted.companions.lost_in(found.companions):
            problem = f"{_listed(lost)} came back different"
        parity = original.compare(found)
    except GroundupError as error:
        return Converted(path=name, problem=str(error))
    return Converted(path=name, parity=parity, bits_equal=not different, problem=problem)


def _circle(stored: LazyModel, original: Reference, scratch: Path, on_write: OnWrite) -> Converted:
    """From Hugging Face's format to ours, to Megatron-LM's, and back: the last file must be the first."""
    tp, pp = largest_degrees(stored.config)
    name = f"hf > native > megatron {tp}x{pp} > native > hf"
    naming: Naming = "core" if family_of(stored.config).megatron.why_not_legacy(stored.config) else "legacy"
    steps: tuple[Callable[..., object], ...] = (
        write_native,
        partial(write_megatron, tp=tp, pp=pp, naming=naming),
        write_native,
        write_stored,
    )
    first = before = scratch / "first"
    try:
        write_stored(stored, first, on_write=on_write)
        for number, write in enumerate(steps):
            after = scratch / f"after{number}"
            write(open_lazy(before), after, on_write=on_write)
            if before != first:
                shutil.rmtree(before)
            before = after
        found = _read_back(name, stored, original, before)
        if checksum(first / _WEIGHTS) != checksum(before / _WEIGHTS) and not found.problem:
            found = dataclasses.replace(found, problem=f"its {_WEIGHTS} is not the first byte for byte")
    except ConfigError as error:
        return Converted(path=name, omitted=f"refused: {error.what}")
    except GroundupError as error:
        return Converted(path=name, problem=str(error))
    finally:
        for folder in (first, *(scratch / f"after{number}" for number in range(len(steps)))):
            shutil.rmtree(folder, ignore_errors=True)
    return found


def _in_transformers(stored: LazyModel, original: Reference, folder: Path, on_write: OnWrite) -> Converted:
    """What Hugging Face's own implementation computes from what is written for it."""
    try:
        write_stored(stored, folder, on_write=on_write)
        return _computed_by_transformers(_TRANSFORMERS, folder, stored, original)
    except GroundupError as error:
        return Converted(path=_TRANSFORMERS, problem=str(error))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _computed_by_transformers(name: str, folder: Path, stored: LazyModel, original: Reference) -> Converted:
    """Whether ``transformers`` computes what groundup does, of a folder that holds the model."""
    if importlib.util.find_spec("transformers") is None:
        return Converted(path=name, omitted="not checked: pip install transformers")
    needed = 4 * sum(torch.Size(tensor.shape).numel() for tensor in stored.weights.values())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    if needed > memory:
        reason = f"not checked: needs {needed / 1e9:.1f} GB of memory, {memory / 1e9:.1f} GB are free"
        return Converted(path=name, omitted=reason)
    try:
        parity = original.compare_logits(partial(_transformers_logits, folder))
    except (ValueError, RuntimeError, OSError) as error:  # theirs, of a folder they refuse
        return Converted(path=name, problem=f"{type(error).__name__}: {error}")
    return Converted(path=name, parity=parity)


@torch.inference_mode()
def _transformers_logits(folder: Path, tokens_BT: Tensor) -> Tensor:
    transformers: Any = importlib.import_module("transformers")
    transformers.utils.logging.disable_progress_bar()
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    logits: Tensor = model.eval()(tokens_BT).logits
    return logits


def differing(wanted: Mapping[str, LazyTensor], found: Mapping[str, LazyTensor]) -> list[str]:
    """Names of tensors that are missing, added, or not equal in dtype, shape and every bit."""
    names = [name for name in wanted if name not in found]
    names += [name for name in found if name not in wanted]
    for name in wanted.keys() & found.keys():
        one, other = wanted[name], found[name]
        same_kind = (one.shape, one.dtype) == (other.shape, other.dtype)
        if not same_kind or not torch.equal(_bytes(one), _bytes(other)):
            names.append(name)
    return sorted(names)


def _bytes(tensor: LazyTensor) -> Tensor:
    return tensor.read().contiguous().flatten().view(torch.uint8)  # 0 and -0 differ, NaN equals itself


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{', '.join(names[:3])}{more}"


def _needed_bytes(stored: LazyModel) -> int:
    """On the disk: copies of the weights, or one with the moments, with the padding of the vocabulary."""
    biggest = max(tensor.dtype.itemsize for tensor in stored.weights.values())
    padding = padded_rows(stored.config.vocab_size, 2) - stored.config.vocab_size
    weights = sum(tensor.size_bytes for tensor in stored.weights.values())
    weights += 2 * padding * stored.config.hidden_size * biggest
    moments = sum(tensor.size_bytes for tensor in stored.moments.values())
    return max(_COPIES * weights, weights + moments) + (64 << 20)
