"""Opens a model, whatever wrote it: groundup, Hugging Face's ``transformers``, Megatron-LM."""

import dataclasses
from pathlib import Path

import torch

from groundup.checkpoint.companions import read_companions, require_agreement
from groundup.checkpoint.finite import require_finite
from groundup.checkpoint.huggingface.weights import is_huggingface, open_huggingface
from groundup.checkpoint.lazy import LazyModel, load
from groundup.checkpoint.loaded_model import LoadedModel
from groundup.checkpoint.megatron.ranks import is_megatron
from groundup.checkpoint.megatron.read import open_megatron
from groundup.checkpoint.native.model import open_native
from groundup.core.errors import CheckpointError
from groundup.tokens.tokenizer.base import Tokenizer
from groundup.tokens.tokenizer.huggingface import bos_ids
from groundup.tokens.tokenizer.load_tokenizer import load_tokenizer, tokenizer_folder


def open_model(path: Path, *, device: torch.device, ema: bool = False) -> LoadedModel:
    """Brings weights (fp32), architecture and tokenizer to memory for use; needs nothing but the path.

    Args:
        path: As ``open_lazy``.
        device: Where to.
        ema: As ``open_lazy``.

    Raises:
        CheckpointError, DataError: As ``open_lazy``; also where weights are not finite.
    """
    loaded = load(open_lazy(path, ema=ema), device=device)
    require_finite(loaded.model.named_parameters(), loaded.source)
    return loaded


def open_lazy(
    path: Path,
    *,
    tokenizer: Path | None = None,
    vocab_size: int | None = None,
    moments: bool = False,
    ema: bool = False,
) -> LazyModel:
    """Opens a model without reading its weights yet.

    Args:
        path: A run folder or one of its checkpoints, a Hugging Face folder, a folder of Megatron-LM's
            checkpoints or one of these.
        tokenizer: Folder, file or name of one instead of the model's own, or where it has none; what lies
            beside it in a folder (a chat template, say) comes with it.
        vocab_size: True vocabulary of a model of Megatron-LM's, where its tokenizer does not tell.
        moments: Whether to open a Megatron-LM optimizer's moments too.
        ema: Take the average of the weights that a run of groundup kept, instead of the weights.

    Raises:
        CheckpointError: The path does not exist, holds no model, or the model is damaged.
        DataError: There is no tokenizer that can be read.
    """
    named = load_tokenizer(tokenizer) if tokenizer else None
    stored = _open(path, named, vocab_size=vocab_size, moments=moments, ema=ema)
    folder = tokenizer_folder(tokenizer) if tokenizer else None
    return stored if folder is None else _with_tokenizer_of(stored, folder)


def _with_tokenizer_of(stored: LazyModel, folder: Path) -> LazyModel:
    companions = stored.companions.with_tokenizer_of(read_companions(folder))
    require_agreement(companions, stored.tokenizer, stored.config.vocab_size, folder)
    return dataclasses.replace(stored, companions=companions, bos_ids=bos_ids(folder))


def _open(
    path: Path, tokenizer: Tokenizer | None, *, vocab_size: int | None, moments: bool, ema: bool
) -> LazyModel:
    if not path.exists():
        raise CheckpointError("no such file or folder", where=path, fix="Check the path.")
    if ema and (is_megatron(path) or is_huggingface(path)):
        raise CheckpointError("--ema is only for runs of groundup, which may keep an average", where=path)
    if is_megatron(path):
        return open_megatron(path, tokenizer=tokenizer, vocab_size=vocab_size, moments=moments)
    if vocab_size is not None:
        raise CheckpointError("--vocab-size is only for Megatron-LM's checkpoints", where=path)
    if is_huggingface(path):
        return open_huggingface(path, tokenizer=tokenizer)
    return open_native(path, tokenizer=tokenizer, ema=ema)
