"""What Megatron-LM's optimizers keep: Adam's moments and, in 16-bit training, the weights in fp32.

The states are numbered, not named. Their order is that of the parameters within each group: first those
with weight decay, then biases and one-dimensional weights (``get_param_groups`` in
megatron/optimizer/__init__.py). The distributed optimizer keeps flat buffers, filled from their end
(``DistributedDataParallel.__init__`` in megatron/model/distributed.py). Sources: 992da75.
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from groundup.checkpoint.megatron.ranks import Rank
from groundup.checkpoint.safe_pickle.unpickle import load_pickled
from groundup.core.errors import CheckpointError

ENTRIES = ("exp_avg", "exp_avg_sq")
_DISTRIBUTED_FILE = "distrib_optim.pt"
_WITHOUT = "Convert without the optimizer's state: --no-moments."

Chunks = Sequence[Mapping[str, Tensor]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class RankMoments:
    """The optimizer's tensors of one rank, for each of its parts of the model by canonical names.

    Attributes:
        masters: Weights in fp32; empty where the parameters themselves are.
        entries: By "exp_avg" and "exp_avg_sq".
        step: Updates done; None where it is not told.
    """

    masters: Chunks
    entries: Mapping[str, Chunks]
    step: int | None


def has_moments(rank: Rank) -> bool:
    """Whether a rank's files hold the state of an optimizer."""
    found = rank.content.get("optimizer")
    kept = bool(found) if isinstance(found, dict) else found is not None
    return kept or (rank.path.parent / _DISTRIBUTED_FILE).is_file()


def read_masters(rank: Rank, chunks: Chunks) -> Chunks:
    """The weights in fp32 that a 16-bit training keeps; empty where there are none.

    Raises:
        CheckpointError: The optimizer's state does not fit the model's.
    """
    distributed = rank.path.parent / _DISTRIBUTED_FILE
    if distributed.is_file():
        return _distributed(distributed, "param", chunks)
    optimizer = _optimizer(rank)
    groups = optimizer.get("fp32_from_fp16_params")
    if groups is None or groups == []:
        return ()
    if not isinstance(groups, list):
        raise CheckpointError("its fp32_from_fp16_params are no list", where=rank.path, fix=_WITHOUT)
    order = list(_in_groups(chunks, _param_groups(optimizer, rank.path)))
    tensors = [tensor for group in groups if isinstance(group, list) for tensor in group]
    return _named(chunks, order, tensors, rank.path, "fp32_from_fp16_params")


def read_moments(rank: Rank, chunks: Chunks) -> RankMoments:
    """All that the optimizer of a rank keeps.

    Args:
        rank: With moments.
        chunks: Its parameters by canonical names, in their order.

    Raises:
        CheckpointError: The optimizer is none that is known, or its state does not fit the model's.
    """
    masters = read_masters(rank, chunks)
    distributed = rank.path.parent / _DISTRIBUTED_FILE
    optimizer = _optimizer(rank)
    groups = _param_groups(optimizer, rank.path)
    if distributed.is_file():
        entries = {entry: _distributed(distributed, entry, chunks) for entry in ENTRIES}
        return RankMoments(masters=masters, entries=entries, step=_step(groups, {}))
    states = _inner(optimizer).get("state", {})
    if not isinstance(states, dict) or not all(isinstance(state, dict) for state in states.values()):
        raise CheckpointError("its optimizer's state is no dict of dicts", where=rank.path, fix=_WITHOUT)
    order = list(_in_groups(chunks, groups))
    numbers = [number for group in groups for number in group.get("params", [])]
    entries = {}
    for entry in ENTRIES:
        tensors = [states.get(number, {}).get(entry) for number in numbers]
        entries[entry] = _named(chunks, order, tensors, rank.path, entry)
    return RankMoments(masters=masters, entries=entries, step=_step(groups, states))


def _optimizer(rank: Rank) -> Mapping[str, Any]:
    found = rank.content.get("optimizer")
    return found if isinstance(found, dict) else {}


def _inner(optimizer: Any) -> Mapping[str, Any]:
    inner = optimizer.get("optimizer", optimizer) if isinstance(optimizer, dict) else {}
    return inner if isinstance(inner, dict) else {}


def _param_groups(optimizer: Any, path: Path) -> list[dict[str, Any]]:
    groups = _inner(optimizer).get("param_groups")
    if not isinstance(groups, list) or not all(_is_group(group) for group in groups):
        raise CheckpointError(
            "its optimizer is of a kind that is not known (no param_groups)", where=path, fix=_WITHOUT
        )
    return groups


def _is_group(group: Any) -> bool:
    return (
        isinstance(group, dict)
        and isinstance(group.get("params", []), list)
        and all(type(number) is int for number in group.get("params", []))
        and isinstance(group.get("wd_mult", 0), int | float)
    )


def _in_groups(chunks: Chunks, groups: Sequence[Mapping[str, Any]]) -> Iterator[tuple[int, str]]:
    """Chunk and name of each parameter in the order of the optimizer's numbers."""
    for index, group in enumerate(groups):
        decays = group["wd_mult"] > 0 if "wd_mult" in group else index == 0
        for number, chunk in enumerate(chunks):
            for name, tensor in chunk.items():
                if decays == (tensor.ndim > 1 and not name.endswith(".bias")):
                    yield number, name


def _named(
    chunks: Chunks, order: Sequence[tuple[int, str]], tensors: Sequence[Any], path: Path, what: str
) -> Chunks:
    named: list[dict[str, Tensor]] = [{} for _ in chunks]
    fits = len(order) == len(tensors) == sum(len(chunk) for chunk in chunks)
    for (number, name), tensor in zip(order, tensors, strict=False):
        fits = fits and isinstance(tensor, Tensor) and tensor.shape == chunks[number][name].shape
        named[number][name] = tensor
    if not fits:
        raise CheckpointError(
            f"the optimizer's {what} do not fit the model: {len(tensors)} for {len(order)} parameters,"
            " or of other shapes",
            where=path,
            fix=_WITHOUT,
        )
    return named


def _step(groups: Sequence[Mapping[str, Any]], states: Mapping[Any, Any]) -> int | None:
    for place in (*groups, *states.values()):
        step = place.get("step")
        if isinstance(step, Tensor) and step.numel() == 1:
            step = step.item()
        if isinstance(step, int | float) and math.isfinite(step):
            return int(step)
    return None


def _distributed(path: Path, entry: str, chunks: Chunks) -> Chunks:
    """Views of the flat buffers: parameters lie in reverse order, padding is at the end."""
    content = load_pickled(path)
    found: list[dict[str, Tensor]] = []
    for number, chunk in enumerate(chunks):
        buffers = content.get(number) if isinstance(content, dict) else None
        if not isinstance(buffers, dict) or len(buffers) != 1:
            raise CheckpointError(
                f"holds no buffer, or several, for part {number} of the model", where=path, fix=_WITHOUT
            )
        [buffer] = buffers.values()
        flat = buffer.get(entry)
        end = sum(tensor.numel() for tensor in chunk.values())
        if not isinstance(flat, Tensor) or flat.ndim != 1 or flat.numel() < end:
            raise CheckpointError(
                f"its {entry} holds fewer values than the model has parameters", where=path, fix=_WITHOUT
            )
        views: dict[str, Tensor] = {}
        for name, tensor in chunk.items():
            views[name] = flat[end - tensor.numel() : end].view(tensor.shape)
            end -= tensor.numel()
        found.append(views)
    return found
