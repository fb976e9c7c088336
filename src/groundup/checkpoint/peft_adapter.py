"""Adapters in the file format of PEFT: ``adapter_config.json`` and ``adapter_model.safetensors``.

Names of modules are those of ``transformers``. Where it joins several of our linear layers in one (queries,
keys and values of a GPT-2), their adapters become one of the sum of their ranks: A is theirs one below the
other, B has theirs on its diagonal.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from groundup.checkpoint.companions import read_companions
from groundup.checkpoint.export import MANIFEST, ExportAbout, ExportManifest, export_folder, write_card
from groundup.checkpoint.families import family_of
from groundup.checkpoint.families.name_rules import NameRule, rules_for
from groundup.checkpoint.lazy import LazyModel, LazyTensor
from groundup.checkpoint.logical_tensors import logical_shapes
from groundup.checkpoint.low_rank import Adapter, AdapterAbout, LowRank, merged, scale_of
from groundup.checkpoint.native.model import open_native_adapter
from groundup.checkpoint.peft_settings import ADAPTER, read_settings
from groundup.checkpoint.safetensors import read_safetensors, write_safetensors
from groundup.core.errors import CheckpointError
from groundup.core.files import write_json
from groundup.core.manifest import read_manifest
from groundup.tokens.tokenizer.huggingface import bos_ids
from groundup.tokens.tokenizer.load_tokenizer import load_tokenizer, tokenizer_folder

_WEIGHTS = "adapter_model.safetensors"
_PREFIX = "base_model.model."
_HALVES = (".lora_A.weight", ".lora_B.weight")
_MODEL_PREFIXES = ("", "model.", "transformer.")  # left out where PEFT was given a base model without head


def with_adapter(base: LazyModel, folder: Path) -> LazyModel:
    """Returns a base with an adapter of PEFT, or of a run, merged into it, and the tokenizer beside it.

    Raises:
        CheckpointError: The adapter is of another base, damaged, or of a kind that is not supported.
        DataError: The tokenizer is malformed.
    """
    adapter = read_adapter(folder, base) if (folder / ADAPTER).is_file() else open_native_adapter(folder)
    if adapter is None:
        raise CheckpointError(
            "holds a whole model, no adapter", where=folder, fix="Name an adapter, or leave the option out."
        )
    model = merged(base, adapter)
    beside = tokenizer_folder(folder)
    if beside is None:
        return model
    return dataclasses.replace(
        model,
        tokenizer=load_tokenizer(beside),
        companions=model.companions.with_tokenizer_of(read_companions(beside)),
        bos_ids=bos_ids(beside),
    )


def read_adapter(folder: Path, base: LazyModel) -> Adapter:
    """Opens an adapter of a base.

    Raises:
        CheckpointError: It is damaged, of a kind that is not supported, or adapts what the base has not.
    """
    settings = read_settings(folder)
    manifest = folder / MANIFEST
    fingerprint = read_manifest(manifest, ExportManifest).about.base if manifest.is_file() else None
    about = AdapterAbout(
        base=str(settings.get("base_model_name_or_path") or ""),
        base_fingerprint=fingerprint or "",
        rank=settings["r"],
        alpha=settings["lora_alpha"],
        rslora=settings.get("use_rslora", False),
        dropout=settings.get("lora_dropout", 0.0),
    )
    if not (folder / _WEIGHTS).is_file():
        raise CheckpointError(f"holds no {_WEIGHTS}", where=folder, fix="Save it with PEFT as safetensors.")
    modules = _modules(read_safetensors(folder / _WEIGHTS), folder)
    rules = {
        rule.theirs.removesuffix(".weight"): rule
        for rule in rules_for(family_of(base.config).huggingface.names, list(logical_shapes(base.config)))
    }
    parts: dict[str, LowRank] = {}
    for module, (a_RI, b_OR) in modules.items():
        rule = next((rules[prefix + module] for prefix in _MODEL_PREFIXES if prefix + module in rules), None)
        if rule is None or not rule.ours[0].startswith("layers."):
            raise CheckpointError(
                f"is an adapter of {about.base or 'another model'}, not of {base.source}: it adapts {module},"
                " which is no linear layer of a block of this one",
                where=folder,
                fix="Name the base model that it was trained on.",
            )
        alpha = _of_pattern(settings.get("alpha_pattern"), module, about.alpha)
        scale = scale_of(alpha, a_RI.shape[0], rslora=about.rslora)
        parts.update(_to_ours(rule, a_RI, b_OR, scale, base))
    return Adapter(about=about, parts=parts, source=folder)


def write_adapter(
    adapter: Adapter, model: LazyModel, folder: Path, *, card: str = "", base: str = ""
) -> None:
    """Writes an adapter that ``peft.PeftModel.from_pretrained`` loads, with the tokenizer beside it.

    Args:
        adapter: As training left it: of one rank and one scale.
        model: What it makes of its base.
        folder: To write; may be missing, empty or an earlier export, which is replaced.
        card: Content of its README.md; empty for none.
        base: What it names as its base, where that is not the folder of the base: a name on the hub.

    Raises:
        CheckpointError: The folder holds something else.
        ConfigError: ``transformers`` has no such model.
        MachineError: The disk is too small or the files cannot be written.
    """
    tensors: dict[str, LazyTensor] = {}
    ranks: dict[str, int] = {}
    about = adapter.about
    table = family_of(model.config).huggingface
    for rule in rules_for(table.names, list(logical_shapes(model.config))):
        parts = [adapter.parts.get(name) for name in rule.ours]
        if any(parts):
            module = rule.theirs.removesuffix(".weight")
            outputs = [model.weights[name].shape[0] for name in rule.ours]
            a_RI, b_OR = _to_theirs(parts, outputs)
            ranks[module] = a_RI.shape[0]
            tensors |= {
                f"{_PREFIX}{module}{end}": half for end, half in zip(_HALVES, (a_RI, b_OR), strict=True)
            }
    patterns = {_suffix(module): rank for module, rank in ranks.items() if rank != about.rank}
    alphas = {
        name: about.scale * (math.sqrt(rank) if about.rslora else rank) for name, rank in patterns.items()
    }
    settings = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base or about.base,
        "r": about.rank,
        "lora_alpha": about.alpha,
        "lora_dropout": about.dropout,
        "use_rslora": about.rslora,
        "target_modules": sorted({_suffix(module) for module in ranks}),
        "rank_pattern": patterns,
        "alpha_pattern": alphas,
        "fan_in_fan_out": any(rule.transposed for rule in table.names),
        "bias": "none",
        "inference_mode": True,
    }
    size_bytes = sum(tensor.size_bytes for tensor in tensors.values())
    written = ExportAbout(format="peft", dtype="float32", base=about.base_fingerprint or None)
    with export_folder(folder, model, size_bytes=size_bytes, about=written) as temporary:
        model.tokenizer.save(temporary)
        model.companions.write(temporary)
        write_card(temporary, card)
        write_json(temporary / ADAPTER, settings)
        write_safetensors(temporary / _WEIGHTS, tensors)


def _modules(tensors: Mapping[str, LazyTensor], folder: Path) -> dict[str, tuple[LazyTensor, LazyTensor]]:
    """Returns A and B of each module of theirs."""
    halves: dict[str, dict[str, LazyTensor]] = {}
    for name, tensor in tensors.items():
        end = next((end for end in _HALVES if name.endswith(end)), None)
        if end is None or not name.startswith(_PREFIX) or len(tensor.shape) != 2:
            raise CheckpointError(f"has a tensor {name}, which is no part of a LoRA", where=folder / _WEIGHTS)
        halves.setdefault(name.removeprefix(_PREFIX).removesuffix(end), {})[end] = tensor
    found = {}
    for module, both in halves.items():
        if len(both) < 2 or both[_HALVES[0]].shape[0] != both[_HALVES[1]].shape[1]:
            raise CheckpointError(f"lora_A and lora_B of {module} do not fit", where=folder / _WEIGHTS)
        found[module] = both[_HALVES[0]], both[_HALVES[1]]
    if not found:
        raise CheckpointError(
            "holds no adapter", where=folder / _WEIGHTS, fix="Copy the folder again, whole."
        )
    return found


def _of_pattern(pattern: Mapping[str, float] | None, module: str, default: float) -> float:
    """Returns the value for a module, as PEFT finds it: of the first pattern that its name ends with."""
    for key, value in (pattern or {}).items():
        if re.match(rf"(.*\.)?({key})$", module):
            return value
    return default


def _to_ours(
    rule: NameRule, a_RI: LazyTensor, b_OR: LazyTensor, scale: float, base: LazyModel
) -> Iterator[tuple[str, LowRank]]:
    begin = 0
    for name in rule.ours:
        left = b_OR.shape[0] - begin
        rows = left if name == rule.ours[-1] else min(base.weights[name].shape[0], left)
        shape = (rows, b_OR.shape[1])
        read = functools.partial(b_OR.part, (begin, 0), shape)
        yield name, LowRank(a_RI=a_RI, b_OR=LazyTensor(shape=shape, dtype=b_OR.dtype, read=read), scale=scale)
        begin += rows


def _to_theirs(parts: Sequence[LowRank | None], outputs: Sequence[int]) -> tuple[LazyTensor, LazyTensor]:
    given = [part for part in parts if part is not None]
    if len(parts) == 1:
        return _in_fp32(given[0].a_RI), _in_fp32(given[0].b_OR)
    rank = sum(part.a_RI.shape[0] for part in given)

    def read_a() -> Tensor:
        return torch.cat([part.a_RI.read().float() for part in given])

    def read_b() -> Tensor:
        b_OR = torch.zeros(sum(outputs), rank)
        row = column = 0
        for part, rows in zip(parts, outputs, strict=True):
            if part is not None:
                width = part.b_OR.shape[1]
                b_OR[row : row + rows, column : column + width] = part.b_OR.read()
                column += width
            row += rows
        return b_OR

    a_shape = (rank, given[0].a_RI.shape[1])
    return (
        LazyTensor(shape=a_shape, dtype=torch.float32, read=read_a),
        LazyTensor(shape=(sum(outputs), rank), dtype=torch.float32, read=read_b),
    )


def _in_fp32(tensor: LazyTensor) -> LazyTensor:
    return dataclasses.replace(tensor, dtype=torch.float32, read=lambda: tensor.read().float())


def _suffix(module: str) -> str:
    """``model.layers.3.self_attn.q_proj`` -> ``self_attn.q_proj``: what PEFT finds in every layer."""
    return re.sub(r"^.*\.\d+\.", "", module)
