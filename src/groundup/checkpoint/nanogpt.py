"""nanoGPT's ``ckpt.pt``, read and written without its code.

``train.py`` saves a dict: ``model_args``, ``model`` (a GPT-2 by Hugging Face's names, with weights as linear
layers have them; the embedding once more as ``lm_head.weight``; ``_orig_mod.`` before each name of a compiled
one), ``optimizer`` (PyTorch's AdamW: read, not written), ``iter_num``, ``best_val_loss`` and ``config``, the
settings of its train.py.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from groundup.checkpoint.companions import Companions, read_companions, require_agreement
from groundup.checkpoint.export import Check, ExportAbout, export_folder
from groundup.checkpoint.families.config_values import COUNT, LAYERS, PROBABILITY, SWITCH, require_values
from groundup.checkpoint.families.gpt2_family import NAMES
from groundup.checkpoint.families.name_rules import match_weights, rules_for, to_theirs
from groundup.checkpoint.formats import Codec, Variant
from groundup.checkpoint.lazy import LazyModel, LazyTensor, in_memory, without_moments
from groundup.checkpoint.logical_tensors import logical_shapes
from groundup.checkpoint.safe_pickle.unpickle import load_pickled
from groundup.checkpoint.write_torch import write_torch
from groundup.core.errors import CheckpointError, ConfigError, DataError
from groundup.models import ModelConfig, model_config_from
from groundup.models.gpt2 import GPT2Config
from groundup.tokens.tokenizer.base import Tokenizer
from groundup.tokens.tokenizer.huggingface import bos_ids
from groundup.tokens.tokenizer.load_tokenizer import load_tokenizer, tokenizer_folder

_FILE, _TOKENIZER = "ckpt.pt", "tokenizer"
_EMBEDDING, _HEAD = "transformer.wte.weight", "lm_head.weight"
_COMPILED, _MASK = "_orig_mod.", ".attn.bias"
_ENTRIES = ("exp_avg", "exp_avg_sq")
_WITHOUT = "Read it without the optimizer's state: --no-moments."
_RULES = tuple(dataclasses.replace(rule, transposed=False) for rule in NAMES)
_SIZES = {
    "vocab_size": "vocab_size",
    "block_size": "max_sequence_length",
    "n_layer": "num_layers",
    "n_embd": "hidden_size",
    "n_head": "num_heads",
}
_VALUES = {**dict.fromkeys(_SIZES, COUNT), "n_layer": LAYERS, "bias": SWITCH, "dropout": PROBABILITY}
_NO_LOSS_YET = 1e9  # train.py's best_val_loss before the first evaluation


def is_nanogpt(path: Path) -> bool:
    """Whether a path is a checkpoint of nanoGPT's or a folder that holds one."""
    return (path / _FILE).is_file() or (path.is_file() and path.suffix == ".pt")


def open_nanogpt(path: Path, *, tokenizer: Tokenizer | None = None, moments: bool = False) -> LazyModel:
    """Opens a checkpoint; nothing in it is run.

    Args:
        path: The file, or its folder.
        tokenizer: Of the model; by default the one that lies beside it.
        moments: Whether to open the optimizer's too.

    Raises:
        CheckpointError: It is damaged, or of a model with a part that is not nanoGPT's own.
        DataError: There is no tokenizer: nanoGPT keeps none beside its checkpoints.
    """
    file = path / _FILE if path.is_dir() else path
    content = load_nanogpt(path)
    config = _config(content["model_args"], file)
    step = content.get("iter_num", 0)
    if type(step) is not int or step < 0:
        raise CheckpointError(f"iter_num is {str(step)[:40]!r}, it must be a whole number", where=file)
    weights = _weights(config, content["model"], file)
    beside = tokenizer_folder(file.parent / _TOKENIZER)
    companions = read_companions(beside) if beside else Companions()
    if tokenizer is not None:
        companions = companions.with_tokenizer_of(Companions())
    elif beside is None:
        raise DataError(
            "has no tokenizer beside it", where=path, fix="Name it: --tokenizer gpt2, or another FOLDER."
        )
    else:
        tokenizer = load_tokenizer(beside)
    require_agreement(companions, tokenizer, config.vocab_size, path)
    return LazyModel(
        config=config,
        weights=weights,
        tokenizer=tokenizer,
        source=path,
        moments=_moments(config, content["model"], content.get("optimizer"), file) if moments else {},
        step=step,
        samples=step * _samples_of_a_step(content.get("config")),
        bos_ids=bos_ids(beside) if beside else (),
        companions=companions,
    )


def load_nanogpt(path: Path) -> dict[str, Any]:
    """The content of a checkpoint, of which ``model`` and ``model_args`` are dicts.

    Raises:
        CheckpointError: It is damaged or none of nanoGPT's.
    """
    file = path / _FILE if path.is_dir() else path
    content = load_pickled(file)
    if not isinstance(content, dict) or not all(
        isinstance(content.get(key), dict) for key in ("model", "model_args")
    ):
        raise CheckpointError("holds no model and model_args of nanoGPT", where=file)
    return content


def write_nanogpt(
    stored: LazyModel,
    folder: Path,
    *,
    on_write: Callable[[int], None] | None = None,
    check: Check | None = None,
) -> None:
    """Writes a folder with a ``ckpt.pt`` that nanoGPT's ``sample.py`` loads, and the tokenizer.

    Raises:
        CheckpointError: The folder holds something else, or a weight does not fit its dtype.
        ConfigError: nanoGPT has no such model: says why.
        MachineError: The disk is too small or the files cannot be written.
    """
    config = stored.config
    if reason := find_foreign_part(config):
        raise ConfigError(reason, where="command line", fix="Write the native format or Hugging Face's.")
    assert isinstance(config, GPT2Config), "find_foreign_part has looked"
    weights = {name: stored.weights[name] for name in logical_shapes(config)}
    tensors = dict(to_theirs(_RULES, weights))
    args = {theirs: getattr(config, ours) for theirs, ours in _SIZES.items()}
    content = {
        "model": {**tensors, _HEAD: tensors[_EMBEDDING]},
        "model_args": {**args, "bias": config.bias, "dropout": config.dropout},
        "iter_num": stored.step,
        "best_val_loss": _NO_LOSS_YET,
        "config": {},
    }
    size_bytes = sum(tensor.size_bytes for tensor in tensors.values())
    with export_folder(
        folder, stored, size_bytes=size_bytes, about=ExportAbout(format="nanogpt"), check=check
    ) as temporary:
        write_torch(temporary / _FILE, content, on_write)
        stored.tokenizer.save(temporary / _TOKENIZER)
        stored.companions.write(temporary / _TOKENIZER)


def find_foreign_part(config: ModelConfig) -> str | None:
    """What nanoGPT's model does not have, or None."""
    if type(config) is not GPT2Config:
        return f"nanoGPT has GPT-2 alone, and the model's kind is {config.kind}"
    for name, needed in (
        ("activation", "gelu"),
        ("tied_embedding", True),
        ("ffn_size", 4 * config.hidden_size),
        ("norm_eps", 1e-5),
        ("attention_dropout", config.dropout),
    ):
        if getattr(config, name) != needed:
            return f"nanoGPT's model has {name} {needed!r} only, and this one {getattr(config, name)!r}"
    return None


def _config(args: Mapping[str, Any], file: Path) -> ModelConfig:
    if foreign := [str(key) for key in args if key not in _VALUES]:
        raise CheckpointError(
            f"model_args has {', '.join(foreign)[:200]}, which nanoGPT's own model has not", where=file
        )
    require_values(args, file, required=tuple(_SIZES), values=_VALUES, group="model_args.")
    tree = {ours: args[theirs] for theirs, ours in _SIZES.items()}
    dropout = args.get("dropout", 0.0)
    tree |= {"dropout": dropout, "attention_dropout": dropout, "bias": args.get("bias", True)}
    tree |= {"kind": "gpt2", "activation": "gelu", "ffn_size": 4 * args["n_embd"]}
    try:
        return model_config_from(tree, where=file)
    except ConfigError as error:
        raise CheckpointError(f"its model_args describe no model: {error}", where=file) from None


def _weights(config: ModelConfig, tensors: Mapping[Any, Any], file: Path) -> dict[str, LazyTensor]:
    if not all(isinstance(tensor, Tensor) for tensor in tensors.values()):
        raise CheckpointError("its model holds something else than tensors", where=file)
    found = {str(name).removeprefix(_COMPILED): in_memory(tensor) for name, tensor in tensors.items()}
    found = {name: tensor for name, tensor in found.items() if not name.endswith(_MASK)}
    head, embedding = found.pop(_HEAD, None), found.get(_EMBEDDING)
    if head and embedding and not torch.equal(head.read(), embedding.read()):
        raise CheckpointError(f"{_HEAD} is not {_EMBEDDING}, as nanoGPT ties them", where=file)
    return match_weights(_RULES, config, found, where=file, settings="model_args")


def _samples_of_a_step(settings: Any) -> int:
    """Sequences of one update, of all processes together; 0 where the settings do not tell."""
    given = settings if isinstance(settings, dict) else {}
    sizes = [given.get(key) for key in ("batch_size", "gradient_accumulation_steps")]
    return math.prod(size for size in sizes if type(size) is int and 0 < size < 1 << 24) if all(sizes) else 0


def _moments(
    config: ModelConfig, tensors: Mapping[Any, Any], optimizer: Any, file: Path
) -> dict[str, LazyTensor]:
    """The AdamW's state by our names; empty where there is none.

    States are numbered in the order of configure_optimizers: tensors of two dimensions, then all others.
    """
    states = optimizer.get("state") if isinstance(optimizer, dict) else None
    if not states:
        return {}
    shapes = {
        str(name).removeprefix(_COMPILED): tensor.shape
        for name, tensor in tensors.items()
        if not str(name).endswith((_HEAD, _MASK))
    }
    order = sorted(shapes, key=lambda name: len(shapes[name]) < 2)
    given: Mapping[Any, Any] = states if isinstance(states, dict) else {}
    found: dict[str, Any] = {name: given.get(number) for number, name in enumerate(order)}
    if len(states) != len(order) or not all(_is_state(state, shapes[name]) for name, state in found.items()):
        raise CheckpointError(
            "its optimizer's state is not that of an AdamW of its model", where=file, fix=_WITHOUT
        )
    kept: dict[str, LazyTensor] = {}
    for entry in _ENTRIES:
        theirs = {name: in_memory(found[name][entry]) for name in order}
        ours = match_weights(_RULES, config, theirs, where=file, settings="model_args")
        kept |= {f"{name}/{entry}": tensor for name, tensor in ours.items()}
    for rule in rules_for(_RULES, [name for name in logical_shapes(config) if name != "head.weight"]):
        step = in_memory(torch.as_tensor(found[rule.theirs]["step"], dtype=torch.float32))
        kept |= {f"{name}/step": step for name in rule.ours}
    return kept


def _is_state(state: Any, shape: torch.Size) -> bool:
    if not isinstance(state, dict) or not isinstance(state.get("step"), int | float | Tensor):
        return False
    moments = [state.get(entry) for entry in _ENTRIES]
    return all(isinstance(moment, Tensor) and moment.shape == shape for moment in moments)


def _variants(stored: LazyModel) -> Iterator[Variant]:
    yield Variant(tour=None if find_foreign_part(stored.config) else "")


CODEC = Codec(
    detect=is_nanogpt,
    open=open_nanogpt,
    write=write_nanogpt,
    kept=without_moments,
    variants=_variants,
    next_step=lambda folder, _: f"python sample.py --out_dir={folder} in nanoGPT",
)
