"""Hugging Face folders: GPT-2 and Llama models as ``transformers`` saves and loads them."""

import dataclasses
import functools
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Literal

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from groundup.checkpoint.huggingface_config import architecture_of, config_json, read_config
from groundup.checkpoint.loaded import LoadedModel
from groundup.checkpoint.logical import logical, logical_weights, model_from
from groundup.checkpoint.names import GPT2_RULES, LLAMA_RULES, NameRule, rules_for, to_ours, to_theirs
from groundup.core.errors import CheckpointError, DataError, MachineError
from groundup.core.files import fsync_dir, fsync_file, read_json, require_free_space, write_json
from groundup.core.manifest import Manifest, describe_files
from groundup.models import ModelConfig, build_model
from groundup.models.gpt2 import GPT2Config
from groundup.models.llama import LlamaConfig
from groundup.tokens.tokenizer import load_tokenizer

DtypeName = Literal["float32", "bfloat16", "float16"]

_DTYPES: Mapping[DtypeName, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
_WEIGHTS = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_MANIFEST = "groundup_export.json"
_BUFFERS = (".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq")  # older releases stored these
_PREFIXES = ("transformer.", "model.")  # left out where only the base model was saved


def write_huggingface(loaded: LoadedModel, folder: Path, *, dtype: DtypeName = "float32") -> None:
    """Writes a folder that ``transformers.AutoModelForCausalLM`` and ``AutoTokenizer`` load.

    The folder appears whole or not at all. Padded vocabulary ids are left out, and so is a tied head;
    a GPT-2 without biases gets biases of 0, which compute the same.

    Args:
        loaded: The model.
        folder: To write; may be missing, empty or an earlier export, which is replaced.
        dtype: Of the weights; bfloat16 and float16 round them.

    Raises:
        CheckpointError: The folder holds something else, or a weight does not fit ``dtype``.
        MachineError: The disk is too small or the files cannot be written.
    """
    _require_replaceable(folder)
    tensors = dict(_exported_weights(loaded, _DTYPES[dtype]))
    size_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    require_free_space(folder.parent, size_bytes + (16 << 20), "the export")
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    try:
        temporary.mkdir(parents=True)
        save_file(tensors, temporary / _WEIGHTS, metadata={"format": "pt"})
        begin, end = begin_id(loaded), loaded.tokenizer.end_of_document_id
        ids = {"bos_token_id": begin, "eos_token_id": end}
        write_json(temporary / "config.json", {**config_json(loaded.config), "dtype": dtype, **ids})
        write_json(temporary / "generation_config.json", ids)
        shutil.copymode(
            temporary / "config.json", temporary / _WEIGHTS
        )  # safetensors lets only the owner read
        loaded.tokenizer.save(temporary)
        names = sorted(path.name for path in temporary.iterdir())
        Manifest(
            kind="export",
            inputs={"source": str(loaded.source), "tokenizer": loaded.tokenizer.fingerprint},
            files=describe_files(temporary, names),
            about={"format": "huggingface", "dtype": dtype},
        ).write(temporary / _MANIFEST)
        for name in (*names, _MANIFEST):
            fsync_file(temporary / name)
        _put_in_place(temporary, folder)
    except (OSError, SafetensorError) as error:
        raise MachineError(f"the export could not be written ({error})", where=folder) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def read_huggingface(folder: Path, *, device: torch.device | str = "cpu") -> LoadedModel:
    """Reads a GPT-2 or Llama model and its tokenizer; weights become fp32.

    Raises:
        CheckpointError: The architecture or one of its options is not supported (named in the message),
            or weights are missing, unexpected, damaged or of the wrong shape.
        DataError: There is no tokenizer that can be read.
    """
    config = read_config(folder / "config.json")
    rules = rules_for(_rules_of(config), list(_parameters_on_meta(config)))
    weights = _read_weights(folder, config, rules)
    try:
        tokenizer = load_tokenizer(folder)
    except DataError as error:
        raise DataError(
            f"the model is there, its tokenizer cannot be read: {error.what}",
            where=error.where or folder,
            fix="Put the model's tokenizer.json into the folder.",
        ) from None
    if tokenizer.vocab_size > config.vocab_size:
        raise CheckpointError(
            f"its tokenizer has {tokenizer.vocab_size:,} ids, the model only {config.vocab_size:,}",
            where=folder,
        )
    device = torch.device(device)
    return LoadedModel(
        config=config,
        model=model_from(config, weights, device=device, where=folder),
        tokenizer=tokenizer,
        source=folder,
        prompt_prefix=_prompt_prefix(folder),
    )


def torch_dtype(name: DtypeName) -> torch.dtype:
    """The dtype of a name."""
    return _DTYPES[name]


def is_huggingface(folder: Path) -> bool:
    """Whether a folder is one that ``transformers`` wrote, or is laid out like it."""
    return (folder / "config.json").is_file()


def begin_id(loaded: LoadedModel) -> int:
    """The id that a text without a prompt begins with: the begin token, or else the end of a document."""
    return loaded.prompt_prefix[0] if loaded.prompt_prefix else loaded.tokenizer.end_of_document_id


# Writing


def _require_replaceable(folder: Path) -> None:
    if not folder.exists():
        return
    if folder.is_dir() and not any(folder.iterdir()):
        return
    if folder.is_dir() and (folder / _MANIFEST).is_file():
        Manifest.read(folder / _MANIFEST, "export")
        return
    raise CheckpointError(
        "is not empty and is not an earlier export, so it is not overwritten",
        where=folder,
        fix="Name a new folder.",
    )


def _put_in_place(temporary: Path, folder: Path) -> None:
    """Renames the finished folder onto its name; an earlier export is removed only after that."""
    old = folder.with_name(f".{folder.name}.{os.getpid()}.old")
    fsync_dir(temporary)
    replaced = folder.exists()
    if replaced:
        folder.rename(old)
    temporary.rename(folder)
    fsync_dir(folder.parent)
    if replaced:
        shutil.rmtree(old)


def _exported_weights(loaded: LoadedModel, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    config = loaded.config
    ours = {name: tensor.float() for name, tensor in logical_weights(loaded.model, config).items()}
    if isinstance(config, GPT2Config) and not config.bias:
        with_bias = _parameters_on_meta(dataclasses.replace(config, bias=True))
        ours = {
            name: ours[name] if name in ours else torch.zeros(meta.shape) for name, meta in with_bias.items()
        }
    for name, tensor in to_theirs(_rules_of(config), ours):
        converted = tensor.to("cpu", dtype)
        if not converted.isfinite().all():
            reason = "does not fit" if tensor.isfinite().all() else "has values that are not finite in"
            raise CheckpointError(
                f"{name} {reason} {str(dtype).removeprefix('torch.')}",
                where=loaded.source,
                fix="Export as float32 or bfloat16."
                if dtype == torch.float16
                else "Export an earlier checkpoint.",
            )
        yield name, converted.clone() if converted.data_ptr() == tensor.data_ptr() else converted


# Reading


def _rules_of(config: ModelConfig) -> tuple[NameRule, ...]:
    return LLAMA_RULES if isinstance(config, LlamaConfig) else GPT2_RULES


def _parameters_on_meta(config: ModelConfig) -> dict[str, Tensor]:
    """The model's parameters at their logical shapes, without memory."""
    model = build_model(config, device="meta")
    return {name: logical(name, tensor, config) for name, tensor in model.named_parameters()}


def _read_weights(folder: Path, config: ModelConfig, rules: list[NameRule]) -> dict[str, Tensor]:
    rows = {name: tensor.shape[0] for name, tensor in _parameters_on_meta(config).items()}
    by_name = {rule.theirs: rule for rule in rules}
    canonical = {_base_name(name): name for name in by_name}
    weights: dict[str, Tensor] = {}
    found: set[str] = set()
    unexpected: list[str] = []
    for name, read in _stored_tensors(folder):
        theirs = canonical.get(_base_name(name))
        if theirs is None:
            tied_head = config.tied_embedding and name == "lm_head.weight"
            if not tied_head and not name.endswith(_BUFFERS):
                unexpected.append(name)
            continue
        rule = by_name[theirs]
        found.add(theirs)
        try:
            weights.update(to_ours(rule, read().float(), [rows[part] for part in rule.ours]))
        except ValueError as error:
            raise CheckpointError(f"does not fit its config.json: {error}", where=folder) from None
    missing = sorted(by_name.keys() - found)
    if missing or unexpected:
        parts = [
            f"{what}: {', '.join(names[:6])}{f' and {len(names) - 6} more' if len(names) > 6 else ''}"
            for what, names in (("missing", missing), ("unexpected", unexpected))
            if names
        ]
        raise CheckpointError(
            f"the weights do not fit {architecture_of(config)} ({'; '.join(parts)})",
            where=folder,
            fix="Check that config.json and the weights belong together and are complete.",
        )
    return weights


def _base_name(name: str) -> str:
    for prefix in _PREFIXES:
        if name.startswith(prefix):
            return name.removeprefix(prefix)
    return name


def _stored_tensors(folder: Path) -> Iterator[tuple[str, Callable[[], Tensor]]]:
    """Name and reader of each stored tensor, of one file or of all shards."""
    for path in _weight_files(folder):
        try:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118  # not a dict
                    yield name, functools.partial(file.get_tensor, name)
        except (OSError, SafetensorError) as error:
            raise CheckpointError(
                f"cannot be read as safetensors ({error})", where=path, fix="Copy the file again."
            ) from None


def _weight_files(folder: Path) -> list[Path]:
    if (folder / _INDEX).is_file():
        shards = read_json(folder / _INDEX).get("weight_map", {})
        paths = [folder / name for name in sorted(set(shards.values()))]
    elif (folder / _WEIGHTS).is_file():
        paths = [folder / _WEIGHTS]
    else:
        others = sorted(path.name for path in folder.glob("*.bin"))
        raise CheckpointError(
            f"holds no {_WEIGHTS} and no {_INDEX}" + (f", only {', '.join(others)}" if others else ""),
            where=folder,
            fix="Save the model as safetensors: model.save_pretrained(folder) of a recent transformers does.",
        )
    for path in paths:
        if not path.is_file():
            raise CheckpointError(f"{path.name} is missing", where=folder, fix="Copy the folder again.")
    return paths


def _prompt_prefix(folder: Path) -> tuple[int, ...]:
    """What the tokenizer's own post-processing puts before a text; read off the empty text."""
    import tokenizers

    path = folder / "tokenizer.json"
    if not path.is_file() or not json.loads(path.read_bytes()).get("post_processor"):
        return ()
    return tuple(tokenizers.Tokenizer.from_file(str(path)).encode("").ids)
