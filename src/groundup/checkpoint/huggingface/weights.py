"""Hugging Face folders: GPT-2 and Llama models as ``transformers`` saves and loads them."""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from groundup.checkpoint.companions import Companions, read_companions, require_agreement
from groundup.checkpoint.export import Check, ExportAbout, export_folder, write_card
from groundup.checkpoint.families import family_of, with_biases
from groundup.checkpoint.families.name_rules import match_weights, rules_for, to_theirs
from groundup.checkpoint.formats import Codec, Variant
from groundup.checkpoint.huggingface.config import config_json, read_config, token_ids
from groundup.checkpoint.huggingface.weight_files import parse_sharding, stored_tensors, write_shards
from groundup.checkpoint.lazy import (
    DtypeName,
    LazyModel,
    LazyTensor,
    LoadedModel,
    as_lazy,
    dtype_name,
    in_dtype,
    load,
    torch_dtype,
    without_moments,
)
from groundup.checkpoint.logical_tensors import logical_shapes
from groundup.core.errors import ConfigError, DataError
from groundup.core.files import write_json
from groundup.core.log import logger
from groundup.models import ModelConfig
from groundup.tokens.tokenizer.base import Tokenizer
from groundup.tokens.tokenizer.huggingface import bos_ids
from groundup.tokens.tokenizer.load_tokenizer import load_tokenizer
from groundup.tokens.tokenizer.word_list import end_ids

_HEAD = "lm_head.weight"
_EMBEDDINGS = ("wte.weight", "embed_tokens.weight")  # by their base names
_BUFFERS = (".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq")  # older releases stored these
_PREFIXES = ("transformer.", "model.")  # left out where only the base model was saved


def write_huggingface(loaded: LoadedModel, folder: Path, *, dtype: DtypeName = "float32") -> None:
    """Writes a model that is in memory as ``write_stored`` does; weights are rounded to ``dtype``.

    Raises:
        CheckpointError: The folder holds something else, or a weight does not fit ``dtype``.
        MachineError: The disk is too small or the files cannot be written.
    """
    write_stored(in_dtype(as_lazy(loaded), torch_dtype(dtype)), folder)


def write_stored(
    stored: LazyModel,
    folder: Path,
    *,
    shards: str = "1",
    on_write: Callable[[int], None] | None = None,
    check: Check | None = None,
    card: str = "",
) -> None:
    """Writes a folder that ``transformers.AutoModelForCausalLM`` and ``AutoTokenizer`` load.

    The folder appears whole or not at all. Padded vocabulary ids are left out, and so is a tied head;
    a GPT-2 without biases gets biases of 0, which compute the same.

    Args:
        stored: The model, read tensor by tensor.
        folder: To write; may be missing, empty or an earlier export, which is replaced.
        shards: How many files the weights become, or their largest size: see ``parse_sharding``.
        on_write: Told the bytes of each tensor when it is written.
        check: Called with the temporary folder when it is complete.
        card: Content of its README.md; empty for none.

    Raises:
        CheckpointError: The folder holds something else, or a weight does not fit its dtype.
        ConfigError: The shards are neither, or more than tensors; transformers has no such model: says why.
        MachineError: The disk is too small or the files cannot be written.
    """
    sharding = parse_sharding(shards)
    stored = with_biases(stored)
    if reason := family_of(stored.config).huggingface.why_not(stored.config):
        raise ConfigError(reason, where="command line", fix="Write the native format or Megatron-LM's.")
    weights = {name: stored.weights[name] for name in logical_shapes(stored.config)}  # one order for all
    tensors = dict(to_theirs(family_of(stored.config).huggingface.names, weights))
    dtype = dtype_name(next(iter(tensors.values())).dtype)
    size_bytes = sum(tensor.size_bytes for tensor in tensors.values())
    about = ExportAbout(format="huggingface", dtype=dtype)
    with export_folder(folder, stored, size_bytes=size_bytes, about=about, check=check) as temporary:
        end = stored.tokenizer.end_of_document_id
        ids = {"bos_token_id": stored.bos_ids[0] if stored.bos_ids else end}
        if ends := end_ids(stored.tokenizer):
            ids["eos_token_id"] = ends[0]
        ids |= stored.companions.token_ids(stored.config.vocab_size)
        write_json(temporary / "config.json", {**config_json(stored.config), "dtype": dtype, **ids})
        stored.tokenizer.save(temporary)
        stored.companions.with_generation(ids).write(temporary)
        write_card(temporary, card)
        write_shards(temporary, tensors, sharding, on_write=on_write)


def read_huggingface(folder: Path, *, device: torch.device | str = "cpu") -> LoadedModel:
    """Reads a GPT-2 or Llama model and its tokenizer to memory; weights become fp32.

    Raises:
        CheckpointError, DataError: As ``open_huggingface``.
    """
    return load(open_huggingface(folder), device=device)


def open_huggingface(folder: Path, *, tokenizer: Tokenizer | None = None) -> LazyModel:
    """Opens a GPT-2 or Llama model and its tokenizer, or with another tokenizer.

    Raises:
        CheckpointError: The architecture or one of its options is not supported (named in the message),
            or weights are missing, unexpected, damaged or of the wrong shape.
        DataError: There is no tokenizer that can be read.
    """
    config = read_config(folder / "config.json")
    tensors = stored_tensors(folder)
    config = _with_own_head(config, tensors, folder)
    weights = _weights(folder, config, tensors)
    companions = read_companions(folder).with_generation(token_ids(folder / "config.json"))
    if tokenizer is not None:
        companions = companions.with_tokenizer_of(Companions())
    try:
        tokenizer = tokenizer or load_tokenizer(folder)
    except DataError as error:
        raise DataError(
            f"the model is there, its tokenizer cannot be read: {error.what}",
            where=error.where or folder,
            fix="Put the model's tokenizer.json into the folder.",
        ) from None
    require_agreement(companions, tokenizer, config.vocab_size, folder)
    return LazyModel(
        config=config,
        weights=weights,
        tokenizer=tokenizer,
        source=folder,
        bos_ids=bos_ids(folder),
        companions=companions,
    )


def is_huggingface(folder: Path) -> bool:
    """Whether a folder is one that ``transformers`` wrote, or is laid out like it."""
    return (folder / "config.json").is_file()


def _with_own_head(config: ModelConfig, tensors: Mapping[str, LazyTensor], folder: Path) -> ModelConfig:
    """The config, untied where the folder has a head of its own beside ``tie_word_embeddings``.

    ``transformers`` does the same: a head that differs from the embedding is not tied.
    """
    embeddings = [tensor for name, tensor in tensors.items() if _base_name(name) in _EMBEDDINGS]
    head = tensors.get(_HEAD)
    if not config.tied_embedding or head is None or not embeddings:
        return config
    same_shape = head.shape == embeddings[0].shape
    if same_shape and torch.equal(head.read().float(), embeddings[0].read().float()):
        return config
    logger.warning(
        "%s: config.json ties the head to the embedding, but %s is stored and differs: the model keeps it,"
        " as in transformers",
        folder,
        _HEAD,
    )
    return dataclasses.replace(config, tied_embedding=False)


def _weights(folder: Path, config: ModelConfig, tensors: Mapping[str, LazyTensor]) -> dict[str, LazyTensor]:
    rules = family_of(config).huggingface.names
    ruled = [rule.theirs for rule in rules_for(rules, list(logical_shapes(config)))]
    canonical = {_base_name(name): name for name in ruled}
    found: dict[str, LazyTensor] = {}
    for name, tensor in tensors.items():
        ignored = name.endswith(_BUFFERS) or (config.tied_embedding and name == _HEAD)
        if _base_name(name) in canonical or not ignored:
            found[canonical.get(_base_name(name), name)] = tensor
    return match_weights(rules, config, found, where=folder, settings="config.json")


def _base_name(name: str) -> str:
    for prefix in _PREFIXES:
        if name.startswith(prefix):
            return name.removeprefix(prefix)
    return name


CODEC = Codec(
    detect=is_huggingface,
    open=open_huggingface,
    write=write_stored,
    kept=lambda stored, **options: without_moments(with_biases(stored)),
    variants=lambda stored: [
        Variant(tour=""),
        Variant(label=", 3 shards", options={"shards": "3"}),
        Variant(label=", bfloat16 (from the rounded)", dtype="bfloat16"),
    ],
    next_step=lambda folder, _: f"transformers.AutoModelForCausalLM.from_pretrained({str(folder)!r})",
)
