"""A family without a table is refused by name, in every format of another project's."""

import dataclasses
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import pytest

from groundup import models
from groundup.checkpoint.families import FAMILIES, family_of, with_biases
from groundup.checkpoint.huggingface.weights import open_huggingface, write_huggingface, write_stored
from groundup.checkpoint.lazy import LazyModel, as_lazy
from groundup.checkpoint.megatron.architectures import kind_of
from groundup.checkpoint.megatron.write import write_megatron
from groundup.checkpoint.native.model import write_native
from groundup.core.config import config
from groundup.core.errors import CheckpointError, ConfigError
from groundup.models import gpt2
from groundup.models.gpt2 import GPT2, GPT2Config
from tests.instances import MODELS
from tests.tiny import tiny_model

REFUSED = "a model of kind parrot has no table of names and settings"


@config
class ParrotConfig(GPT2Config):
    """A third family, whose modules are GPT-2's, and so are its parameters' names."""

    kind: Literal["parrot"] = "parrot"  # type: ignore[assignment]


@pytest.fixture
def parrot(monkeypatch: pytest.MonkeyPatch) -> LazyModel:
    table = {**models._MODELS, ParrotConfig: (GPT2, gpt2.AXES)}
    monkeypatch.setattr(models, "_MODELS", MappingProxyType(table))
    ours = tiny_model("gpt2")
    fields = dataclasses.asdict(ours.config) | {"kind": "parrot"}
    return as_lazy(dataclasses.replace(ours, config=ParrotConfig(**fields)))


def test_a_family_without_a_table_is_refused_by_name(parrot: LazyModel, tmp_path: Path) -> None:
    for write in (write_stored, write_megatron, lambda stored, _: with_biases(stored)):
        with pytest.raises(ConfigError, match=REFUSED):
            write(parrot, tmp_path / "out")
        assert not any(tmp_path.iterdir())
    write_native(parrot, tmp_path / "run")  # what it is trained and kept in needs no table


def test_what_is_read_is_of_a_family_with_a_table(tmp_path: Path) -> None:
    write_huggingface(tiny_model("gpt2"), tmp_path / "hf")
    path = tmp_path / "hf" / "config.json"
    path.write_text(path.read_text().replace('"model_type": "gpt2"', '"model_type": "parrot"'))
    with pytest.raises(CheckpointError, match=r"model_type is 'parrot'; supported are gpt2, llama, mistral"):
        open_huggingface(tmp_path / "hf")


@pytest.mark.parametrize("name", MODELS)
def test_every_model_under_test_is_of_one_family_in_every_table(name: str, tmp_path: Path) -> None:
    ours = MODELS[name]
    family = family_of(ours)
    args = family.megatron.to_args(ours)
    assert kind_of(args, tmp_path) == family.kind == ours.kind
    assert [other.kind for other in FAMILIES].count(ours.kind) == 1
    assert family.huggingface.to_json(ours)["model_type"] in family.huggingface.model_types
    assert family.huggingface.values.keys() >= set(family.huggingface.required)
    types = [kind for other in FAMILIES for kind in other.huggingface.model_types]
    assert len(set(types)) == len(types)
