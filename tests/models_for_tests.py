"""One tiny model of each kind, by name; the contract tests run over all."""

from groundup.models import ModelConfig
from groundup.models.gpt2 import GPT2Config
from groundup.models.llama import LlamaConfig
from groundup.models.rope import LinearRopeScaling

_SIZES = {"vocab_size": 300, "max_sequence_length": 64, "num_layers": 2, "hidden_size": 32, "ffn_size": 48}

MODELS: dict[str, ModelConfig] = {
    "gpt2": GPT2Config(num_heads=4, **_SIZES),
    "gpt2-erf-untied-biasless": GPT2Config(
        num_heads=4, activation="gelu", tied_embedding=False, bias=False, **_SIZES
    ),
    "llama": LlamaConfig(num_heads=4, num_kv_heads=4, **_SIZES),
    "llama-grouped-tied": LlamaConfig(num_heads=4, num_kv_heads=2, tied_embedding=True, **_SIZES),
    "qwen2-grouped-tied": LlamaConfig(
        num_heads=4,
        num_kv_heads=2,
        tied_embedding=True,
        qkv_bias=True,
        rope_scaling=LinearRopeScaling(factor=4),
        **_SIZES,
    ),
}
