"""``groundup verify convert`` takes a model through every format, and finds what a writer does wrong."""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from groundup.checkpoint.companions import Companions
from groundup.checkpoint.huggingface.config import config_json
from groundup.checkpoint.huggingface.weights import open_huggingface, write_huggingface
from groundup.checkpoint.lazy import LazyModel, LoadedModel, as_lazy
from groundup.checkpoint.megatron import megatron_codec
from groundup.checkpoint.megatron import write as megatron_write
from groundup.cli.app import run
from groundup.core.errors import CheckpointError, ConfigError, MachineError
from groundup.models import build_model
from groundup.tokens.tokenizer.load_tokenizer import load_tokenizer
from groundup.verify import convert
from groundup.verify.convert import Converted, verify_convert
from tests.instances import MODELS
from tests.tiny import NANOGPT, tiny_model

NUM_PATHS = 11
REFERENCES = ("legacy_992da75_gpt_tp1pp1", "legacy_992da75_gpt_tp2pp1", "mcore_head_gpt_tp1pp1")


def verified(stored: LazyModel, scratch: Path) -> dict[str, Converted]:
    written: list[float] = []
    found = {one.path: one for one in verify_convert(stored, scratch, on_write=written.append)}
    assert sum(written) > 0
    assert not list(scratch.iterdir())  # each copy goes when it is done with
    return found


def test_a_source_that_transformers_computes_otherwise_is_found(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    source = tmp_path / "source"
    write_huggingface(tiny_model("llama"), source)
    (tmp_path / "scratch").mkdir()
    stored = open_huggingface(source)
    name = "the source, computed by transformers"
    assert verified(stored, tmp_path / "scratch")[name].is_right
    path = source / "config.json"
    path.write_text(path.read_text().replace('"rope_theta": 10000', '"rope_theta": 20000'))
    found = verified(stored, tmp_path / "scratch")  # groundup has read the base of before
    assert [one.path for one in found.values() if not one.is_right] == [name]
    assert found[name].parity is not None
    assert found[name].parity.max_difference > 1e-3


def test_a_chat_template_that_is_lost_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, scratch = tmp_path / "source", tmp_path / "scratch"
    write_huggingface(tiny_model("llama"), source)
    (source / "chat_template.jinja").write_text("{{ messages }}")
    scratch.mkdir()
    stored = open_huggingface(source)
    assert all(one.is_right for one in verified(stored, scratch).values())
    write = Companions.write

    def forgetful(self: Companions, folder: Path) -> None:
        write(self, folder)
        if folder.parent.name.startswith("step_"):
            (folder / "chat_template.jinja").unlink()

    monkeypatch.setattr(Companions, "write", forgetful)
    wrong = [one for one in verified(stored, scratch).values() if not one.is_right]
    assert [one.path for one in wrong] == ["native", "hf > native > megatron 2x2 > native > hf"]
    assert wrong[0].problem == "chat_template.jinja came back different"


@pytest.mark.parametrize("name", list(MODELS))
def test_every_format_keeps_the_model(name: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    found = verified(as_lazy(tiny_model(name)), tmp_path)
    assert len(found) == NUM_PATHS
    assert "hf > native > megatron 2x2 > native > hf" in found
    assert found.pop("nanogpt").omitted.startswith("refused: nanoGPT")
    for one in found.values():
        assert one.is_right, one
        assert not one.omitted
        assert one.parity is not None
        if one.path == "hf, computed by transformers":
            assert one.bits_equal is None
            assert one.parity.max_difference < 1e-4
        else:
            assert one.bits_equal
            assert one.parity.max_difference == 0


def test_a_model_of_nanogpt_goes_through_all_formats(tmp_path: Path) -> None:
    found = verified(as_lazy(tiny_model("gpt2", bias=False, **NANOGPT)), tmp_path)
    assert len(found) == NUM_PATHS
    assert all(one.is_right for one in found.values())
    for name in ("nanogpt", "hf > native > megatron 2x2 > nanogpt > megatron 2x2 > native > hf"):
        assert found[name].bits_equal


def test_sizes_that_do_not_divide_are_written_whole(tmp_path: Path) -> None:
    config = dataclasses.replace(MODELS["gpt2"], num_layers=3, num_heads=1)
    model = tiny_model("gpt2")
    loaded = LoadedModel(
        config=config, model=build_model(config).eval(), tokenizer=model.tokenizer, source=Path("odd")
    )
    for parameter in loaded.model.parameters():
        torch.nn.init.normal_(parameter)
    found = verified(as_lazy(loaded), tmp_path)
    assert [path for path in found if path.startswith("megatron")] == [
        "megatron legacy 1x1", "megatron core 1x1", "megatron core-fused 1x1",
    ]  # fmt: skip
    assert all(one.is_right for one in found.values())


@pytest.mark.parametrize("change", ["negated", "swapped"])
def test_a_writer_at_fault_is_found(change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = megatron_write._Piece.__call__

    def sabotaged(self: Any) -> Tensor:
        tensor = original(self)
        if change == "negated" and self.rule.theirs.endswith("layers.1.mlp.linear_fc2.weight"):
            return tensor.clone().index_copy_(0, torch.tensor([3]), -tensor[3:4])
        if change == "swapped" and self.rule.theirs.endswith("linear_qkv.weight") and self.tp == 2:
            return tensor.flip(0)
        return tensor

    monkeypatch.setattr(megatron_write._Piece, "__call__", sabotaged)
    found = verified(as_lazy(tiny_model("llama")), tmp_path)
    wrong = {path for path, one in found.items() if not one.is_right}
    everything = {path for path in found if "megatron" in path}
    assert wrong == (everything if change == "negated" else everything - {"megatron legacy 1x1"})
    assert found["megatron core 2x2"].bits_equal is False
    assert "came back different" in found["megatron core 2x2"].problem


def test_a_config_at_fault_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal weights do not make an equal model."""
    pytest.importorskip("transformers")
    monkeypatch.setattr(
        "groundup.checkpoint.huggingface.weights.config_json",
        lambda config: {**config_json(config), "rms_norm_eps": 0.3},
    )
    found = verified(as_lazy(tiny_model("llama")), tmp_path)
    assert found["hf"].bits_equal
    assert not found["hf"].is_right
    assert not found["hf, computed by transformers"].is_right
    assert found["native"].is_right


def test_a_refusal_is_no_fault_but_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise ConfigError("megatron knows no such positions", where="command line")

    monkeypatch.setattr(megatron_codec, "CODEC", dataclasses.replace(megatron_codec.CODEC, write=refuse))
    found = verified(as_lazy(tiny_model("llama")), tmp_path)
    assert all(one.is_right for one in found.values())
    assert found["megatron core 2x2"].omitted == "refused: megatron knows no such positions"
    assert sum(bool(one.omitted) for one in found.values()) == 6  # nanoGPT has no Llama


def test_too_small_a_disk_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(MachineError, match=r"through every format needs 0\.07 GB and the disk has 0\.00 GB"):
        verified(as_lazy(tiny_model("gpt2")), tmp_path)


@pytest.mark.parametrize("name", REFERENCES)
def test_megatrons_own_checkpoints(name: str, shared_data: Path, tmp_path: Path) -> None:
    samples = shared_data.parent / "reference" / "megatron" / "checkpoints"
    if not samples.is_dir():
        pytest.skip(f"no samples at {samples}")
    folder = samples / name
    from groundup.checkpoint.megatron.read import open_megatron

    stored = open_megatron(folder, tokenizer=load_tokenizer("bytes"), vocab_size=600, moments=True)
    assert all(one.is_right and not one.omitted for one in verified(stored, tmp_path).values())


def test_the_table_and_the_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_huggingface(tiny_model("gpt2"), tmp_path / "hf")
    command = ["verify", "convert", str(tmp_path / "hf"), "--scratch", str(tmp_path)]
    with pytest.raises(SystemExit) as ended:
        run(command)
    assert not ended.value.code
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["path", "logits", "top-1", "weights", "verdict"]
    assert len(lines) == 2 + NUM_PATHS
    assert lines[-1].startswith("the source, computed by transformers  ")
    [refused] = [line for line in lines[1:] if not line.endswith("right")]
    assert refused.split()[:3] == ["nanogpt", "refused:", "nanoGPT's"]
    monkeypatch.setattr(convert, "open_lazy", lambda *_, **__: open_huggingface(tmp_path / "other"))
    write_huggingface(tiny_model("gpt2", seed=1), tmp_path / "other")
    with pytest.raises(
        CheckpointError, match=r"not the same model after conversion: hf; hf, 3 shards; .*native"
    ):
        run(command)
    assert "DIFFER  WRONG embed.positions.weight, " in capsys.readouterr().out
    with pytest.raises(ConfigError, match="absent is no folder"):
        run([*command[:-1], str(tmp_path / "absent")])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hf", "other"]
