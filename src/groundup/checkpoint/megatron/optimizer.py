"""The state of Megatron-LM's optimizers: Adam's moments and, in 16-bit training, the weights in fp32.

States are numbered, not named. Their order is that in which Megatron-LM's modules name the parameters, within
each group: first those with weight decay, then biases and one-dimensional weights (``get_param_groups`` in
megatron/optimizer/__init__.py). The distributed optimizer keeps flat buffers, filled from their end
(``DistributedDataParallel.__init__`` in megatron/model/distributed.py). Sources: 992da75.

Both apex's and PyTorch's Adam load what is written here: the one wants the number of updates by group, the
other by parameter; fp32 weights lie as in ``Float16OptimizerWithFloat16Params.state_dict``
(megatron/optimizer/optimizer.py). Only the legacy modules' order is vouched for, so nothing is written under
the names of megatron.core.
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from groundup.checkpoint.lazy import LazyModel, LazyTensor, in_memory
from groundup.checkpoint.megatron.loss_scale import loss_scale_entry
from groundup.checkpoint.megatron.parameters import Naming
from groundup.checkpoint.megatron.ranks import Rank
from groundup.checkpoint.safe_pickle.unpickle import load_pickled
from groundup.core.errors import CheckpointError

ENTRIES = ("exp_avg", "exp_avg_sq")
_WRITTEN = {*ENTRIES, "step"}
_DISTRIBUTED_FILE = "distrib_optim.pt"
_WITHOUT = "Convert without the optimizer's state: --no-moments."

Chunks = Sequence[Mapping[str, Tensor]]
"""The tensors of each part of the model on a rank, by canonical names."""
Share = Mapping[str, LazyTensor]
"""What one rank holds, by the names that are written."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RankOptimizer:
    """A rank's optimizer: weights in fp32 (none where the model's are), moments by kind, updates done."""

    masters: Chunks
    entries: Mapping[str, Chunks]
    step: int | None


def has_optimizer(rank: Rank) -> bool:
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


def read_optimizer(rank: Rank, chunks: Chunks) -> RankOptimizer:
    """All that the optimizer of a rank keeps, for parameters in the order of its file.

    Raises:
        CheckpointError: The optimizer is none that is known, or its state does not fit the model's.
    """
    masters = read_masters(rank, chunks)
    distributed = rank.path.parent / _DISTRIBUTED_FILE
    optimizer = _optimizer(rank)
    groups = _param_groups(optimizer, rank.path)
    if distributed.is_file():
        entries = {entry: _distributed(distributed, entry, chunks) for entry in ENTRIES}
        return RankOptimizer(masters=masters, entries=entries, step=_step(groups, {}))
    states = _inner(optimizer).get("state", {})
    if not isinstance(states, dict) or not all(isinstance(state, dict) for state in states.values()):
        raise CheckpointError("its optimizer's state is no dict of dicts", where=rank.path, fix=_WITHOUT)
    order = list(_in_groups(chunks, groups))
    numbers = [number for group in groups for number in group.get("params", [])]
    entries = {}
    for entry in ENTRIES:
        tensors = [states.get(number, {}).get(entry) for number in numbers]
        entries[entry] = _named(chunks, order, tensors, rank.path, entry)
    return RankOptimizer(masters=masters, entries=entries, step=_step(groups, states))


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


def find_unwritable_state(stored: LazyModel, naming: Naming) -> str | None:
    """Why the optimizer's state of a model cannot be written, or None."""
    if naming != "legacy":
        return f"Megatron-LM's optimizers number parameters, in an order that is not known for {naming} names"
    entries = {name.rpartition("/")[2] for name in stored.moments}
    if entries - _WRITTEN:
        return f"the optimizer was not AdamW: it keeps {', '.join(sorted(entries))}"
    lacking = [
        name for name in stored.weights if any(f"{name}/{kind}" not in stored.moments for kind in _WRITTEN)
    ]
    if lacking:
        return f"some weights have no moments, such as {lacking[0]}"
    if not stored.step:
        return "the number of training steps is not known, without which Megatron-LM loads weights alone"
    if len({int(stored.moments[f"{name}/step"].read()) for name in stored.weights}) > 1:
        return "weights were updated in different numbers of steps"
    return None


def adam_args(stored: LazyModel) -> dict[str, Any]:
    """The arguments by which Megatron-LM builds the same Adam: the run's own, or else its defaults."""
    ours = {"lr": "lr", "adam_beta1": "beta1", "adam_beta2": "beta2", "adam_eps": "eps"}
    ours["weight_decay"] = "weight_decay"
    defaults = {"lr": 0.0, "adam_beta1": 0.9, "adam_beta2": 0.999, "adam_eps": 1e-8, "weight_decay": 0.01}
    values = {
        theirs: stored.optimizer.get(name, stored.megatron_args.get(theirs, defaults[theirs]))
        for theirs, name in ours.items()
    }
    return {**values, "optimizer": "adam", "use_distributed_optimizer": False}


def optimizer_entry(
    *,
    weights: Share,
    moments: Mapping[str, Share],
    masters: Share,
    step: int,
    args: Mapping[str, Any],
    loss_scale: Mapping[str, Any],
) -> dict[str, Any]:
    """The ``optimizer`` of one rank's file, for its parameters in their order.

    Args:
        weights: The parameters.
        moments: Theirs, by "exp_avg" and "exp_avg_sq".
        masters: The parameters in fp32; empty where they are that already.
        step: Updates done.
        args: Of ``adam_args``.
        loss_scale: State of the loss scaler; empty where there is none.
    """
    decayed = [name for name in weights if len(weights[name].shape) > 1 and not name.endswith(".bias")]
    groups = [decayed, [name for name in weights if name not in set(decayed)]]
    groups = [group for group in groups if group]
    order = [name for group in groups for name in group]
    state = {
        number: {
            "step": in_memory(torch.tensor(float(step))),
            **{kind: moments[kind][name] for kind in ENTRIES},
        }
        for number, name in enumerate(order)
    }
    param_groups = []
    for names in groups:
        decays = float(names is groups[0] and bool(decayed))
        param_groups.append(
            {
                "lr": args["lr"],
                "bias_correction": True,
                "betas": (args["adam_beta1"], args["adam_beta2"]),
                "eps": args["adam_eps"],
                "weight_decay": args["weight_decay"] * decays,
                "wd_mult": decays,
                "lr_mult": 1.0,
                "step": step,
                "params": [order.index(name) for name in names],
            }
        )
    inner = {"state": state, "param_groups": param_groups}
    if not masters:
        return inner
    return {
        "optimizer": inner,
        "fp32_from_fp16_params": [[masters[name] for name in group] for group in groups],
        **loss_scale_entry(loss_scale),
    }


def scheduler_entry(stored: LazyModel, args: Mapping[str, Any]) -> dict[str, Any]:
    """The ``opt_param_scheduler``: where it stands. The rest is the new run's, by its --override option."""
    total = max(stored.samples, 1)
    kept = stored.megatron_args
    return {
        "max_lr": args["lr"],
        "lr_warmup_steps": 0,
        "num_steps": stored.samples if stored.updated_samples is None else stored.updated_samples,
        "lr_decay_style": kept.get("lr_decay_style", "constant"),
        "lr_decay_steps": total,
        "min_lr": kept.get("min_lr", 0.0),
        "start_wd": args["weight_decay"],
        "end_wd": args["weight_decay"],
        "wd_incr_style": "constant",
        "wd_incr_steps": total,
    }
