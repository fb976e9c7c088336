"""From Megatron-LM's flags of a model to our model, by the tables that read its checkpoints."""

from pathlib import Path
from typing import Any

from groundup.checkpoint.families import family_of
from groundup.checkpoint.megatron.args import model_config
from groundup.core.config import to_dict
from groundup.core.errors import CheckpointError
from groundup.megatron.flag_table import flag_table
from groundup.megatron.parse_flags import Given
from groundup.megatron.setting_tree import Settings, refusal
from groundup.models import ModelConfig

_REQUIRED = ("num_layers", "hidden_size", "num_attention_heads", "max_position_embeddings")
_SWIGLU_MULTIPLE = 64
_ALSO = ("attention_dropout", "hidden_dropout", "init_method_std")  # of a model, in other groups of the help

MODEL_NAMES = frozenset(
    flag.dest
    for flag in flag_table().values()
    if flag.key and (flag.group == "model" or flag.dest in _ALSO) and flag.key.startswith("model.")
)
"""Names of the flags that say what the model is."""


def put_model(settings: Settings, vocab_size: int, source: str) -> ModelConfig:
    """Sets the model.

    Args:
        settings: With the flags.
        vocab_size: True vocabulary.
        source: What has so many ids.

    Raises:
        ConfigError: A flag is missing, or the model is none that is supported.
    """
    given = settings.given
    if missing := [name for name in _REQUIRED if given[name] is None]:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in missing)
        raise refusal(f"{flags} missing", "Give them, or --use-checkpoint-args with --load.")
    args = {name: given[name] for name in MODEL_NAMES if given[name] is not None}
    args["ffn_hidden_size"] = given["ffn_hidden_size"] or _default_ffn(given)
    where = Path("pretrain_gpt")
    try:
        config = model_config(
            args, {}, num_layers=args["num_layers"], vocab_size=vocab_size, tp=1, where=where
        )
    except CheckpointError as error:
        raise refusal(f"no model of these flags: {error.what}", error.fix) from None
    if config.kind == "gpt2" and not args["add_bias_linear"]:
        raise refusal(
            "--disable-bias-linear: a GPT-2 has biases in its linear layers",
            "Leave it out, or give the flags of a Llama: --swiglu --normalization RMSNorm"
            " --position-embedding-type rope.",
        )
    _put_all(settings, config)
    settings.put("model.vocab_size", vocab_size, source=source)
    return config


def legacy_or_core(config: ModelConfig) -> str:
    """The names under which Megatron-LM can read a model: the older ones where both will do."""
    return "core" if family_of(config).megatron.why_not_legacy(config) else "legacy"


def _default_ffn(given: Given) -> int:
    """Megatron-LM's: 4 times the hidden size, or, where there is a gate, as many parameters as that."""
    hidden: int = given["hidden_size"]
    return int((4 * hidden * 2 / 3) / _SWIGLU_MULTIPLE) * _SWIGLU_MULTIPLE if given["swiglu"] else 4 * hidden


def _put_all(settings: Settings, config: ModelConfig) -> None:
    by_key: dict[str, list[str]] = {}
    for flag in flag_table().values():
        if flag.dest in MODEL_NAMES:
            by_key.setdefault(flag.key, []).append(flag.dest)
    tree: dict[str, Any] = to_dict(config)
    for name, value in tree.items():
        names = by_key.get(f"model.{name}", [])
        settings.put(f"model.{name}", value, *names, source="" if names else "the kind of model")
