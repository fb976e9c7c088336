"""Names and shapes of weights in another format and in ours: rules that are read in both directions.

A rule covers one tensor of theirs: it is one or several of ours joined along their first dimension
(the output features), perhaps transposed. ``*`` stands for a layer number.
"""

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from groundup.checkpoint.lazy import LazyTensor
from groundup.checkpoint.logical_tensors import find_mismatch, logical_shapes
from groundup.core.errors import CheckpointError
from groundup.models import ModelConfig


@dataclasses.dataclass(frozen=True)
class NameRule:
    """One tensor of theirs and what it is in ours.

    Attributes:
        theirs: Their name.
        ours: Our names, joined in this order.
        transposed: Whether theirs is [in, out], as in GPT-2's Conv1D, where ours is [out, in].
    """

    theirs: str
    ours: tuple[str, ...]
    transposed: bool = False


def rules_for(rules: Sequence[NameRule], names: Sequence[str]) -> list[NameRule]:
    """The rules of one model, layer numbers filled in, in the order of ``names``.

    Raises:
        KeyError: A name is in no rule, or a rule's other names are not in the model.
    """
    by_pattern = {pattern: rule for rule in rules for pattern in rule.ours}
    found: dict[str, NameRule] = {}
    for name in names:
        pattern, layer = _split_layer(name)
        if pattern not in by_pattern:
            raise KeyError(f"no rule for parameter {name!r}")
        rule = by_pattern[pattern]
        theirs = rule.theirs.replace("*", layer)
        ours = tuple(part.replace("*", layer) for part in rule.ours)
        found[theirs] = NameRule(theirs, ours, rule.transposed)
    missing = {part for rule in found.values() for part in rule.ours} - set(names)
    if missing:
        raise KeyError(f"parameters {sorted(missing)} are missing beside the ones that they are joined with")
    return list(found.values())


def to_theirs(rules: Sequence[NameRule], ours: Mapping[str, LazyTensor]) -> Iterator[tuple[str, LazyTensor]]:
    """Our tensors under their names and in their shapes."""
    for rule in rules_for(rules, list(ours)):
        parts = [ours[name] for name in rule.ours]
        shape = (sum(part.shape[0] for part in parts), *parts[0].shape[1:])
        yield (
            rule.theirs,
            LazyTensor(
                shape=shape[::-1] if rule.transposed else shape,
                dtype=parts[0].dtype,
                read=functools.partial(_joined, parts, rule.transposed),
            ),
        )


def to_ours(rule: NameRule, theirs: LazyTensor, rows: Sequence[int]) -> Iterator[tuple[str, LazyTensor]]:
    """One of their tensors as ours.

    Args:
        rule: Of this tensor, layer numbers filled in.
        theirs: The tensor.
        rows: First dimension of each of ours.

    Raises:
        ValueError: The tensor does not divide into these.
    """
    shape = theirs.shape[::-1] if rule.transposed else theirs.shape
    if shape[0] != sum(rows):
        raise ValueError(f"{rule.theirs} has shape {theirs.shape}, expected {sum(rows)} outputs")
    begin = 0
    for name, count in zip(rule.ours, rows, strict=True):
        read = functools.partial(_part, theirs, rule.transposed, begin, count)
        yield name, LazyTensor(shape=(count, *shape[1:]), dtype=theirs.dtype, read=read)
        begin += count


def match_weights(
    rules: Sequence[NameRule],
    config: ModelConfig,
    theirs: Mapping[str, LazyTensor],
    *,
    where: Path,
    settings: str,
) -> dict[str, LazyTensor]:
    """All tensors of a model as ours.

    Args:
        rules: Of the family and format.
        config: The model.
        theirs: Its tensors by their names.
        where: The file or folder.
        settings: What in it tells the config, for errors.

    Raises:
        CheckpointError: Tensors are missing, unexpected or of another shape.
    """
    rows = {name: shape[0] for name, shape in logical_shapes(config).items()}
    ruled = {rule.theirs: rule for rule in rules_for(rules, list(rows))}
    if mismatch := find_mismatch(ruled.keys(), theirs.keys()):
        raise CheckpointError(
            f"the weights are not those of {settings} ({mismatch})",
            where=where,
            fix=f"Check that {settings} and the weights belong together and are complete.",
        )
    weights: dict[str, LazyTensor] = {}
    for name, rule in ruled.items():
        try:
            weights.update(to_ours(rule, theirs[name], [rows[part] for part in rule.ours]))
        except ValueError as error:
            raise CheckpointError(f"does not fit {settings}: {error}", where=where) from None
    return weights


def _joined(parts: Sequence[LazyTensor], transposed: bool) -> Tensor:
    tensors = [part.read() for part in parts]
    tensor = torch.cat(tensors) if len(tensors) > 1 else tensors[0]
    return (tensor.T if transposed else tensor).contiguous()


def _part(theirs: LazyTensor, transposed: bool, begin: int, count: int) -> Tensor:
    tensor = theirs.read()
    return (tensor.T if transposed else tensor)[begin : begin + count]


def _split_layer(name: str) -> tuple[str, str]:
    """``layers.3.norm.weight`` -> (``layers.*.norm.weight``, ``3``)."""
    head, _, rest = name.partition(".")
    if head != "layers":
        return name, ""
    layer, _, rest = rest.partition(".")
    return f"layers.*.{rest}", layer
