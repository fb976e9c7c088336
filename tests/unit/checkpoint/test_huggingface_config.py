"""Every impossible value in a ``config.json`` is one sentence with the file and the key."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from groundup.checkpoint.huggingface.config import config_json, read_config
from groundup.core.errors import CheckpointError
from tests.instances import MODELS

IMPOSSIBLE: tuple[Any, ...] = ("64", -1, 0, 1.5, [], ["x"], {"a": 1}, True, 10**30, math.nan, math.inf, None)
WITHOUT_MEANING = {"architectures", "use_cache", "n_ctx", "vocab_size_of_others"}
MAY_BE_NULL = {"n_inner", "num_key_value_heads", "head_dim", "rope_theta", "sliding_window", "rope_scaling"}
MAY_BE_NULL |= {"rope_parameters", "layer_types"}
SWITCHES = {"tie_word_embeddings", "attention_bias", "mlp_bias", "use_sliding_window", "add_cross_attention"}
SWITCHES |= {"scale_attn_weights", "scale_attn_by_inverse_layer_idx"}


def content_of(name: str) -> dict[str, Any]:
    content = config_json(MODELS[name])
    if name == "gpt2":
        return content
    more = {"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 1, "layer_types": []}
    return content | (more if name.startswith("qwen2") else {})


def is_possible(key: str, value: Any) -> bool:
    """Whether a value that no count may have suits this key after all."""
    if value is None:
        return key in MAY_BE_NULL
    if isinstance(value, bool):
        return key in SWITCHES or key == "pretraining_tp"
    if key == "layer_types":
        return isinstance(value, list)
    if key in ("rope_scaling", "rope_parameters"):
        return not value or isinstance(value, dict)
    if key in ("initializer_range", "attention_dropout") or key.endswith("_pdrop"):
        return value == 0 or (key == "initializer_range" and value in (1.5, 10**30))
    if key in ("rms_norm_eps", "layer_norm_epsilon", "rope_theta"):
        return value in (1.5, 10**30)
    return key in ("max_window_layers", "sliding_window") and value in (0, 10**30)


def wrong_values(name: str) -> Iterator[tuple[str, Any]]:
    for key in content_of(name).keys() - WITHOUT_MEANING:
        for value in IMPOSSIBLE:
            if not is_possible(key, value):
                yield key, value


@pytest.mark.parametrize("name", ["gpt2", "llama-grouped-tied", "qwen2-grouped-tied"])
def test_impossible_values_are_refused_by_file_and_key(name: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(content_of(name)))
    read_config(path)
    tried = list(wrong_values(name))
    assert len(tried) > 130
    for key, value in tried:
        path.write_text(json.dumps({**content_of(name), key: value}))
        try:
            read_config(path)
        except CheckpointError as error:
            caught = error
        else:
            pytest.fail(f"{key} = {value!r} is taken")
        assert key in caught.what, (key, value, str(caught))
        assert caught.where == str(path)


@pytest.mark.parametrize("key", ["rope_theta", "factor", "low_freq_factor", "rope_type"])
@pytest.mark.parametrize("value", ["8", -1, 0, [], {"a": 1}, True, math.nan])
def test_impossible_rotary_settings_are_refused(key: str, value: Any, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    content = config_json(MODELS["llama"])
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    for group in ("rope_scaling", "rope_parameters"):
        given = {name: part for name, part in content.items() if not name.startswith("rope_")}
        path.write_text(json.dumps({**given, group: scaling}))
        read_config(path)
        path.write_text(json.dumps({**given, group: {**scaling, key: value}}))
        with pytest.raises(CheckpointError, match=f"config.json: {group}"):
            read_config(path)


def test_examples_read_well(tmp_path: Path) -> None:
    path = tmp_path / "config.json"

    def refused(name: str, match: str, **changes: Any) -> None:
        path.write_text(json.dumps({**config_json(MODELS[name]), **changes}))
        with pytest.raises(CheckpointError, match=f"config.json: {match}"):
            read_config(path)

    refused("llama", "hidden_size is '64', it must be a whole number from 1", hidden_size="64")
    refused("llama", "num_attention_heads is 0, it must be a whole number from 1", num_attention_heads=0)
    refused("llama", "hidden_size is 33, not a multiple of num_attention_heads, which is 4", hidden_size=33)
    refused("llama", ".*num_key_value_heads, which is 3", num_key_value_heads=3)
    refused("gpt2", "embd_pdrop is 0.1 and resid_pdrop 0.0", embd_pdrop=0.1, resid_pdrop=0.0)
    refused("gpt2", "model_type is .*supported are gpt2", model_type=["gpt2"])
    content = config_json(MODELS["gpt2"])
    del content["embd_pdrop"], content["n_head"]
    path.write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match="n_head is missing"):
        read_config(path)
    path.write_text(json.dumps({**content, "n_head": 4, "resid_pdrop": 0.2}))
    with pytest.raises(
        CheckpointError, match=r"embd_pdrop is 0\.1 and resid_pdrop 0\.2"
    ):  # theirs by default
        read_config(path)
