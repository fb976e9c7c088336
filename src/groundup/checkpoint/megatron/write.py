"""Writes checkpoints that Megatron-LM loads, at any tensor and pipeline parallelism."""

import argparse
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from groundup.checkpoint.export import Check, ExportAbout, export_folder
from groundup.checkpoint.families import family_of, with_biases
from groundup.checkpoint.families.name_rules import NameRule, rules_for
from groundup.checkpoint.lazy import LazyModel, LazyTensor
from groundup.checkpoint.logical_tensors import logical_shapes
from groundup.checkpoint.megatron.args import DEFAULT_MULTIPLE, NULL_TOKENIZER, args_of, padded_rows
from groundup.checkpoint.megatron.optimizer import (
    ENTRIES,
    Share,
    adam_args,
    find_unwritable_state,
    optimizer_entry,
    scheduler_entry,
)
from groundup.checkpoint.megatron.parameters import (
    CURRENT_VERSION,
    EMBEDDING,
    HEAD,
    Naming,
    Packing,
    fused_shape,
    layer_of,
    nested,
    renamed,
    rules,
    split_dim,
    with_layer,
)
from groundup.checkpoint.megatron.ranks import RANK_FILE, RELEASE, TRACKER
from groundup.checkpoint.megatron.read import TOKENIZER
from groundup.checkpoint.write_torch import write_torch
from groundup.core.errors import ConfigError
from groundup.core.log import logger
from groundup.models import ModelConfig
from groundup.tokens.tokenizer.gpt2 import GPT2_FINGERPRINT

_MASTERS = "masters"


def write_megatron(
    stored: LazyModel,
    folder: Path,
    *,
    tp: int = 1,
    pp: int = 1,
    names: Naming = "legacy",
    masters: Mapping[str, LazyTensor] | None = None,
    on_write: Callable[[float], None] | None = None,
    check: Check | None = None,
) -> Path:
    """Writes one checkpoint; returns its folder, ``iter_NNNNNNN`` or ``release``.

    An AdamW's moments are written too, with the weights in fp32 beside weights of 16 bits; what another
    optimizer keeps is left out, with its reason logged.

    The vocabulary is padded as Megatron-LM pads it, with rows that are the mean of the others: it counts
    padded ids in its loss, to which these can add no more than log(1 + padding / vocabulary) (Jensen's
    inequality), where rows of 0 would outweigh the logits of a GPT-2, which are far below 0. Their moments
    are the mean too.

    Args:
        stored: The model, read tensor by tensor.
        folder: Missing, empty or an earlier export, which is replaced.
        tp: Degree of tensor parallelism.
        pp: Pipeline stages, of equally many layers.
        names: Of the parameters: the Megatron-LM that is to read it.
        masters: The weights in fp32, of which those of the model are rounded; by default the latter, widened.
        on_write: Told the bytes of the model as they are written.
        check: Called with the temporary folder when it is complete.

    Raises:
        ConfigError: The model does not divide into ``tp`` or ``pp``, or Megatron-LM would compute its rotary
            positions otherwise.
        CheckpointError: The folder holds something else, or a weight does not fit its dtype.
        MachineError: The disk is too small or the files cannot be written.
    """
    stored = with_biases(stored)
    config = stored.config
    _require_known(config, tp=tp, pp=pp, names=names)
    multiple = int(stored.megatron_args.get("make_vocab_size_divisible_by") or DEFAULT_MULTIPLE)
    rows = padded_rows(config.vocab_size, tp, multiple)
    dtype = next(iter(stored.weights.values())).dtype
    ours = args_of(config, tp=tp, pp=pp, rows=rows, multiple=multiple, dtype=dtype)
    adam = adam_args(stored)
    args = {**_defaults(stored), **stored.megatron_args, **ours, **(adam if stored.moments else {})}
    moments = _moments(stored, names, masters)

    def held(tensors: Mapping[str, LazyTensor], stage: int, rank: int) -> Share:
        return dict(_share(config, tensors, stage, rank, tp=tp, pp=pp, rows=rows, names=names))

    places = [(stage, rank) for stage in range(pp) for rank in range(tp)]
    shares = {place: held(stored.weights, *place) for place in places}
    states = {place: {kind: held(tensors, *place) for kind, tensors in moments.items()} for place in places}
    everything = [*shares.values(), *(share for state in states.values() for share in state.values())]
    size_bytes = sum(tensor.size_bytes for share in everything for tensor in share.values())
    about = ExportAbout(format="megatron", tp=tp, pp=pp, naming=names)
    name = f"iter_{stored.step:07d}" if stored.step else RELEASE
    source_bytes = sum(t.size_bytes for t in (*stored.weights.values(), *stored.moments.values()))

    def tell(written: int) -> None:
        if on_write:  # padding and what all ranks hold is not counted twice
            on_write(written * source_bytes / size_bytes)

    with export_folder(folder, stored, size_bytes=size_bytes, about=about, check=check) as temporary:
        for (stage, rank), share in shares.items():
            path = temporary / name / f"mp_rank_{rank:02d}{f'_{stage:03d}' if pp > 1 else ''}" / RANK_FILE
            path.parent.mkdir(parents=True)
            content = {
                "args": argparse.Namespace(**args),
                "checkpoint_version": CURRENT_VERSION,
                "iteration": stored.step,
                "model": nested(share, names, tied=config.tied_embedding, last_stage=stage == pp - 1),
            }
            if state := states[stage, rank]:
                content |= _training_state(stored, share, state, adam)
            write_torch(path, content, tell)
        (temporary / TRACKER).write_text(str(stored.step) if stored.step else RELEASE)
        stored.tokenizer.save(temporary / TOKENIZER)
        stored.companions.write(temporary / TOKENIZER)
    return folder / name


def _training_state(
    stored: LazyModel, weights: Share, state: dict[str, Share], adam: Mapping[str, Any]
) -> dict[str, Any]:
    """What a rank's file says of the optimizer and the schedules."""
    masters = state.pop(_MASTERS, {})
    optimizer = optimizer_entry(
        weights=weights,
        moments=state,
        masters=masters,
        step=_updates(stored),
        args=adam,
        loss_scale=stored.loss_scale,
    )
    return {"optimizer": optimizer, "opt_param_scheduler": scheduler_entry(stored, adam)}


def find_indivisible(config: ModelConfig, *, tp: int, pp: int) -> str | None:
    """Why Megatron-LM refuses these degrees of parallelism for a model, with all reasons; or None."""
    counts = {
        "query heads": config.num_heads,
        "key/value heads": config.num_kv_heads,
        "ffn_size": config.ffn_size,
    }
    problems = [
        f"--{flag} is {given}, it must be 1 or more" for flag, given in (("tp", tp), ("pp", pp)) if given < 1
    ]
    if not problems:
        problems += [
            f"--tp {tp} does not divide {count} {what}" for what, count in counts.items() if count % tp
        ]
        problems += (
            [f"--pp {pp} does not divide {config.num_layers} layers"] if config.num_layers % pp else []
        )
    return "; ".join(problems) or None


def _require_known(config: ModelConfig, *, tp: int, pp: int, names: Naming) -> None:
    """Refuses what Megatron-LM would refuse, or what one of these names would compute otherwise."""
    if problems := find_indivisible(config, tp=tp, pp=pp):
        raise ConfigError(problems, where="command line", fix="Choose divisors of these.")
    if names == "legacy" and (reason := family_of(config).megatron.why_not_legacy(config)):
        raise ConfigError(reason, where="command line", fix="Write the newer names: --names core.")


def _defaults(stored: LazyModel) -> dict[str, Any]:
    """Arguments that Megatron-LM wants of each checkpoint, and that say nothing of the model's shape."""
    kinds = {GPT2_FINGERPRINT: "GPT2BPETokenizer"}
    kind = kinds.get(stored.tokenizer.fingerprint, "HuggingFaceTokenizer")
    return {
        "tokenizer_type": NULL_TOKENIZER if stored.tokenizer.kind == "integers" else kind,
        "consumed_train_samples": stored.samples,
        "consumed_valid_samples": 0,
    }


def _moments(
    stored: LazyModel, names: Naming, masters: Mapping[str, LazyTensor] | None
) -> dict[str, Mapping[str, LazyTensor]]:
    """What to keep of the optimizer's, in fp32: by kind, by our names of weights; and the fp32 weights."""
    if not stored.moments:
        return {}
    if reason := find_unwritable_state(stored, names):
        logger.warning("the optimizer's state is left out: %s", reason)
        return {}
    kinds: dict[str, Mapping[str, LazyTensor]] = {
        kind: widened({name: stored.moments[f"{name}/{kind}"] for name in stored.weights}) for kind in ENTRIES
    }
    if any(tensor.dtype != torch.float32 for tensor in stored.weights.values()):
        kinds[_MASTERS] = widened(masters or stored.weights)
    return kinds


def widened(tensors: Mapping[str, LazyTensor]) -> dict[str, LazyTensor]:
    """The same values in fp32."""
    return {
        name: tensor
        if tensor.dtype == torch.float32
        else LazyTensor(shape=tensor.shape, dtype=torch.float32, read=_Widened(tensor))
        for name, tensor in tensors.items()
    }


@dataclasses.dataclass(frozen=True)
class _Widened:
    tensor: LazyTensor

    def __call__(self) -> Tensor:
        return self.tensor.read().float()


def _updates(stored: LazyModel) -> int:
    return int(stored.moments[f"{next(iter(stored.weights))}/step"].read())


def _share(
    config: ModelConfig,
    tensors: Mapping[str, LazyTensor],
    stage: int,
    rank: int,
    *,
    tp: int,
    pp: int,
    rows: int,
    names: Naming,
) -> Iterator[tuple[str, LazyTensor]]:
    """What one rank holds, by their names."""
    shapes = logical_shapes(config)
    per_stage = config.num_layers // pp
    rms_norm = family_of(config).megatron.rms_norm
    ruled = rules_for(rules(config), list(shapes))
    if config.tied_embedding and pp > 1:  # the last stage has a copy of the embedding
        ruled.append(NameRule(HEAD, ("embed.tokens.weight",)))
    for rule in ruled:
        layer = layer_of(rule.theirs)
        home = (
            layer // per_stage if layer is not None else 0 if rule.theirs.startswith("embedding.") else pp - 1
        )
        if home != stage:
            continue
        name = with_layer(rule.theirs, layer % per_stage) if layer is not None else rule.theirs
        padded = rows if rule.theirs in (EMBEDDING, HEAD) else 0
        parts = [tensors[ours] for ours in rule.ours]
        whole = [(padded or part.shape[0], *part.shape[1:]) for part in parts]
        yield (
            renamed(name, names, rms_norm=rms_norm),
            LazyTensor(
                shape=fused_shape(rule, whole, config, tp),
                dtype=parts[0].dtype,
                read=_Piece(rule=rule, parts=parts, config=config, rank=rank, tp=tp, rows=padded),
            ),
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Piece:
    """One rank's tensor, made of ours when it is written; ``rows`` of the padded vocabulary, or 0."""

    rule: NameRule
    parts: Sequence[LazyTensor]
    config: ModelConfig
    rank: int
    tp: int
    rows: int

    def __call__(self) -> Tensor:
        pieces = []
        for name, part in zip(self.rule.ours, self.parts, strict=True):
            tensor = part.read()
            if self.rows > tensor.shape[0]:
                mean = tensor.mean(0, keepdim=True, dtype=torch.float32).to(tensor.dtype)
                tensor = torch.cat((tensor, mean.expand(self.rows - tensor.shape[0], -1)))
            dim = split_dim(name, self.config)
            pieces.append(tensor if dim is None else tensor.chunk(self.tp, dim)[self.rank])
        return Packing(config=self.config).pack(self.rule, pieces)
