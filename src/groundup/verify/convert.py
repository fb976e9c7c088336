"""Does a model stay the same in every format? Each is written, read back, and compared with the original."""

import dataclasses
import importlib
import importlib.util
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from groundup.checkpoint.formats import FORMATS, CheckpointFormat, Variant, format_named, open_lazy
from groundup.checkpoint.lazy import DtypeName, LazyModel, LazyTensor, in_dtype, torch_dtype
from groundup.checkpoint.parity import TOLERANCE, Parity, Reference
from groundup.core.errors import ConfigError, GroundupError
from groundup.core.files import checksum, require_free_space
from groundup.core.vocabulary import padded_vocab_size

_COPIES = 3
"""On the disk at a time: in the circle its first, the one that is read and the one that is written."""

_PADDING = 256
"""Of the vocabulary of Megatron-LM's models at a tensor parallelism of 2, the most that a format pads."""
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
        bits_equal: Whether all weights, and the optimizer's state where kept, are the original's to the bit;
            None where none came back.
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


def verify_convert(stored: LazyModel, scratch: Path, *, on_write: OnWrite) -> Iterator[Converted]:
    """Takes a model through every format and back.

    Args:
        stored: The model, with its optimizer's state if it has any.
        scratch: An existing folder, in which up to three copies of the model lie at a time.
        on_write: Told the bytes of each tensor when it is written.

    Raises:
        MachineError: The disk is too small.
    """
    require_free_space(scratch, _needed_bytes(stored), "the conversion of the model through every format")
    originals: dict[DtypeName | None, Reference] = {}
    tour: list[tuple[CheckpointFormat, Variant]] = []
    for entry in FORMATS:
        for variant in entry.codec.variants(stored):
            wanted = in_dtype(stored, torch_dtype(variant.dtype)) if variant.dtype else stored
            wanted = entry.codec.kept(wanted, **variant.options)
            if variant.dtype not in originals:
                originals[variant.dtype] = Reference(wanted)
            yield _written(entry, variant, wanted, originals[variant.dtype], scratch / "one", on_write)
            shutil.rmtree(scratch / "one", ignore_errors=True)
            if variant.tour is not None:
                tour.append((entry, variant))
    huggingface = format_named("hf")
    wanted = huggingface.codec.kept(stored)
    yield _there_and_back(tour, wanted, originals[None], scratch, on_write)
    yield _in_transformers(wanted, originals[None], scratch / "one", on_write)
    if huggingface.codec.detect(stored.source):
        yield _computed_by_transformers(_SOURCE, stored.source, wanted, originals[None])


def _written(
    entry: CheckpointFormat,
    variant: Variant,
    wanted: LazyModel,
    original: Reference,
    folder: Path,
    on_write: OnWrite,
) -> Converted:
    name = f"{entry.name}{variant.label}"
    try:
        entry.codec.write(wanted, folder, on_write=on_write, **variant.options)
    except ConfigError as error:
        if entry.holds_all:
            return Converted(path=name, problem=str(error))
        return Converted(path=name, omitted=f"refused: {error.what}")
    except GroundupError as error:
        return Converted(path=name, problem=str(error))
    return _read_back(name, wanted, original, folder)


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


def _there_and_back(
    tour: Sequence[tuple[CheckpointFormat, Variant]],
    stored: LazyModel,
    original: Reference,
    scratch: Path,
    on_write: OnWrite,
) -> Converted:
    """From the first format through all others to the last, and back: the last file must be the first."""
    steps = [*tour, *tour[-2::-1]]
    name = " > ".join(f"{entry.name}{variant.tour}" for entry, variant in steps)
    folders = [scratch / f"step{number}" for number in range(len(steps))]
    try:
        for number, (entry, variant) in enumerate(steps):
            model = open_lazy(folders[number - 1]) if number else stored
            entry.codec.write(model, folders[number], on_write=on_write, **variant.options)
            if number > 1:
                shutil.rmtree(folders[number - 1])
        found = _read_back(name, stored, original, folders[-1])
        if checksum(folders[0] / _WEIGHTS) != checksum(folders[-1] / _WEIGHTS) and not found.problem:
            found = dataclasses.replace(found, problem=f"its {_WEIGHTS} is not the first byte for byte")
    except ConfigError as error:
        return Converted(path=name, omitted=f"refused: {error.what}")
    except GroundupError as error:
        return Converted(path=name, problem=str(error))
    finally:
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
    return found


def _in_transformers(stored: LazyModel, original: Reference, folder: Path, on_write: OnWrite) -> Converted:
    """What Hugging Face's own implementation computes from what is written for it."""
    try:
        format_named("hf").codec.write(stored, folder, on_write=on_write)
        return _computed_by_transformers(_TRANSFORMERS, folder, stored, original)
    except ConfigError as error:
        return Converted(path=_TRANSFORMERS, omitted=f"refused: {error.what}")
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
    padding = padded_vocab_size(stored.config.vocab_size, _PADDING) - stored.config.vocab_size
    weights = sum(tensor.size_bytes for tensor in stored.weights.values())
    weights += 2 * padding * stored.config.hidden_size * biggest
    moments = sum(tensor.size_bytes for tensor in stored.moments.values())
    return max(_COPIES * weights, weights + moments) + (64 << 20)
