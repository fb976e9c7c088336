"""What every choice must do: each member of each union annotated with ``ByKind``, wherever it stands."""

import dataclasses
import importlib
import pkgutil
import typing
from typing import Annotated, Any

import pytest

import groundup
from groundup.core.config import ByKind, config, from_dict, resolve, to_dict, to_yaml
from groundup.core.errors import ConfigError
from tests.instances import INSTANCES


def unions() -> dict[str, Any]:
    """Module and name of every union of the package that is a registry."""
    found: dict[int, tuple[str, Any]] = {}
    for module in pkgutil.walk_packages(groundup.__path__, "groundup."):
        if module.name.endswith(("__main__", "lm_eval_adapter")):  # the latter needs an extra, and has none
            continue
        for name, value in vars(importlib.import_module(module.name)).items():
            if typing.get_origin(value) is Annotated and ByKind in value.__metadata__:
                found.setdefault(id(value), (f"{module.name}.{name}", value))
    return dict(found.values())


UNIONS = unions()
MEMBERS = {
    f"{name.rpartition('.')[2]}:{member.__name__}": (union, member)
    for name, union in UNIONS.items()
    for member in typing.get_args(typing.get_args(union)[0])
}
ALL = [(union, instance) for union, member in MEMBERS.values() for instance in INSTANCES.get(member, [])]


def test_the_registries_are_found():
    assert {"ModelConfig", "Optimizer", "LrSchedule", "Warmup", "Task"} <= {
        name.rpartition(".")[2] for name in UNIONS
    }


@pytest.mark.parametrize("key", MEMBERS)
def test_every_member_has_an_instance_under_test(key):
    _, member = MEMBERS[key]
    assert INSTANCES.get(member), f"add an instance of {member.__name__} to tests/instances.py"


@pytest.mark.parametrize("name", UNIONS)
def test_kinds_are_unique_and_named_when_another_is_given(name):
    members = typing.get_args(typing.get_args(UNIONS[name])[0])
    kinds = [typing.get_args(typing.get_type_hints(member)["kind"])[0] for member in members]
    assert len(set(kinds)) == len(kinds)
    with pytest.raises(ConfigError) as error:
        from_dict(holder(UNIONS[name]), {"choice": {"kind": "no-such-kind"}}, where="here")
    assert all(kind in str(error.value) for kind in kinds)


@pytest.mark.parametrize(("union", "instance"), ALL, ids=[repr(instance)[:60] for _, instance in ALL])
def test_a_member_is_frozen_and_passes_through_yaml(union, instance, tmp_path):
    with pytest.raises(dataclasses.FrozenInstanceError):
        instance.kind = "other"
    hold = holder(union)
    held = hold(choice=instance)
    assert from_dict(hold, to_dict(held), where="here") == held
    file = tmp_path / "config.yaml"
    file.write_text(to_yaml(held))
    assert resolve(hold, file=file).value == held


def holder(union):
    """A config with one choice."""
    return config(type("Holder", (), {"__annotations__": {"choice": union}, "__doc__": "Holds a choice."}))
