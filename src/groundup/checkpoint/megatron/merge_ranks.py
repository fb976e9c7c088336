"""Our tensors out of the pieces that Megatron-LM's ranks hold."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from groundup.checkpoint.families.name_rules import NameRule, rules_for
from groundup.checkpoint.lazy import LazyTensor
from groundup.checkpoint.logical_tensors import find_mismatch, logical_shapes
from groundup.checkpoint.megatron.parameters import (
    HEAD,
    Packing,
    fused_shape,
    layer_of,
    rules,
    split_dim,
    with_layer,
)
from groundup.core.errors import CheckpointError
from groundup.models import ModelConfig

_EMBEDDING = "embed.tokens.weight"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stage:
    """One stage of the pipeline (or part of one, under a virtual pipeline), as its ranks hold it.

    Attributes:
        paths: The file of each tensor-parallel rank.
        chunks: The tensors of each, by canonical names; layers numbered from 0.
        first_layer: Number in the model of the layer that is 0 here.
        num_layers: Layers here.
    """

    paths: Sequence[Path]
    chunks: Sequence[Mapping[str, LazyTensor]]
    first_layer: int
    num_layers: int


def merge(
    stages: Sequence[Stage], config: ModelConfig, *, version: float, rows: int
) -> dict[str, LazyTensor]:
    """All tensors of the model by our names, whole, without vocabulary padding.

    Args:
        stages: In the order of their layers; the first has the embedding, the last norm and head.
        config: The model.
        version: Of the layout of queries, keys and values, see ``Packing``.
        rows: Of the padded embedding.

    Raises:
        CheckpointError: A tensor is missing, unexpected (with the nearest name) or of the wrong shape.
            Reading raises one too, where ranks differ in what they should share.
    """
    packing = Packing(config=config, version=version)
    shapes = logical_shapes(config)
    ruled = rules_for(rules(config), list(shapes))
    vocabulary = {"embed.tokens.weight", "head.weight"}
    whole = {n: (rows, *shape[1:]) if n in vocabulary else shape for n, shape in shapes.items()}
    tp = len(stages[0].chunks)
    merged: dict[str, LazyTensor] = {}
    for index, stage in enumerate(stages):
        wanted = {
            with_layer(rule.theirs, layer - stage.first_layer) if layer is not None else rule.theirs: rule
            for rule in ruled
            if _belongs(rule, layer := layer_of(rule.theirs), stage, index, len(stages))
        }
        copies = {HEAD} if config.tied_embedding else set()
        for path, chunk in zip(stage.paths, stage.chunks, strict=True):
            _require_names(chunk.keys() - copies, set(wanted), path)
            for name, rule in wanted.items():
                expected = fused_shape(rule, [whole[part] for part in rule.ours], config, tp)
                if chunk[name].shape != expected:
                    raise CheckpointError(
                        f"{name} has shape {chunk[name].shape}, expected {expected}"
                        f" (tensor parallelism {tp})",
                        where=path,
                        fix="Check that the files belong together, and --tokenizer or --vocab-size.",
                    )
        for name, rule in wanted.items():
            pieces = _Pieces(rule=rule, name=name, stage=stage, packing=packing, config=config)
            for part, ours in enumerate(rule.ours):
                merged[ours] = LazyTensor(
                    shape=shapes[ours],
                    dtype=stage.chunks[0][name].dtype,
                    read=_Whole(pieces=pieces, number=part, rows=shapes[ours][0]),
                )
    if config.tied_embedding and HEAD in stages[-1].chunks[0]:
        merged[_EMBEDDING] = dataclasses.replace(
            merged[_EMBEDDING], read=_Tied(embedding=merged[_EMBEDDING], stage=stages[-1])
        )
    return {name: merged[name] for name in shapes}


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Pieces:
    """One tensor of theirs on all ranks."""

    rule: NameRule
    name: str
    stage: Stage
    packing: Packing
    config: ModelConfig

    def whole(self, part: int) -> Tensor:
        """One of our tensors in it."""
        tensors = [
            self.packing.unpack(self.rule, chunk[self.name].read())[part] for chunk in self.stage.chunks
        ]
        dim = split_dim(self.rule.ours[part], self.config)
        if dim is not None:
            return torch.cat(tensors, dim) if len(tensors) > 1 else tensors[0]
        for path, tensor in zip(self.stage.paths[1:], tensors[1:], strict=True):
            if not torch.equal(tensors[0], tensor):
                difference = (tensors[0].float() - tensor.float()).abs().max().item()
                raise CheckpointError(
                    f"{self.name} differs from that of {self.stage.paths[0].parent.name} by up to"
                    f" {difference:.1e}, though tensor-parallel ranks share it",
                    where=path,
                    fix="Copy the folders of one checkpoint.",
                )
        return tensors[0]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Whole:
    pieces: _Pieces
    number: int  # "part" would be taken for that of a PartReader
    rows: int

    def __call__(self) -> Tensor:
        return self.pieces.whole(self.number)[: self.rows]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Tied:
    """The embedding, checked against the copy of it that the last stage uses as head."""

    embedding: LazyTensor
    stage: Stage

    def __call__(self) -> Tensor:
        embedding = self.embedding.read()
        head = torch.cat([chunk[HEAD].read() for chunk in self.stage.chunks])[: embedding.shape[0]]
        if not torch.equal(embedding, head.to(embedding.dtype)):
            raise CheckpointError(
                "the last stage's copy of the embedding, which serves as head, differs from the embedding",
                where=self.stage.paths[0],
                fix="Copy the folders of one checkpoint; if they are, the training run was at fault.",
            )
        return embedding


def _belongs(rule: NameRule, layer: int | None, stage: Stage, index: int, num_stages: int) -> bool:
    if layer is not None:
        return stage.first_layer <= layer < stage.first_layer + stage.num_layers
    return index == (0 if rule.theirs.startswith("embedding.") else num_stages - 1)


def _require_names(found: set[str], wanted: set[str], path: Path) -> None:
    if mismatch := find_mismatch(wanted, found):
        raise CheckpointError(
            f"its tensors are not those of the model that its args describe ({mismatch})",
            where=path,
            fix="Names are given as those of megatron.core. A model with these parts is not supported, or a"
            " file is of another model.",
        )
