"""Every field of a run's config is given what it cannot be, and one sentence names the field."""

import dataclasses
import itertools
import math
import types
import typing
from pathlib import Path

import pytest

from groundup.core.config import from_dict
from groundup.core.errors import ConfigError
from groundup.models.llama import LlamaConfig
from groundup.models.rope import LinearRopeScaling, Llama3RopeScaling
from groundup.models.stablelm import StableLMConfig
from groundup.train.config import TrainConfig

_VALID = {
    "run_dir": "run",
    "num_steps": 100,
    "data": {"path": "data", "sequence_length": 8},
    "model": {
        "kind": "gpt2",
        "vocab_size": 300,
        "max_sequence_length": 8,
        "num_layers": 2,
        "hidden_size": 8,
        "num_heads": 2,
        "ffn_size": 16,
    },
}
_REQUIRED = {
    LlamaConfig: {**_VALID["model"], "num_kv_heads": 2},
    StableLMConfig: {**_VALID["model"], "num_kv_heads": 2},
    LinearRopeScaling: {"factor": 2},
    Llama3RopeScaling: {"factor": 2},
}
"""The choices that are nothing without some settings; others are told by their kind."""
_IMPOSSIBLE = {
    int: (-1, 2**70, 1.5, math.nan, "many", [], {"a": 1}),
    float: (-1.0, math.nan, math.inf, -math.inf, "much", [], {"a": 1}),
    bool: (7, "perhaps", [], {"a": 1}),
    str: (5, [], {"a": 1}),
    Path: (5, [], {"a": 1}),
    type(None): (),
}
_UNCHANGED = object()
_OF_CONTAINERS = {
    tuple: (5, "x", [-1], ["x"], {"a": 1}),
    dict: (5, "x", [], {"a": 5}, {"a": {}}, {"a": {"path": "x", "weight": -1}}),
}


def fields(cls, prefix=()):
    """The path of each field below a config class, its type, and the kinds of choices on the way to it."""
    hints = typing.get_type_hints(cls, include_extras=True)
    for field in dataclasses.fields(cls):
        hint, path = without_annotations(hints[field.name]), (*prefix, (cls, field.name))
        choices = [member for member in members(hint) if dataclasses.is_dataclass(member)]
        if not choices:
            yield path, hint
        for choice in choices:
            yield from fields(choice, path)


def without_annotations(hint):
    return typing.get_args(hint)[0] if typing.get_origin(hint) is typing.Annotated else hint


def members(hint):
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return [without_annotations(member) for member in typing.get_args(hint)]
    return [hint]


def impossible_values(hint):
    kinds = members(hint)
    if any(typing.get_origin(kind) is typing.Literal for kind in kinds):
        return ("no such", 1 << 70, [])
    if typing.get_origin(kinds[0]) in _OF_CONTAINERS:
        of_texts = typing.get_args(kinds[0])[:1] == (str,) and typing.get_origin(kinds[0]) is tuple
        return [
            value
            for value in _OF_CONTAINERS[typing.get_origin(kinds[0])]
            if not (of_texts and value == ["x"])
        ]
    return [value for kind in kinds for value in _IMPOSSIBLE[kind]]


def tree_with(path, value):
    """A whole config with one value put in place, in the choices that have it."""
    tree = {**_VALID}
    section = tree
    for (_, name), (inner, _) in itertools.pairwise(path):
        kind = {"kind": inner.kind} if hasattr(inner, "kind") else {}
        section[name] = {**_REQUIRED.get(inner, section.get(name, {})), **kind}
        section = section[name]
    if value is not _UNCHANGED:
        section[path[-1][1]] = value
    return tree


EVERY_FIELD = {
    ".".join(f"{name}({getattr(owner, 'kind', owner.__name__)})" for owner, name in path): (path, hint)
    for path, hint in fields(TrainConfig)
}


@pytest.mark.parametrize("name", EVERY_FIELD)
def test_an_impossible_value_is_refused_by_the_name_of_its_setting(name):
    path, hint = EVERY_FIELD[name]
    dotted = ".".join(key for _, key in path)
    values = impossible_values(hint)
    assert values
    for value in values:
        with pytest.raises(ConfigError) as refusal:
            from_dict(TrainConfig, tree_with(path, value), where="run.yaml")
        message = str(refusal.value)
        assert dotted in message, (value, message)
        assert "\n" not in message, (value, message)


@pytest.mark.parametrize("name", EVERY_FIELD)
def test_without_it_the_same_config_is_possible(name):
    path, _ = EVERY_FIELD[name]
    assert from_dict(TrainConfig, tree_with(path, _UNCHANGED), where="run.yaml").num_steps == 100


@pytest.mark.parametrize(
    ("override", "rule"),
    [("num_heads", "greater than or equal to 1"), ("num_layers", "greater than or equal to 1")],
)
def test_a_model_without_heads_or_layers(override, rule):
    tree = {**_VALID, "model": {**_VALID["model"], override: 0}}
    with pytest.raises(ConfigError, match=rf"^run.yaml: model.{override} = 0: input should be {rule}\.$"):
        from_dict(TrainConfig, tree, where="run.yaml")


def test_a_dropout_that_drops_more_than_all():
    tree = {**_VALID, "model": {**_VALID["model"], "dropout": 1.5}}
    with pytest.raises(ConfigError, match=r"^run.yaml: model.dropout = 1.5: input should be less than 1\.$"):
        from_dict(TrainConfig, tree, where="run.yaml")
