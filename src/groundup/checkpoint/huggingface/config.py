"""``config.json`` of Hugging Face's GPT-2, Llama, Mistral and Qwen2, in both directions."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from groundup.checkpoint.companions import require_ids
from groundup.checkpoint.huggingface.rope_scaling import read_rope, rope_json
from groundup.checkpoint.huggingface.values import require_equal_dropouts, require_values
from groundup.core.errors import CheckpointError, ConfigError, DataError
from groundup.core.files import read_json
from groundup.core.log import logger
from groundup.models import ModelConfig, model_config_from
from groundup.models.llama import LlamaConfig

_GELU = {
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu": "gelu",
    "gelu_python": "gelu",
}
_GPT2_FIXED: Mapping[str, Any] = {
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "add_cross_attention": False,
}
_LLAMA_FIXED: Mapping[str, Any] = {
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "pretraining_tp": 1,
}
_DEFAULT_WINDOW = 4096  # of Mistral and Qwen2 where config.json has none, in transformers 5.23.0
_QWEN2_FULL_LAYERS = 28  # before those with a window, where it has no max_window_layers


def architecture_of(config: ModelConfig) -> str:
    """Their class for a model of ours."""
    if isinstance(config, LlamaConfig):
        return "Qwen2ForCausalLM" if config.qkv_bias else "LlamaForCausalLM"
    return "GPT2LMHeadModel"


def config_json(config: ModelConfig) -> dict[str, Any]:
    """The content of ``config.json``, without token ids and dtype."""
    common = {
        "architectures": [architecture_of(config)],
        "vocab_size": config.vocab_size,
        "initializer_range": config.init_std,
        "tie_word_embeddings": config.tied_embedding,
        "use_cache": True,
    }
    if isinstance(config, LlamaConfig):
        return {
            **common,
            **(_qwen2_only(config) if config.qkv_bias else {**_LLAMA_FIXED, "model_type": "llama"}),
            "max_position_embeddings": config.max_sequence_length,
            "hidden_size": config.hidden_size,
            "intermediate_size": config.ffn_size,
            "num_hidden_layers": config.num_layers,
            "num_attention_heads": config.num_heads,
            "num_key_value_heads": config.num_kv_heads,
            "head_dim": config.head_dim,
            "rms_norm_eps": config.norm_eps,
            **rope_json(config),
            "attention_dropout": config.attention_dropout,
        }
    return {
        **common,
        **_GPT2_FIXED,
        "model_type": "gpt2",
        "n_positions": config.max_sequence_length,
        "n_ctx": config.max_sequence_length,
        "n_embd": config.hidden_size,
        "n_inner": config.ffn_size,
        "n_layer": config.num_layers,
        "n_head": config.num_heads,
        "activation_function": "gelu_new" if config.activation == "gelu_tanh" else "gelu",
        "layer_norm_epsilon": config.norm_eps,
        "resid_pdrop": config.dropout,
        "embd_pdrop": config.dropout,
        "attn_pdrop": config.attention_dropout,
    }


def read_config(path: Path) -> ModelConfig:
    """Our config of a ``config.json``.

    Raises:
        CheckpointError: Not a GPT-2, Llama, Mistral or Qwen2, or one with an option that is not supported:
            names it.
    """
    try:
        theirs = read_json(path)
    except DataError as error:
        raise CheckpointError(error.what, where=error.where, fix=error.fix) from None
    kind = theirs.get("model_type") if isinstance(theirs, dict) else None
    readers: Mapping[Any, Callable[[dict[str, Any], Path], dict[str, Any]]] = {
        "gpt2": _from_gpt2,
        "llama": _from_llama,
        "mistral": _from_llama,
        "qwen2": _from_llama,
    }
    if not isinstance(kind, str) or kind not in readers:
        raise CheckpointError(
            f"model_type is {kind!r}; supported are {', '.join(readers)}",
            where=path,
            fix="Name a folder of one of these.",
        )
    if theirs.get("quantization_config"):
        raise _unsupported(path, "quantization_config", theirs["quantization_config"], "none")
    require_values(theirs, path)
    try:
        return model_config_from(readers[kind](theirs, path), where=path)
    except KeyError as error:
        raise CheckpointError(f"{error.args[0]} is missing", where=path) from None
    except ConfigError as error:
        raise CheckpointError(f"describes no model: {error}", where=path) from None


def token_ids(path: Path) -> dict[str, Any]:
    """The ids of special tokens in a ``config.json``, which ``transformers`` takes where nothing else says.

    Raises:
        CheckpointError: One is no id.
    """
    theirs = read_json(path)
    found = {key: theirs.get(key) for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    for key, value in found.items():
        require_ids(key, value, path)
    return found


def _from_gpt2(theirs: dict[str, Any], path: Path) -> dict[str, Any]:
    _require_fixed(theirs, _GPT2_FIXED, path)
    require_equal_dropouts(theirs, path)
    activation = theirs.get("activation_function", "gelu_new")
    if activation not in _GELU:
        raise _unsupported(path, "activation_function", activation, f"one of {', '.join(_GELU)}")
    return {
        "kind": "gpt2",
        "vocab_size": theirs["vocab_size"],
        "max_sequence_length": theirs["n_positions"],
        "num_layers": theirs["n_layer"],
        "hidden_size": theirs["n_embd"],
        "num_heads": theirs["n_head"],
        "ffn_size": theirs.get("n_inner") or 4 * theirs["n_embd"],
        "activation": _GELU[activation],
        "tied_embedding": theirs.get("tie_word_embeddings", True),
        "dropout": theirs.get("resid_pdrop", 0.1),
        "attention_dropout": theirs.get("attn_pdrop", 0.1),
        "norm_eps": theirs.get("layer_norm_epsilon", 1e-5),
        "init_std": theirs.get("initializer_range", 0.02),
    }


def _from_llama(theirs: dict[str, Any], path: Path) -> dict[str, Any]:
    _require_fixed(theirs, _LLAMA_FIXED, path)
    head_dim = theirs["hidden_size"] // theirs["num_attention_heads"]
    if theirs.get("head_dim") not in (None, head_dim):
        raise _unsupported(path, "head_dim", theirs["head_dim"], f"{head_dim} (hidden_size / heads)")
    heads = theirs["num_attention_heads"]
    if theirs["model_type"] == "llama":
        kv_heads = theirs.get("num_key_value_heads")
    else:  # where the key is missing, Mistral has 8 and Qwen2 32: better refused
        kv_heads = theirs["num_key_value_heads"]
    return {
        "kind": "llama",
        "vocab_size": theirs["vocab_size"],
        "max_sequence_length": _longest_exact(theirs, path),
        "num_layers": theirs["num_hidden_layers"],
        "hidden_size": theirs["hidden_size"],
        "num_heads": heads,
        "num_kv_heads": kv_heads or heads,
        "ffn_size": theirs["intermediate_size"],
        **read_rope(theirs, path),
        "qkv_bias": theirs["model_type"] == "qwen2",
        "tied_embedding": theirs.get("tie_word_embeddings", False),
        "attention_dropout": theirs.get("attention_dropout", 0.0),
        "norm_eps": theirs.get("rms_norm_eps", 1e-6),
        "init_std": theirs.get("initializer_range", 0.02),
    }


def _longest_exact(theirs: Mapping[str, Any], path: Path) -> int:
    """Tokens up to which a model with a sliding window, which ours has not, is the same without."""
    longest: int = theirs["max_position_embeddings"]
    window = _window(theirs)
    if window is not None and (type(window) is not int or window < 1):
        raise _unsupported(path, "sliding_window", window, "null, or a number of tokens")
    if window is None or not isinstance(longest, int) or window >= longest:
        return longest
    logger.warning(
        "%s: sliding_window = %d is less than max_position_embeddings = %d: max_sequence_length becomes %d;"
        " up to there the window hides nothing, beyond it the model would need one, which is not supported",
        path,
        window,
        longest,
        window,
    )
    return window


def _window(theirs: Mapping[str, Any]) -> Any:
    """The sliding window of any layer, in tokens with the one that attends; None: all see all."""
    if theirs["model_type"] == "mistral":
        return theirs.get("sliding_window", _DEFAULT_WINDOW)
    if theirs["model_type"] != "qwen2" or not theirs.get("use_sliding_window", False):
        return None
    if theirs.get("layer_types"):
        slides = "sliding_attention" in theirs["layer_types"]
    else:
        slides = theirs["num_hidden_layers"] > theirs.get("max_window_layers", _QWEN2_FULL_LAYERS)
    return theirs.get("sliding_window", _DEFAULT_WINDOW) if slides else None


def _qwen2_only(config: LlamaConfig) -> dict[str, Any]:
    return {
        "model_type": "qwen2",
        "hidden_act": "silu",
        "use_sliding_window": False,
        "sliding_window": None,
        "max_window_layers": config.num_layers,
    }


def _require_fixed(theirs: Mapping[str, Any], fixed: Mapping[str, Any], path: Path) -> None:
    for key, value in fixed.items():
        if theirs.get(key, value) != value:
            raise _unsupported(path, key, theirs[key], repr(value))


def _unsupported(path: Path, key: str, value: Any, expected: str) -> CheckpointError:
    return CheckpointError(
        f"{key} = {value!r} is not supported, only {expected}", where=path, fix="Choose another model."
    )
