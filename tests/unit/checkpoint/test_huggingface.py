import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from groundup.checkpoint.families import family_of
from groundup.checkpoint.families.gpt2_family import NAMES
from groundup.checkpoint.families.name_rules import rules_for, to_ours, to_theirs
from groundup.checkpoint.huggingface.weight_files import Sharding, parse_sharding
from groundup.checkpoint.huggingface.weights import (
    open_huggingface,
    read_huggingface,
    write_huggingface,
    write_stored,
)
from groundup.checkpoint.lazy import DtypeName, LazyTensor, as_lazy, in_memory, torch_dtype
from groundup.checkpoint.logical_tensors import logical_weights
from groundup.checkpoint.parity import compare, rounded
from groundup.checkpoint.safetensors import read_header, read_safetensors
from groundup.core.errors import CheckpointError, ConfigError, DataError, MachineError
from groundup.models.gpt2 import GPT2Config
from tests.instances import MODELS
from tests.tiny import tiny_model


def edit_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize("name", MODELS)
def test_round_trip_is_bit_identical(name: str, tmp_path: Path) -> None:
    ours = tiny_model(name)
    write_huggingface(ours, tmp_path / "out")
    back = read_huggingface(tmp_path / "out")
    expected = ours.config
    if isinstance(expected, GPT2Config):
        expected = dataclasses.replace(expected, bias=True)  # theirs always has biases
    assert back.config == expected
    found = dict(back.model.named_parameters())
    original = dict(ours.model.named_parameters())
    assert original.keys() <= found.keys()
    for parameter_name, parameter in found.items():
        expected_value = original.get(parameter_name, torch.zeros_like(parameter))
        assert torch.equal(parameter, expected_value), parameter_name
    assert not back.model.training
    assert back.tokenizer.fingerprint == ours.tokenizer.fingerprint
    assert back.bos_ids == ()
    parity = compare(ours, back)
    assert parity.max_difference <= 1e-5  # a bias of zeros may add in another order
    assert parity.top1_agreement == 1


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_sixteen_bit_exports_hold_the_rounded_weights(dtype: DtypeName, tmp_path: Path) -> None:
    ours = tiny_model("llama")
    write_huggingface(ours, tmp_path / "out", dtype=dtype)
    stored = load_file(tmp_path / "out" / "model.safetensors")
    assert {tensor.dtype for tensor in stored.values()} == {torch_dtype(dtype)}
    back = read_huggingface(tmp_path / "out")
    assert {p.dtype for p in back.model.parameters()} == {torch.float32}
    assert compare(rounded(ours, torch_dtype(dtype)), back).max_difference == 0
    assert compare(ours, back).max_difference > 1e-4


def test_padding_and_a_tied_head_are_left_out(tmp_path: Path) -> None:
    write_huggingface(tiny_model("gpt2"), tmp_path / "tied")
    stored = load_file(tmp_path / "tied" / "model.safetensors")
    assert stored["transformer.wte.weight"].shape == (300, 32)
    assert stored["transformer.h.0.attn.c_attn.weight"].shape == (32, 96)
    assert "lm_head.weight" not in stored
    write_huggingface(tiny_model("llama"), tmp_path / "untied")
    assert load_file(tmp_path / "untied" / "model.safetensors")["lm_head.weight"].shape == (300, 32)


def test_a_folder_of_others_is_not_overwritten(tmp_path: Path) -> None:
    ours = tiny_model("gpt2")
    other = tmp_path / "other"
    other.mkdir()
    write_huggingface(ours, other)  # empty: fine
    write_huggingface(tiny_model("gpt2", seed=1), other)  # an export of ours: replaced
    assert compare(tiny_model("gpt2", seed=1), read_huggingface(other)).max_difference == 0
    assert [path.name for path in tmp_path.iterdir()] == ["other"]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(CheckpointError, match="mine: is not empty"):
        write_huggingface(ours, tmp_path / "mine")
    (tmp_path / "file").write_text("a file")
    with pytest.raises(CheckpointError, match="file: is not empty"):
        write_huggingface(ours, tmp_path / "file")


def test_a_failed_write_leaves_the_earlier_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = tiny_model("gpt2")
    write_huggingface(ours, tmp_path / "out")

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("groundup.checkpoint.huggingface.weights.write_shards", full)
    with pytest.raises(MachineError, match="No space left"):
        write_huggingface(tiny_model("gpt2", seed=1), tmp_path / "out")
    monkeypatch.undo()
    assert compare(ours, read_huggingface(tmp_path / "out")).max_difference == 0
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_weights_beyond_float16_are_refused(tmp_path: Path) -> None:
    ours = tiny_model("llama")
    with torch.no_grad():
        next(ours.model.parameters())[0, 0] = 1e5
    with pytest.raises(CheckpointError, match=r"embed\.tokens\.weight does not fit float16"):
        write_huggingface(ours, tmp_path / "out", dtype="float16")
    assert not any(tmp_path.iterdir())


def test_shards_bare_names_and_old_buffers_are_read(tmp_path: Path) -> None:
    ours = tiny_model("gpt2")
    folder = tmp_path / "out"
    write_huggingface(ours, folder)
    stored = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    bare = {name.removeprefix("transformer."): tensor for name, tensor in stored.items()}
    bare["h.0.attn.bias"] = torch.ones(1, 1, 64, 64)
    bare["h.0.attn.masked_bias"] = torch.tensor(-1e4)
    bare["lm_head.weight"] = stored["transformer.wte.weight"].clone()
    names = sorted(bare)
    shards = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file_name, part in shards.items():
        save_file({name: bare[name] for name in part}, folder / file_name)
    weight_map = {name: file_name for file_name, part in shards.items() for name in part}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert compare(ours, read_huggingface(folder)).max_difference == 0
    (folder / "b.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"b\.safetensors is missing"):
        read_huggingface(folder)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("llama", {"attention_bias": True}, "attention_bias = True is not supported"),
        ("llama", {"mlp_bias": True}, "mlp_bias = True"),
        ("llama", {"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        ("llama", {"head_dim": 16}, "head_dim = 16 is not supported, only 8"),
        ("llama", {"quantization_config": {"bits": 4}}, "quantization_config"),
        ("llama", {"model_type": "mamba"}, "model_type is 'mamba'; supported are gpt2, llama"),
        ("gpt2", {"activation_function": "relu"}, "activation_function = 'relu'"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx = True"),
        ("gpt2", {"n_layer": 1}, r"unexpected: transformer\.h\.1\."),
        ("gpt2", {"n_layer": 3}, r"missing: transformer\.h\.2\."),
        ("gpt2", {"n_head": 5}, "n_embd is 32, not a multiple of n_head, which is 5"),
        ("gpt2", {"n_inner": 40}, r"mlp\.c_fc\.\w+ has shape \(.*48,?\), expected 40 outputs"),
        ("gpt2", {"n_positions": 32}, "wpe"),
        ("gpt2", {"vocab_size": 299}, "wte|tokenizer"),
    ],
)
def test_what_is_not_supported_is_named(
    name: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    write_huggingface(tiny_model(name), tmp_path / "out")
    edit_config(tmp_path / "out", **changes)
    with pytest.raises(CheckpointError, match=message) as caught:
        read_huggingface(tmp_path / "out")
    assert str(tmp_path / "out") in str(caught.value)


def test_damaged_folders_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    write_huggingface(tiny_model("gpt2"), folder)
    weights = folder / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[: len(content) // 2])
    with pytest.raises(CheckpointError, match="cannot be read as safetensors"):
        read_huggingface(folder)
    weights.rename(folder / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin: cannot be read as a file of torch\.save"):
        read_huggingface(folder)
    (folder / "pytorch_model.bin").unlink()
    with pytest.raises(CheckpointError, match=r"no model\.safetensors and no pytorch_model\.bin"):
        read_huggingface(folder)
    weights.write_bytes(content)
    for path in folder.glob("tokenizer*"):
        path.unlink()
    for file_name in ("vocab.json", "merges.txt"):
        (folder / file_name).unlink()
    with pytest.raises(DataError, match="its tokenizer cannot be read"):
        read_huggingface(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"config\.json:1: not valid JSON"):
        read_huggingface(folder)


@pytest.mark.parametrize("name", ["gpt2", "llama-grouped-tied"])
def test_every_parameter_has_a_rule(name: str) -> None:
    ours = logical_weights(tiny_model(name).model, MODELS[name])
    rules = family_of(MODELS[name]).huggingface.names
    covered = [part for rule in rules_for(rules, list(ours)) for part in rule.ours]
    assert sorted(covered) == sorted(ours)
    with pytest.raises(KeyError, match=r"no rule for parameter 'layers\.0\.mystery'"):
        rules_for(rules, [*ours, "layers.0.mystery"])


@settings(max_examples=30, deadline=None)
@given(heads=st.integers(1, 4), width=st.integers(1, 8), seed=st.integers(0, 9))
def test_joined_and_transposed_tensors_come_back(heads: int, width: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    rows = heads * width
    ours = {
        f"layers.7.attention.{part}.{kind}": torch.randn(shape, generator=generator)
        for part in ("wq", "wk", "wv")
        for kind, shape in (("weight", (rows, width)), ("bias", (rows,)))
    }
    theirs = dict(to_theirs(NAMES, {name: in_memory(tensor) for name, tensor in ours.items()}))
    assert theirs["transformer.h.7.attn.c_attn.weight"].shape == (width, 3 * rows)
    back: dict[str, LazyTensor] = {}
    for rule in rules_for(NAMES, list(ours)):
        stored = theirs[rule.theirs]
        assert stored.read().shape == stored.shape
        back.update(to_ours(rule, in_memory(stored.read()), [rows] * 3))
    assert back.keys() == ours.keys()
    assert all(back[name].shape == ours[name].shape for name in ours)
    assert all(torch.equal(back[name].read(), ours[name]) for name in ours)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_old_bin_files_are_read(dtype: torch.dtype, tmp_path: Path) -> None:
    ours = tiny_model("gpt2")
    write_huggingface(ours, tmp_path / "out", dtype="bfloat16" if dtype == torch.bfloat16 else "float32")
    stored = load_file(tmp_path / "out" / "model.safetensors")
    (tmp_path / "out" / "model.safetensors").unlink()
    stored["lm_head.weight"] = stored["transformer.wte.weight"]
    names = sorted(stored)
    torch.save(stored, tmp_path / "out" / "pytorch_model.bin")
    expected = rounded(ours, dtype)
    assert compare(expected, read_huggingface(tmp_path / "out")).max_difference == 0
    opened = open_huggingface(tmp_path / "out")
    assert {tensor.dtype for tensor in opened.weights.values()} == {dtype}
    (tmp_path / "out" / "pytorch_model.bin").unlink()
    torch.save({name: stored[name] for name in names[::2]}, tmp_path / "out" / "a.bin")
    # as torch before 1.6 wrote, and many old models still are
    odd = {name: stored[name] for name in names[1::2]}
    torch.save(odd, tmp_path / "out" / "b.bin", _use_new_zipfile_serialization=False)
    weight_map = {name: "ab"[place % 2] + ".bin" for place, name in enumerate(names)}
    (tmp_path / "out" / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert compare(expected, read_huggingface(tmp_path / "out")).max_difference == 0


@pytest.mark.parametrize("num_shards", [1, 2, 3, 7])
def test_shards_are_written(num_shards: int, tmp_path: Path) -> None:
    ours = tiny_model("llama")
    write_stored(as_lazy(ours), tmp_path / "out", shards=str(num_shards))
    files = sorted((tmp_path / "out").glob("*.safetensors"))
    assert len(files) == num_shards
    if num_shards > 1:
        assert files[0].name == f"model-00001-of-0000{num_shards}.safetensors"
        index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
        sizes = [sum(t.nbytes for t in load_file(file).values()) for file in files]
        assert index["metadata"]["total_size"] == sum(sizes)
        assert min(sizes) > 0
        assert max(sizes) < 2 * sum(sizes) / num_shards
    assert compare(ours, read_huggingface(tmp_path / "out")).max_difference == 0
    with pytest.raises(ConfigError, match="99 files cannot hold 21 tensors"):
        write_stored(as_lazy(ours), tmp_path / "more", shards="99")
    assert not (tmp_path / "more").exists()


@settings(max_examples=12)
@given(max_bytes=st.integers(1000, 200_000))
def test_no_shard_is_larger_than_the_size(max_bytes: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("sized") / "out"
    stored = as_lazy(tiny_model("llama"))
    write_stored(stored, folder, shards=f"{max_bytes}B")
    found: list[str] = []
    for path in sorted(folder.glob("*.safetensors")):
        held = list(load_file(path))
        assert path.stat().st_size <= max_bytes or len(held) == 1
        found += held
    assert len(found) == len(set(found)) == len(stored.weights)
    reopened = open_huggingface(folder)
    assert all(torch.equal(tensor.read(), reopened.weights[name].read())
               for name, tensor in stored.weights.items())  # fmt: skip


def test_sizes_and_numbers_are_understood() -> None:
    for text, sharding in (
        ("3", Sharding(num_files=3)),
        ("5GB", Sharding(max_bytes=5 * 10**9)),
        ("1.5 gib", Sharding(max_bytes=3 * 2**29)),
        ("500MB", Sharding(max_bytes=500 * 10**6)),
    ):
        assert parse_sharding(text) == sharding
    for text in ("", "0", "-1", "1.5", "GB", "5G", "5 GB GB", "1e3", "999B", "٣"):
        with pytest.raises(ConfigError):
            parse_sharding(text)


def test_the_nearest_name_is_told(tmp_path: Path) -> None:
    write_huggingface(tiny_model("llama"), tmp_path / "out")
    path = tmp_path / "out" / "model.safetensors"
    tensors = load_file(path)
    tensors["model.layers.1.mlp.downproj.weight"] = tensors.pop("model.layers.1.mlp.down_proj.weight")
    save_file(tensors, path)
    expected = r"missing: model\.layers\.1\.mlp\.down_proj\.weight \(there is .*1\.mlp\.downproj\.weight\)"
    with pytest.raises(CheckpointError, match=expected):
        read_huggingface(tmp_path / "out")


def test_an_index_names_files_beside_it_each_tensor_once(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    write_stored(as_lazy(tiny_model("gpt2")), folder, shards="2")
    (tmp_path / "elsewhere.safetensors").write_bytes(
        (folder / "model-00001-of-00002.safetensors").read_bytes()
    )
    index = folder / "model.safetensors.index.json"
    good = json.loads(index.read_text())
    for shard in (
        "../elsewhere.safetensors",
        str(tmp_path / "elsewhere.safetensors"),
        "..",
        "",
        "a/../b",
        3,
        None,
    ):
        name = next(iter(good["weight_map"]))
        index.write_text(json.dumps({"weight_map": {**good["weight_map"], name: shard}}))
        with pytest.raises(
            CheckpointError, match=r"index\.json: weight_map.* is not the name of a file beside it"
        ):
            open_huggingface(folder)
    for content in ([], {}, {"weight_map": []}, {"weight_map": {}}, "text"):
        index.write_text(json.dumps(content))
        with pytest.raises(CheckpointError, match=r"index\.json: has no weight_map"):
            open_huggingface(folder)
    copy = folder / "model-00003-of-00002.safetensors"
    copy.write_bytes((folder / "model-00001-of-00002.safetensors").read_bytes())
    index.write_text(json.dumps({"weight_map": {**good["weight_map"], "more": copy.name}}))
    with pytest.raises(CheckpointError, match=r"00003.*has no tensor more, which .* says is in it"):
        open_huggingface(folder)


HEADERS: dict[str, Any] = {
    "overlap": {"a": ("F32", [2], [0, 8]), "b": ("F32", [2], [4, 12])},
    "a gap": {"a": ("F32", [2], [0, 8]), "b": ("F32", [1], [12, 16])},
    "out of range": {"a": ("F32", [2], [8, 16])},
    "behind the end": {"a": ("F32", [5], [0, 20])},
    "before the end": {"a": ("F32", [1], [0, 4])},
    "another shape": {"a": ("F32", [3], [0, 16])},
    "wild shape": {"a": ("F32", [2**62, 4], [0, 16])},
    "negative shape": {"a": ("F32", [-2, -2], [0, 16])},
    "negative offset": {"a": ("F32", [4], [-16, 0])},
    "fractions": {"a": ("F32", [4.0], [0, 16])},
    "texts": {"a": ("F32", ["4"], [0, 16])},
    "no offsets": {"a": ("F32", [4], [])},
    "unknown dtype": {"a": ("X9", [4], [0, 16])},
}


@pytest.mark.parametrize("entries", HEADERS.values(), ids=HEADERS.keys())
def test_headers_of_safetensors_that_lead_astray_are_refused(entries: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    header = {
        name: {"dtype": dtype, "shape": shape, "data_offsets": offsets}
        for name, (dtype, shape, offsets) in entries.items()
    }
    for text in (json.dumps(header), json.dumps(list(header)), "[" * 100_000):
        path.write_bytes(len(text).to_bytes(8, "little") + text.encode() + bytes(16))
        for read in (read_header, read_safetensors):
            with pytest.raises(CheckpointError, match=r"a\.safetensors: cannot be read as safetensors"):
                read(path)
    path.write_bytes((2**63).to_bytes(8, "little") + b"{}")
    for read in (read_header, read_safetensors):
        with pytest.raises(CheckpointError, match=r"a\.safetensors: cannot be read as safetensors"):
            read(path)


def test_the_header_of_a_good_file_is_read(tmp_path: Path) -> None:
    tensors = {"b": torch.ones(2, 3), "empty": torch.empty(0, 5), "a": torch.arange(4, dtype=torch.int8)}
    save_file(tensors, tmp_path / "a.safetensors", metadata={"x": "y"})
    found = read_header(tmp_path / "a.safetensors")
    assert {name: (t.dtype, tuple(t.shape)) for name, t in tensors.items()} == {
        name: (dtype, shape) for name, (dtype, shape, _) in found.items()
    }
