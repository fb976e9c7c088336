"""Checkpoints of Megatron-LM as older versions wrote them, made from ours by code of their own."""

import argparse
import copy
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from groundup.checkpoint.lazy import LoadedModel, as_lazy
from groundup.checkpoint.megatron.write import write_megatron


def write_checkpoint(loaded: LoadedModel, folder: Path, **settings: Any) -> Path:
    """A checkpoint of the current version; returns its ``release`` folder."""
    return write_megatron(as_lazy(loaded), folder, **settings)


def rank_files(folder: Path) -> list[Path]:
    """The files of all ranks of a folder of checkpoints."""
    return sorted(folder.glob("*/mp_rank_*/model_optim_rng.pt"))


def edit(path: Path, change: Callable[[dict[str, Any]], None], **save: Any) -> None:
    """Loads a rank's file with torch's own reader, changes it and saves it."""
    with torch.serialization.safe_globals([argparse.Namespace]):
        content = torch.load(path, weights_only=True)
    change(content)
    torch.save(content, path, **save)


def make_version(folder: Path, version: float, heads_per_rank: int) -> None:
    """Lays queries, keys and values out as an older version; 0 has no number in the file."""

    def older(tensor: Tensor) -> Tensor:
        rows, rest = tensor.shape[0], tensor.shape[1:]
        head_dim = rows // 3 // heads_per_rank
        by_head = tensor.reshape(heads_per_rank, 3, head_dim, *rest)
        axes = (0, 2, 1) if version == 1 else (1, 0, 2)
        if version >= 2:
            return tensor
        return by_head.permute(*axes, *range(3, by_head.ndim)).reshape(rows, *rest).contiguous()

    def change(content: dict[str, Any]) -> None:
        encoder = content["model"]["language_model"]["encoder"]
        for name in [name for name in encoder if "query_key_value" in name]:
            encoder[name] = older(encoder[name])
        if version == 0:
            del content["checkpoint_version"]
        else:
            content["checkpoint_version"] = version

    for path in rank_files(folder):
        edit(path, change)


def make_bare(folder: Path, **args: Any) -> None:
    """Makes a checkpoint one of data that NullTokenizer made."""
    shutil.rmtree(folder / "tokenizer")

    def change(content: dict[str, Any]) -> None:
        del content["args"].true_vocab_size
        vars(content["args"]).update({"tokenizer_type": "NullTokenizer", **args})

    for path in rank_files(folder):
        edit(path, change)


def with_optimizer(content: dict[str, Any], *, half: bool, step: int) -> None:
    """Adds an Adam's state, numbered as Megatron-LM does; each value tells its parameter's, times 2 or 3.

    With ``half`` the parameters become bfloat16 and their fp32 originals go to the optimizer.
    """
    named = list(flat_tensors(content["model"]))
    decayed = [tensor for name, tensor in named if tensor.ndim > 1 and not name.endswith(".bias")]
    others = [tensor for name, tensor in named if tensor.ndim <= 1 or name.endswith(".bias")]
    order = [*decayed, *others]
    numbers = list(range(len(order)))
    state = {number: {"exp_avg": 2 * tensor, "exp_avg_sq": 3 * tensor} for number, tensor in enumerate(order)}
    groups = [
        {"params": numbers[: len(decayed)], "wd_mult": 1.0, "lr_mult": 1.0, "step": step},
        {"params": numbers[len(decayed) :], "wd_mult": 0.0, "lr_mult": 1.0, "step": step},
    ]
    inner = {"state": state, "param_groups": groups}
    if not half:
        content["optimizer"] = inner
        return
    masters = [copy.deepcopy(decayed), copy.deepcopy(others)]
    content["optimizer"] = {"optimizer": inner, "fp32_from_fp16_params": masters}

    def halve(tree: dict[str, Any]) -> None:
        for key, value in tree.items():
            if isinstance(value, dict):
                halve(value)
            elif isinstance(value, Tensor):
                tree[key] = value.bfloat16()

    halve(content["model"])


def flat_tensors(tree: dict[str, Any], path: str = "") -> Iterator[tuple[str, Tensor]]:
    """The tensors of nested dicts in their order, by dotted name."""
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from flat_tensors(value, f"{path}{key}.")
        elif isinstance(value, Tensor):
            yield f"{path}{key}", value
