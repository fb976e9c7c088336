"""Tensor parallelism with sequence parallelism, derived from a model's axis table.

Shoeybi et al. 2019 (arXiv:1909.08053) cut each pair of matrices by columns, then by rows, and
Korthikanti et al. 2022 (arXiv:2205.05198, section 4.2) cut what lies between the pairs by tokens:

- ``heads``, ``kv_heads`` and ``ffn`` rows are sharded, and read all tokens;
- ``heads`` and ``ffn`` columns are sharded; their outputs are reduce-scattered over the tokens;
- ``vocab`` rows, of embedding and head, are sharded, also where they do not divide evenly;
- norms and position table are replicated, and work on T / tp tokens.

The stream between blocks is a plain tensor [B, T / tp, D]; after the final norm every rank has all
tokens, whose gradient is summed over the ranks, as ``linear_cross_entropy`` with a group wants it.
Grouped key/value heads that the ranks cannot divide are kept by all, who use those of their queries.

Shapes: B batch, T tokens, D model, V padded vocabulary, K kv heads, H head dim.
"""

from dataclasses import dataclass
from types import MethodType
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.distributed import ProcessGroup, all_reduce
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.functional import embedding

from groundup.core.errors import ConfigError
from groundup.models import ModelConfig, axes_of
from groundup.models.spec import dimensions_of

_TOKENS = 1  # the dimension of an activation that sequence parallelism cuts


def tensor_reasons(config: ModelConfig, tp: int, sequence_length: int) -> list[str]:
    """Returns why sizes do not divide by ``tp``, a sentence each.

    ``sequence_length`` counts the tokens of a row that reach the model on these ranks.
    """
    sizes = (
        ("num_heads", config.num_heads),
        ("ffn_size", config.ffn_size),
        ("sequence_length", sequence_length),
    )
    return [f"{name} {size} is not divisible by tp {tp}." for name, size in sizes if size % tp]


def apply_tensor_parallel(model: nn.Module, config: ModelConfig, mesh: DeviceMesh) -> None:
    """Applies tensor parallelism in place: all parameters become DTensors, sharded or replicated.

    The model, or a pipeline stage of it, is on meta or has the same weights on all ranks, and is not sharded
    otherwise. Dropout falls on each rank's own tokens or heads, so ranks need different random numbers. The
    mesh has one dimension.

    Raises:
        ConfigError: ``tensor_reasons`` has some.
    """
    assert mesh.ndim == 1, "tensor parallelism is over one dimension of a mesh"
    if reasons := tensor_reasons(config, mesh.size(), sequence_length=mesh.size()):
        raise ConfigError(" ".join(reasons), where="layout.tp", fix=f"Choose a divisor, not {mesh.size()}.")
    head, embed = getattr(model, "head", None), getattr(model, "embed", None)
    tied = head is not None and embed is not None and head.weight is embed.tokens.weight
    parallelize_module(model, mesh, _plan(model, config, mesh), src_data_rank=None)
    if tied:
        model.tie_weights()  # type: ignore[operator]  # a method of every model
    elif head is not None:
        _distribute(head, mesh, Shard(0))


def finish_gradients(model: nn.Module) -> None:
    """Sums the partial gradients of replicated parameters; collective.

    To be called once, after the last micro-batch and before the optimizer step. Under FSDP, which does the
    same at each backward pass, nothing is left to do.
    """
    parts: dict[tuple[ProcessGroup, torch.dtype], list[nn.Parameter]] = {}
    for parameter in model.parameters():
        gradient = parameter.grad
        if isinstance(gradient, DTensor) and any(p.is_partial() for p in gradient.placements):
            assert gradient.placements == (Partial(),), "only sums over a one-dimensional mesh are left open"
            key = gradient.device_mesh.get_group(), gradient.dtype
            parts.setdefault(key, []).append(parameter)
    for (group, _), parameters in parts.items():
        gradients = [cast(DTensor, parameter.grad) for parameter in parameters]
        locals_ = [gradient.to_local() for gradient in gradients]
        bucket = torch.cat([local.flatten() for local in locals_])
        all_reduce(bucket, group=group)
        sums = bucket.split([local.numel() for local in locals_])
        for parameter, gradient, total in zip(parameters, gradients, sums, strict=True):
            parameter.grad = DTensor.from_local(
                total.view(gradient.shape), gradient.device_mesh, [Replicate()], run_check=False
            )


@dataclass(frozen=True, kw_only=True)
class VocabularyShard:
    """This rank's rows of the output head (for ``linear_cross_entropy``) or the token embedding.

    Attributes:
        rows_VD: Rows [V of this rank, D]; their gradient flows to the parameter.
        group: Ranks that share the rows; None where this one has all.
        vocab_begin: Id of the first row.
    """

    rows_VD: Tensor
    group: ProcessGroup | None = None
    vocab_begin: int = 0


def vocabulary_shard(weight_VD: Tensor) -> VocabularyShard:
    """Returns this rank's rows of a head or embedding, sharded or not."""
    if not isinstance(weight_VD, DTensor):
        return VocabularyShard(rows_VD=weight_VD)
    assert weight_VD.placements == (Shard(0),), "apply_tensor_parallel cuts vocabularies by rows"
    mesh = weight_VD.device_mesh
    begin = first_vocabulary_row(weight_VD.shape[0], mesh.size(), mesh.get_local_rank())
    return VocabularyShard(rows_VD=weight_VD.to_local(), group=mesh.get_group(), vocab_begin=begin)


def first_vocabulary_row(rows: int, tp: int, rank: int) -> int:
    """Returns where a rank's rows of the vocabulary begin."""
    return min(-(-rows // tp) * rank, rows)


def kv_heads_of_rank(config: ModelConfig, tp: int, rank: int) -> int:
    """Returns how many key/value heads the attention of a rank has."""
    return len(_key_value_heads(config, tp, rank)) if config.num_kv_heads % tp else config.num_kv_heads // tp


def _plan(model: nn.Module, config: ModelConfig, mesh: DeviceMesh) -> dict[str, ParallelStyle]:
    """Returns the style of each module; the head has none, as only its weight is used."""
    axes = axes_of(config)
    plan: dict[str, ParallelStyle] = {}
    for name, module in model.named_modules():
        if not any(True for _ in module.parameters(recurse=False)) or name == "head":
            continue
        dimensions = dimensions_of(axes, f"{name}.weight")
        if dimensions == ("vocab", "embed"):
            plan[name] = _TokenTable()
        elif dimensions == ("position", "embed"):
            plan[name] = _PositionTable()
        elif dimensions == ("embed",):
            plan[name] = SequenceParallel(sequence_dim=_TOKENS) if "." in name else _FinalNorm()
        elif dimensions[0] == "embed":
            plan[name] = RowwiseParallel(output_layouts=Shard(_TOKENS))
        else:
            if dimensions[0] == "kv_heads" and config.num_kv_heads % mesh.size():
                plan[name] = _ReplicatedKeyValueHeads(config)
            else:
                plan[name] = ColwiseParallel()
            plan[name.rpartition(".")[0]] = _GatheredInput()
    return plan


def _distribute(module: nn.Module, mesh: DeviceMesh, placement: Placement) -> None:
    for name, parameter in list(module.named_parameters(recurse=False)):
        value = distribute_tensor(parameter.detach(), mesh, [placement], src_data_rank=None)
        module.register_parameter(name, nn.Parameter(value, requires_grad=parameter.requires_grad))


class _TokenTable(ParallelStyle):
    """Looks up the tokens of a rank's rows; the sum over ranks is scattered over the tokens.

    Not ``RowwiseParallel``, whose backward pass makes the gradient of the whole table on every rank.
    """

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        _distribute(module, device_mesh, Shard(0))
        # Bound to the module, so that a copy looks up its own table.
        module.forward = MethodType(_look_up_tokens, module)
        return module


def _look_up_tokens(table: nn.Embedding, tokens_BT: Tensor) -> Tensor:
    """Embeddings [B, T / tp, D] of this rank's tokens."""
    shard = vocabulary_shard(table.weight)
    mesh = cast(DTensor, table.weight).device_mesh
    length = tokens_BT.shape[_TOKENS]
    if length % mesh.size():
        raise ConfigError(f"sequence_length {length} is not divisible by tp {mesh.size()}", where="layout.tp")
    rows_BT = tokens_BT - shard.vocab_begin
    here_BT = (rows_BT >= 0) & (rows_BT < len(shard.rows_VD))
    found_BTD = embedding(rows_BT.where(here_BT, 0), shard.rows_VD)
    part_BTD = found_BTD.masked_fill(~here_BT.unsqueeze(-1), 0.0)
    return _moved(part_BTD, mesh, Partial(), Shard(_TOKENS))


class _PositionTable(ParallelStyle):
    """A replicated table, in which each rank looks up the positions of its tokens."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        def cut(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[DTensor]:
            positions_BT = DTensor.from_local(inputs[0], device_mesh, [Replicate()], run_check=False)
            return (positions_BT.redistribute(placements=[Shard(_TOKENS)]),)

        def localise(module: nn.Module, inputs: tuple[Any, ...], output_BTD: DTensor) -> Tensor:
            return output_BTD.to_local()

        _distribute(module, device_mesh, Replicate())
        module.register_forward_pre_hook(cut)
        module.register_forward_hook(localise)
        return module


class _GatheredInput(ParallelStyle):
    """Gathers all tokens for a module whose matrices are sharded by columns."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        def gather(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
            x_BTD, *others = inputs
            return _in_compute_dtype(x_BTD).redistribute(placements=[Replicate()]), *others

        module.register_forward_pre_hook(gather)
        return module


class _FinalNorm(SequenceParallel):
    """Normalizes a rank's tokens, then gathers all for its part of the vocabulary."""

    def __init__(self) -> None:
        super().__init__(sequence_dim=_TOKENS, use_local_output=True)

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        def gather(module: nn.Module, inputs: tuple[Any, ...], output_BTD: Tensor) -> Tensor:
            hidden_BTD: Tensor = _GatherTokens.apply(_in_compute_dtype(output_BTD), device_mesh)
            return hidden_BTD

        module = super()._apply(module, device_mesh)
        module.register_forward_hook(gather)
        return module


class _GatherTokens(torch.autograd.Function):
    """[B, T / tp, D] -> [B, T, D]; the ranks' gradients, each of its part of the vocabulary, are summed.

    ``DTensor.to_local`` returns a view, of which FSDP would warn at every step.
    """

    @staticmethod
    def forward(ctx: Any, part_BTD: Tensor, mesh: DeviceMesh) -> Tensor:
        ctx.mesh = mesh
        return _moved(part_BTD, mesh, Shard(_TOKENS), Replicate())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_BTD: Tensor) -> tuple[Tensor, None]:
        return _moved(gradient_BTD, ctx.mesh, Partial(), Shard(_TOKENS)), None


def _moved(local: Tensor, mesh: DeviceMesh, source: Placement, target: Placement) -> Tensor:
    """Redistributes a tensor, and returns this rank's part of it."""
    whole = DTensor.from_local(local, mesh, [source], run_check=False)
    moved: Tensor = whole.redistribute(placements=[target]).to_local()
    return moved


def _in_compute_dtype(x: Tensor) -> Any:
    """Casts to autocast's dtype where it is on: norms end in fp32, which would double what is sent."""
    device = x.device.type
    return x.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else x


class _ReplicatedKeyValueHeads(ParallelStyle):
    """Replicated key/value heads, of which each rank uses those of its query heads."""

    def __init__(self, config: ModelConfig) -> None:
        self.config = config

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        heads = _key_value_heads(self.config, device_mesh.size(), device_mesh.get_local_rank())
        head_dim = self.config.head_dim

        def choose(module: nn.Module, inputs: tuple[Any, ...], output: DTensor) -> Tensor:
            # Partial: each rank's gradient is of its own query heads.
            output_BTKH = output.to_local(grad_placements=[Partial()]).unflatten(-1, (-1, head_dim))
            chosen = torch.tensor(heads, device=output_BTKH.device)
            output_BTD: Tensor = output_BTKH.index_select(-2, chosen).flatten(-2)
            return output_BTD

        _distribute(module, device_mesh, Replicate())
        module.register_forward_hook(choose)
        return module


def _key_value_heads(config: ModelConfig, tp: int, rank: int) -> list[int]:
    """Returns the key/value heads of a rank's query heads: each once, if groups of equal size allow it."""
    num_queries, group = config.num_heads // tp, config.num_heads // config.num_kv_heads
    of_queries = [query // group for query in range(rank * num_queries, (rank + 1) * num_queries)]
    once = sorted(set(of_queries))
    evenly = [head for head in once for _ in range(num_queries // len(once))]
    return once if evenly == of_queries else of_queries
