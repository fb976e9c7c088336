"""What ``config.json`` of Llama, Mistral and Qwen2 may and may not say."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from groundup.checkpoint.huggingface.config import config_json, read_config
from groundup.checkpoint.huggingface.weights import open_huggingface, read_huggingface, write_huggingface
from groundup.core.errors import CheckpointError
from groundup.models.llama import LlamaConfig
from groundup.models.rope import LinearRopeScaling, Llama3RopeScaling, NoRopeScaling
from tests.tiny import tiny_model

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 300,
    "max_position_embeddings": 64,
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
MISTRAL = {**LLAMA, "model_type": "mistral", "sliding_window": None}
QWEN2 = {**LLAMA, "model_type": "qwen2"}
LINEAR = {"rope_type": "linear", "factor": 2.0}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def config_of(theirs: dict[str, Any], folder: Path) -> LlamaConfig:
    path = folder / "config.json"
    path.write_text(json.dumps(theirs))
    config = read_config(path)
    assert isinstance(config, LlamaConfig)
    return config


@pytest.mark.parametrize(
    ("theirs", "message"),
    [
        ({**LLAMA, "attention_bias": True}, "attention_bias = True is not supported"),
        ({**QWEN2, "mlp_bias": True}, "mlp_bias = True is not supported"),
        ({**MISTRAL, "hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        ({**MISTRAL, "head_dim": 16}, "head_dim = 16 is not supported, only 8"),
        ({**LLAMA, "rope_scaling": {"type": "yarn", "factor": 4.0}}, "rope_scaling of type 'yarn' is not"),
        ({**QWEN2, "rope_scaling": {"type": "dynamic", "factor": 4.0}}, "type 'dynamic' is not supported"),
        ({**LLAMA, "rope_parameters": {"rope_type": "longrope"}}, "rope_parameters of type 'longrope'"),
        ({**LLAMA, "rope_parameters": {"full_attention": {"rope_theta": 1.0}}}, "differs by kind of layer"),
        ({**LLAMA, "rope_scaling": {"type": "linear"}}, "rope_scaling.factor is missing"),
        ({**LLAMA, "rope_scaling": {"rope_type": "llama3", "factor": 8}}, "rope_scaling.low_freq_factor is"),
        ({**LLAMA, "rope_scaling": {**LLAMA3, "factor": 0}}, "rope_scaling.factor is 0, it must be"),
        ({**LLAMA, "rope_scaling": "linear"}, "rope_scaling is 'linear', no group of settings"),
        ({**LLAMA, "rope_scaling": LINEAR, "rope_parameters": LLAMA3}, "contradict each other"),
        ({**LLAMA, "partial_rotary_factor": 0.5, "rope_scaling": LINEAR}, "partial_rotary_factor = 0.5"),
        ({**LLAMA, "partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5"),
        (
            {key: v for key, v in QWEN2.items() if key != "num_key_value_heads"},
            "num_key_value_heads is missing",
        ),
        ({**MISTRAL, "sliding_window": 0}, "sliding_window = 0"),
        ({**MISTRAL, "sliding_window": "8"}, "sliding_window = '8'"),
        ({**LLAMA, "model_type": "qwen2_moe"}, "'qwen2_moe'; supported are gpt2, llama, mistral, qwen2"),
    ],
)
def test_what_is_not_supported_is_named(theirs: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError) as caught:
        config_of(theirs, tmp_path)
    parts = message.split(".*")
    assert all(part in str(caught.value) for part in parts), caught.value
    assert str(tmp_path / "config.json") in str(caught.value)


@pytest.mark.parametrize(
    ("theirs", "longest"),
    [
        (MISTRAL, 64),
        ({**MISTRAL, "sliding_window": 64}, 64),
        ({**MISTRAL, "sliding_window": 4096}, 64),
        ({**MISTRAL, "sliding_window": 24}, 24),
        ({**MISTRAL, "max_position_embeddings": 32768}, 32768),
        ({**LLAMA, "model_type": "mistral", "max_position_embeddings": 32768}, 4096),  # without the key
        ({**QWEN2, "sliding_window": 24}, 64),
        ({**QWEN2, "sliding_window": 24, "use_sliding_window": False}, 64),
        ({**QWEN2, "sliding_window": 24, "use_sliding_window": True, "max_window_layers": 1}, 24),
        ({**QWEN2, "sliding_window": 24, "use_sliding_window": True, "max_window_layers": 2}, 64),
        ({**QWEN2, "sliding_window": 24, "use_sliding_window": True}, 64),  # 28 layers come first
        ({**QWEN2, "sliding_window": 24, "use_sliding_window": True,
          "layer_types": ["full_attention", "sliding_attention"]}, 24),
        ({**LLAMA, "sliding_window": 24}, 64),  # Llama has none: transformers ignores it
    ],
)  # fmt: skip
def test_a_sliding_window_bounds_the_length_and_is_told(
    theirs: dict[str, Any], longest: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        config = config_of(theirs, tmp_path)
    assert config.max_sequence_length == longest
    told = [record.getMessage() for record in caplog.records if "sliding_window" in record.getMessage()]
    shortened = longest < theirs["max_position_embeddings"]
    assert len(told) == shortened
    assert all(f"max_sequence_length becomes {longest}" in message for message in told)


@pytest.mark.parametrize(
    ("theirs", "base", "scaling"),
    [
        (LLAMA, 10000.0, NoRopeScaling()),
        ({**LLAMA, "rope_theta": 5e5}, 5e5, NoRopeScaling()),
        ({**LLAMA, "rope_theta": 5e5, "rope_scaling": None}, 5e5, NoRopeScaling()),
        ({**LLAMA, "rope_theta": 5e5, "rope_scaling": LINEAR}, 5e5, LinearRopeScaling(factor=2)),
        ({**LLAMA, "rope_scaling": {"type": "linear", "factor": 2}}, 10000.0, LinearRopeScaling(factor=2)),
        ({**LLAMA, "rope_parameters": {**LLAMA3, "rope_theta": 5e5}}, 5e5, Llama3RopeScaling(factor=8)),
        (
            {
                **LLAMA,
                "rope_theta": 5e5,
                "rope_scaling": {**LLAMA3, "original_max_position_embeddings": None},
            },
            5e5,
            Llama3RopeScaling(factor=8, original_max_sequence_length=64),
        ),
    ],
)
def test_both_spellings_of_scaling_are_read(
    theirs: dict[str, Any], base: float, scaling: object, tmp_path: Path
) -> None:
    config = config_of(theirs, tmp_path)
    assert config.rope_base == base
    assert config.rope_scaling == scaling


scalings = st.one_of(
    st.just(NoRopeScaling()),
    st.builds(LinearRopeScaling, factor=st.floats(1, 1e4)),
    st.builds(
        Llama3RopeScaling,
        factor=st.floats(1, 1e4),
        low_frequency_factor=st.floats(0.1, 2),
        high_frequency_factor=st.floats(2.1, 9),
        original_max_sequence_length=st.integers(1, 10**6),
    ),
)


@settings(max_examples=60, deadline=None)
@given(scaling=scalings, base=st.floats(2, 1e8), qkv_bias=st.booleans(), spelling=st.sampled_from([4, 5, 45]))
def test_configs_come_back_in_either_spelling(
    scaling: Any, base: float, qkv_bias: bool, spelling: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    config = LlamaConfig(
        vocab_size=300,
        max_sequence_length=64,
        num_layers=2,
        hidden_size=32,
        num_heads=4,
        num_kv_heads=2,
        ffn_size=48,
        rope_base=base,
        rope_scaling=scaling,
        qkv_bias=qkv_bias,
    )
    theirs = config_json(config)
    assert theirs["model_type"] == ("qwen2" if qkv_bias else "llama")
    left_out = {4: ("rope_parameters",), 5: ("rope_theta", "rope_scaling"), 45: ()}[spelling]
    written = {key: value for key, value in theirs.items() if key not in left_out}
    assert config_of(written, tmp_path_factory.mktemp("config")) == config


def test_biases_that_the_config_does_not_tell_of_are_refused(tmp_path: Path) -> None:
    write_huggingface(tiny_model("qwen2-grouped-tied"), tmp_path)
    path = tmp_path / "config.json"
    theirs = json.loads(path.read_text())
    assert theirs["architectures"] == ["Qwen2ForCausalLM"]
    path.write_text(json.dumps({**theirs, "model_type": "llama"}))
    with pytest.raises(CheckpointError, match=r"unexpected: model\.layers\.0\.self_attn\.k_proj\.bias"):
        read_huggingface(tmp_path)
    path.write_text(json.dumps(theirs))
    found = open_huggingface(tmp_path)
    assert found.config == tiny_model("qwen2-grouped-tied").config
