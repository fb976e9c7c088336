"""The table of Megatron-LM's flags leads to settings that exist, and is read as its argparse reads."""

import dataclasses
import shlex
import types
import typing
from collections.abc import Iterator

import pytest

from groundup.cli.megatron import megatron
from groundup.core.errors import ConfigError
from groundup.megatron.flag_table import describe_flag, flag_table
from groundup.megatron.parse_flags import parse_flags
from groundup.train.config import TrainConfig

FLAGS = list(flag_table().values())


def keys_of(hint: object, prefix: str = "") -> Iterator[str]:
    """Dotted keys of a config class, with those of every choice of its unions."""
    origin = typing.get_origin(hint)
    if origin is typing.Annotated:
        yield from keys_of(typing.get_args(hint)[0], prefix)
    elif origin in (typing.Union, types.UnionType):
        for choice in typing.get_args(hint):
            yield from keys_of(choice, prefix)
    elif dataclasses.is_dataclass(hint):
        for name, child in typing.get_type_hints(hint, include_extras=True).items():
            yield f"{prefix}{name}"
            yield from keys_of(child, f"{prefix}{name}.")


def test_every_flag_leads_to_a_setting_that_exists():
    keys = set(keys_of(TrainConfig))
    assert {"model.num_layers", "schedule.kind", "checkpoint.megatron.path"} < keys
    assert not {flag.flag: flag.key for flag in FLAGS if flag.key and flag.key not in keys}


def test_a_copied_setting_has_one_kind_of_value():
    for flag in FLAGS:
        if flag.copy:
            assert flag.type in ("int", "float", "str", "set"), flag.flag
        if flag.choices and flag.default is not None:
            assert flag.default in flag.choices, flag.flag


def test_the_groups_of_the_help_are_all_there():
    assert {flag.group for flag in FLAGS} == {
        "model",
        "regularization",
        "training",
        "initialization",
        "learning rate",
        "checkpointing",
        "mixed precision",
        "distributed",
        "validation",
        "data",
        "logging",
    }


def test_values_with_and_without_an_equals_sign():
    given = parse_flags(["--lr=1e-4", "--split", "9,1,0", "--data-path", "0.3", "a", "0.7", "b", "--fp16"])
    assert (given["lr"], given["split"], given["fp16"]) == (1e-4, "9,1,0", True)
    assert given["data_path"] == ["0.3", "a", "0.7", "b"]
    assert given.origin("data_path") == "--data-path 0.3 a 0.7 b"


def test_defaults_are_those_of_megatron():
    given = parse_flags([])
    defaults = {
        "hidden_dropout": 0.1,
        "attention_dropout": 0.1,
        "initial_loss_scale": 2**32,
        "loss_scale_window": 1000,
        "hysteresis": 2,
        "seed": 1234,
        "split": "969, 30, 1",
        "lr_decay_style": "linear",
        "min_lr": 0.0,
        "adam_beta2": 0.999,
        "weight_decay": 0.01,
        "eval_iters": 100,
        "log_interval": 100,
        "bias_gelu_fusion": True,
        "swiglu": False,
        "make_vocab_size_divisible_by": 128,
    }
    assert {name: given[name] for name in defaults} == defaults
    assert given.origin("seed") == "Megatron-LM's default of --seed"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("--model-parallel-size 2", "--tensor-model-parallel-size 4"),
        ("--batch-size 2", "--micro-batch-size 4"),
        ("--warmup 0.2", "--lr-warmup-fraction 0.4"),
        ("--min-scale 2", "--min-loss-scale 4"),
        ("--norm-epsilon 0.2", "--layernorm-epsilon 0.4"),
        ("--train-data 2", "--data-path 4"),
    ],
)
def test_old_spellings_are_the_same_setting(old, new):
    assert parse_flags(old.split()).values == parse_flags(new.replace("4", "2").split()).values
    with pytest.raises(ConfigError, match="are the same setting"):
        parse_flags([*old.split(), *new.split()])


def test_what_has_no_effect_is_named_once_together(caplog):
    words = "--num-workers 2 --DDP-impl local --no-masked-softmax-fusion --local_rank=3 --lr 1"
    parse_flags(shlex.split(words))
    [record] = caplog.records
    told = record.getMessage().removeprefix("without effect here: ").split(" (")[0]
    assert set(told.split()) == {"--num-workers", "--DDP-impl", "--no-masked-softmax-fusion", "--local_rank"}


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ("--num-layer 3", "--num-layer: no such flag. Did you mean '--num-layers'?"),
        ("--hiden-size=3", "--hiden-size: no such flag. Did you mean '--hidden-size'?"),
        ("--num-layers x", "--num-layers: invalid int value: 'x'"),
        ("--num-layers", "--num-layers: expected one argument"),
        ("--lr-decay-style sine", "invalid choice: 'sine'"),
        ("--fp8-e4m3", "gradients here are e5m2: --fp8-format hybrid"),
        ("--no-fp8-wgrad", "gradients of weights are products in fp8 too: --bf16 alone"),
        ("--exit-duration-in-mins 55", "timeout -s TERM"),
        ("--expert-model-parallel-size 2", "mixtures of experts"),
        ("train 3", "train: belongs to no flag"),
    ],
)
def test_refusals(typed, told):
    with pytest.raises(ConfigError) as found:
        parse_flags(typed.split())
    assert told in str(found.value)


def test_a_value_that_changes_nothing_is_accepted():
    parse_flags(["--expert-model-parallel-size", "1", "--lr-warmup-init", "0.0"])


def test_all_problems_are_told_at_once():
    with pytest.raises(ConfigError, match=r"(?s)2 problems:.*--fo: .*--skip-train"):
        parse_flags(["--fo", "--skip-train"])


def test_the_table_is_printed_and_searched(capsys):
    megatron("flags")
    everything = capsys.readouterr().out
    assert all(f"  {flag.flag}" in everything and describe_flag(flag) in everything for flag in FLAGS)
    megatron("flags", "warmup", "fraction")
    assert capsys.readouterr().out.splitlines()[:3] == [
        "learning rate",
        "  --lr-warmup-fraction float",
        "      warmup.fraction (of the decay)",
    ]
    with pytest.raises(ConfigError, match="no flag has nonsense in it"):
        megatron("flags", "nonsense")


def test_help_teaches(capsys):
    megatron("pretrain_gpt", "--help")
    printed = capsys.readouterr().out
    assert "--print-config" in printed and "torchrun" in printed and "--lr-warmup-fraction" in printed
