"""Scaled rotary positions and biases of queries, keys and values in Megatron-LM's arguments."""

import dataclasses
import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from groundup.checkpoint.lazy import load
from groundup.checkpoint.megatron.read import open_megatron
from groundup.core.errors import CheckpointError, ConfigError
from groundup.models.rope import LinearRopeScaling, Llama3RopeScaling, NoRopeScaling, RopeScaling
from tests.megatron_files import edit, rank_files, write_checkpoint
from tests.tiny import tiny_model


def with_args(folder: Path, **values: Any) -> None:
    for path in rank_files(folder):
        edit(path, lambda content: vars(content["args"]).update(values))


def args_of(folder: Path) -> dict[str, Any]:
    return vars(torch.load(rank_files(folder)[0], weights_only=False)["args"])


def scaled(scaling: RopeScaling) -> Any:
    ours = tiny_model("llama")
    return dataclasses.replace(ours, config=dataclasses.replace(ours.config, rope_scaling=scaling))


@pytest.mark.parametrize(
    ("scaling", "args"),
    [
        (NoRopeScaling(), {"use_rope_scaling": False, "rotary_seq_len_interpolation_factor": None}),
        (LinearRopeScaling(factor=4), {"use_rope_scaling": False, "rotary_seq_len_interpolation_factor": 4}),
        (
            Llama3RopeScaling(factor=32),
            {
                "use_rope_scaling": True,
                "rope_scaling_factor": 32.0,
                "rotary_seq_len_interpolation_factor": None,
            },
        ),
    ],
)
def test_scalings_are_told_in_args(scaling: RopeScaling, args: dict[str, Any], tmp_path: Path) -> None:
    write_checkpoint(scaled(scaling), tmp_path / "out", names="core")
    written = args_of(tmp_path / "out")
    assert {key: written[key] for key in args} == args
    assert open_megatron(tmp_path / "out").config == scaled(scaling).config


@pytest.mark.parametrize(
    ("args", "expected", "warned"),
    [
        (
            {"use_rope_scaling": True},
            Llama3RopeScaling(factor=8),
            False,
        ),  # as before the factor could be chosen
        ({"use_rope_scaling": True, "rope_scaling_factor": 8.0}, Llama3RopeScaling(factor=8), False),
        ({"use_rope_scaling": True, "rope_scaling_factor": 32.0}, Llama3RopeScaling(factor=32), True),
        ({"use_rope_scaling": False, "rope_scaling_factor": 32.0}, NoRopeScaling(), False),
        ({"rotary_seq_len_interpolation_factor": 4}, LinearRopeScaling(factor=4), True),
    ],
)
def test_their_args_are_read(
    args: dict[str, Any],
    expected: RopeScaling,
    warned: bool,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    write_checkpoint(tiny_model("llama"), tmp_path / "out")
    with_args(tmp_path / "out", **args)
    with caplog.at_level(logging.WARNING):
        assert open_megatron(tmp_path / "out").config == scaled(expected).config
    assert any("make sure that yours does" in record.getMessage() for record in caplog.records) == warned


@pytest.mark.parametrize(
    ("scaling", "message"),
    [
        (
            LinearRopeScaling(factor=2.5),
            r"rope_scaling\.factor = 2\.5 cannot be written.* only a whole number",
        ),
        (
            Llama3RopeScaling(factor=8, low_frequency_factor=2),
            r"low_frequency_factor = 2 cannot.* only 1\.0",
        ),
        (Llama3RopeScaling(factor=8, high_frequency_factor=5), r"high_frequency_factor = 5 cannot"),
        (Llama3RopeScaling(factor=8, original_max_sequence_length=4096), r"length = 4096 cannot.* only 8192"),
    ],
)
def test_what_their_args_cannot_say_is_refused(scaling: RopeScaling, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        write_checkpoint(scaled(scaling), tmp_path / "out", names="core")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rope_scaling": Llama3RopeScaling(factor=8)}, "no Llama 3.1 scaling"),
        ({"rope_base": 500000.0}, "rope_base is 500000, and .* know 10000 only"),
    ],
)
def test_what_legacy_models_would_ignore_is_refused(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    ours = tiny_model("llama")
    ours = dataclasses.replace(ours, config=dataclasses.replace(ours.config, **change))
    with pytest.raises(ConfigError, match=message):
        write_checkpoint(ours, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    write_checkpoint(ours, tmp_path / "out", names="core")
    assert open_megatron(tmp_path / "out").config == ours.config


def test_two_scalings_at_once_are_refused(tmp_path: Path) -> None:
    write_checkpoint(tiny_model("llama"), tmp_path / "out")
    with_args(tmp_path / "out", use_rope_scaling=True, rotary_seq_len_interpolation_factor=2)
    with pytest.raises(
        CheckpointError, match="use_rope_scaling together with rotary_seq_len_interpolation_factor"
    ):
        open_megatron(tmp_path / "out")


@pytest.mark.parametrize("rank", [0, 1])
def test_the_biases_of_a_rank_lie_by_head(rank: int, tmp_path: Path) -> None:
    ours = tiny_model("qwen2-grouped-tied")
    write_checkpoint(ours, tmp_path / "out", tp=2)
    assert args_of(tmp_path / "out")["add_qkv_bias"] is True
    assert args_of(tmp_path / "out")["add_bias_linear"] is False
    encoder = torch.load(rank_files(tmp_path / "out")[rank], weights_only=False)["model"]["language_model"][
        "encoder"
    ]
    assert {name for name in encoder if name.endswith("bias")} == {
        f"layers.{layer}.self_attention.query_key_value.bias" for layer in range(2)
    }
    bias = {
        part: dict(ours.model.named_parameters())[f"layers.1.attention.{part}.bias"]
        for part in ("wq", "wk", "wv")
    }
    # heads of 8: a rank has one group of two query heads, their key and their value
    expected = torch.cat(
        (bias["wq"][16 * rank :][:16], bias["wk"][8 * rank :][:8], bias["wv"][8 * rank :][:8])
    )
    assert torch.equal(encoder["layers.1.self_attention.query_key_value.bias"], expected)


def test_biases_that_the_args_do_not_tell_of_are_refused(tmp_path: Path) -> None:
    write_checkpoint(tiny_model("qwen2-grouped-tied"), tmp_path / "out")
    with_args(tmp_path / "out", add_qkv_bias=False)
    with pytest.raises(
        CheckpointError, match=r"unexpected: decoder\.layers\.0\.self_attention\.linear_qkv\.bias"
    ):
        open_megatron(tmp_path / "out")


def test_a_gpt2_with_biases_of_attention_alone_keeps_them(tmp_path: Path) -> None:
    ours = tiny_model("gpt2")
    with torch.no_grad():
        for name, parameter in ours.model.named_parameters():
            if name.endswith(("wo.bias", "w1.bias", "w2.bias")):
                parameter.zero_()
    write_checkpoint(ours, tmp_path / "out")

    def without(content: dict[str, Any]) -> None:
        encoder = content["model"]["language_model"]["encoder"]
        for name in [n for n in encoder if n.endswith(("dense.bias", "h_to_4h.bias", "4h_to_h.bias"))]:
            del encoder[name]
        vars(content["args"]).update(add_bias_linear=False, add_qkv_bias=True, openai_gelu=True)

    for path in rank_files(tmp_path / "out"):
        edit(path, without)
    found = load(open_megatron(tmp_path / "out"), device="cpu")
    for name, parameter in ours.model.named_parameters():
        assert torch.equal(dict(found.model.named_parameters())[name], parameter), name
