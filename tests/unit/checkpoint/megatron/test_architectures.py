"""Which of the architectures that Megatron-LM's arguments can say are models here, and what others lack."""

import dataclasses
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from groundup.checkpoint.huggingface.weights import open_huggingface, write_huggingface, write_stored
from groundup.checkpoint.lazy import LoadedModel, as_lazy, load
from groundup.checkpoint.megatron.architectures import ARCHITECTURES, FOREIGN_PARTS, kind_of, traits_of
from groundup.checkpoint.megatron.read import open_megatron
from groundup.checkpoint.megatron.write import write_megatron
from groundup.checkpoint.parity import compare
from groundup.core.errors import CheckpointError, ConfigError
from groundup.models.stablelm import StableLMConfig
from groundup.verify.convert import verify_convert
from tests.megatron_files import edit, rank_files, write_checkpoint
from tests.tiny import tiny_model

GUIDE = Path(__file__).parents[4] / "docs" / "guides" / "conversion.md"
ROPE = {"position_embedding_type": "rope"}
ROTARY_2023 = {"use_rotary_position_embeddings": True, "add_position_embedding": False}  # of 992da75
RMS = {"normalization": "RMSNorm"}
WITHOUT = {"add_bias_linear": False}


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ({}, "gpt2"),
        (WITHOUT, "gpt2"),
        ({**ROPE, **RMS, **WITHOUT, "swiglu": True}, "llama"),
        ({**ROPE, **RMS, **WITHOUT, "swiglu": True, "add_qkv_bias": True}, "llama"),
        ({**ROPE, "swiglu": True}, "stablelm"),
        ({**ROTARY_2023, "swiglu": True, **WITHOUT}, "stablelm"),
        ({**ROPE, "swiglu": True, **WITHOUT, "add_qkv_bias": True, "rotary_percent": 0.25}, "stablelm"),
        ({**ROPE, **RMS, "swiglu": True}, "Llamas with biases .* biases in all linear layers beside RMSNorm"),
        (ROPE, "StarCoder 2 .* rotary positions with an MLP that is not gated"),
        ({**ROPE, **RMS, **WITHOUT}, "StarCoder 2 "),
        ({"group_query_attention": True}, "StarCoder 1 .* key/value heads that are shared"),
        ({"swiglu": True}, "learned positions with SwiGLU or RMSNorm"),
        (RMS, "learned positions with SwiGLU or RMSNorm"),
        ({"position_embedding_type": "none"}, "a model without positions"),
        ({"add_position_embedding": False}, "a model without positions"),
        ({"position_embedding_type": "mrope", "swiglu": True}, "neither learned nor plainly rotary"),
    ],
)  # fmt: skip
def test_usual_parts_are_told_apart(args: dict[str, Any], expected: str, tmp_path: Path) -> None:
    if expected in ("gpt2", "llama", "stablelm"):
        assert kind_of(args, tmp_path) == expected
        return
    with pytest.raises(CheckpointError, match=expected):
        kind_of(args, tmp_path)


def test_every_combination_of_parts_is_one_of_the_table(tmp_path: Path) -> None:
    for norm, swiglu, linear, qkv, grouped, positions in itertools.product(
        ("LayerNorm", "RMSNorm"), *[(False, True)] * 4, ("learned_absolute", "rope", "none", "yarn")
    ):
        args = {"normalization": norm, "swiglu": swiglu, "add_bias_linear": linear, "add_qkv_bias": qkv,
                "group_query_attention": grouped, "position_embedding_type": positions}  # fmt: skip
        traits = traits_of(args)
        held = positions == "rope" and swiglu and (norm == "LayerNorm" or traits.biases != "all")
        held = held or (positions == "learned_absolute" and norm == "LayerNorm" and not (swiglu or grouped))
        try:
            kind_of(args, tmp_path)
        except CheckpointError:
            assert not held, args
        else:
            assert held, args


@pytest.mark.parametrize("part", FOREIGN_PARTS, ids=lambda part: part.key)
def test_parts_of_no_model_here_are_refused_by_name(part: Any, tmp_path: Path) -> None:
    assert kind_of({part.key: None}, tmp_path) == kind_of({part.key: part.expected}, tmp_path) == "gpt2"
    with pytest.raises(CheckpointError, match=f"{part.key} = '?8'? is not supported, only .*{part.about}"):
        kind_of({part.key: "8" if isinstance(part.expected, str) else 8}, tmp_path)


def test_the_guide_shows_both_tables() -> None:
    text = GUIDE.read_text()
    for row in ARCHITECTURES:
        held = f"`kind: {row.kind}`: {row.about}" if row.kind else f"refused: {row.about}"
        assert f"| {row.models} | `{row.flags}` | {held} |" in text
    for part in FOREIGN_PARTS:
        assert f"| `{part.key}` | {part.about} | {part.models} |" in text


def with_all_biases(**changes: Any) -> LoadedModel:
    return tiny_model("stablelm", linear_bias="all", **changes)


@pytest.mark.parametrize("names", ["legacy", "core", "core-fused"])
def test_biases_in_all_linear_layers_come_back(names: Any, tmp_path: Path) -> None:
    ours = with_all_biases()
    write_megatron(as_lazy(ours), tmp_path / "out", tp=2, pp=2, names=names)
    found = open_megatron(tmp_path / "out")
    assert found.config == ours.config
    for name, parameter in as_lazy(ours).weights.items():
        assert torch.equal(found.weights[name].read(), parameter.read()), name
    assert compare(ours, load(found, device="cpu")).max_difference == 0


def test_flags_of_2023_are_read(tmp_path: Path) -> None:
    """Of 992da75: --use-rotary-position-embeddings --swiglu --rotary-percent 0.5."""
    ours = with_all_biases(num_kv_heads=4, rotary_fraction=0.5)
    write_checkpoint(ours, tmp_path / "out", tp=2)
    later = ("normalization", "position_embedding_type", "add_qkv_bias", "group_query_attention",
             "num_query_groups", "rotary_base", "layernorm_epsilon")  # fmt: skip

    def older(content: dict[str, Any]) -> None:
        for name in later:
            delattr(content["args"], name)

    for path in rank_files(tmp_path / "out"):
        edit(path, older)
    assert open_megatron(tmp_path / "out").config == ours.config


def test_transformers_has_no_biases_in_all_linear_layers(tmp_path: Path) -> None:
    ours = with_all_biases()
    with pytest.raises(ConfigError, match="linear_bias is all, and no class of transformers"):
        write_huggingface(ours, tmp_path / "out")
    assert not any(tmp_path.iterdir())
    found = {line.path: line for line in verify_convert(as_lazy(ours), tmp_path, on_write=lambda done: None)}
    assert all(line.is_right for line in found.values())
    assert found["hf"].omitted.startswith("refused: linear_bias is all")
    assert found["megatron core-fused 2x2"].bits_equal
    assert found["hf, computed by transformers"].omitted.startswith("refused: linear_bias is all")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"use_parallel_residual": True}, "use_parallel_residual = True is not supported, only False"),
        ({"qk_layernorm": True}, "qk_layernorm = True is not supported"),
        ({"hidden_dropout": 0.1}, "hidden_dropout = 0.1 is not supported, only 0.0"),
        ({"partial_rotary_factor": 0.25}, "partial_rotary_factor is 0.25 and 0.5, it must be one number"),
        ({"partial_rotary_factor": 2}, "partial_rotary_factor is 2 and 0.5, it must be one number above 0"),
        ({"num_key_value_heads": None}, "num_key_value_heads is missing"),
    ],
)
def test_options_of_a_stablelm_that_are_not_held_are_refused(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    write_stored(as_lazy(tiny_model("stablelm")), tmp_path / "out")
    path = tmp_path / "out" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(CheckpointError, match=message):
        open_huggingface(tmp_path / "out")


def test_a_part_of_a_head_that_is_odd_cannot_be_rotated() -> None:
    config = tiny_model("stablelm").config
    assert isinstance(config, StableLMConfig)
    with pytest.raises(ValueError, match=r"even number of a head's dimensions, not 3 \(rotary_fraction 0.4"):
        dataclasses.replace(config, rotary_fraction=0.4)
