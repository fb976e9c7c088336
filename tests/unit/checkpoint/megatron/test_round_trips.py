import argparse
import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from groundup.checkpoint.families.name_rules import rules_for
from groundup.checkpoint.formats import open_model
from groundup.checkpoint.huggingface.weights import open_huggingface, write_stored
from groundup.checkpoint.lazy import DtypeName, LazyModel, as_lazy, in_dtype, torch_dtype
from groundup.checkpoint.logical_tensors import logical_shapes
from groundup.checkpoint.megatron.args import padded_rows, true_vocab_size
from groundup.checkpoint.megatron.parameters import Naming, Packing, rules
from groundup.checkpoint.megatron.read import open_megatron
from groundup.checkpoint.megatron.write import write_megatron
from groundup.checkpoint.native.model import open_native, write_native
from groundup.checkpoint.parity import compare
from groundup.core.errors import CheckpointError, ConfigError
from groundup.models.gpt2 import GPT2Config
from groundup.models.llama import LlamaConfig
from tests.instances import MODELS
from tests.megatron_files import make_version, rank_files, write_checkpoint
from tests.tiny import tiny_model


def require_equal(one: LazyModel, other: LazyModel) -> None:
    assert one.weights.keys() <= other.weights.keys()
    for name, tensor in other.weights.items():
        found = tensor.read()
        expected = one.weights[name].read() if name in one.weights else torch.zeros_like(found)
        assert found.dtype == expected.dtype
        assert tensor.shape == tuple(found.shape)
        assert torch.equal(found, expected), name


@pytest.mark.parametrize("naming", ["legacy", "core", "core-fused"])
@pytest.mark.parametrize(("tp", "pp"), [(1, 1), (2, 1), (1, 2), (2, 2)])
@pytest.mark.parametrize("name", MODELS)
def test_any_layout_and_naming_comes_back(
    name: str, tp: int, pp: int, naming: Naming, tmp_path: Path
) -> None:
    ours = as_lazy(tiny_model(name))
    folder = write_megatron(ours, tmp_path / "out", tp=tp, pp=pp, names=naming)
    assert folder == tmp_path / "out" / "release"
    assert (tmp_path / "out" / "latest_checkpointed_iteration.txt").read_text() == "release"
    assert len(rank_files(tmp_path / "out")) == tp * pp
    found = open_megatron(tmp_path / "out")
    require_equal(ours, found)
    bias = {"bias": True} if isinstance(ours.config, GPT2Config) else {}
    assert found.config == dataclasses.replace(ours.config, **bias)
    assert found.tokenizer.fingerprint == ours.tokenizer.fingerprint


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_a_part_of_a_tensor_is_read_as_of_any_format(name: str, tmp_path: Path) -> None:
    folder = write_checkpoint(tiny_model(name), tmp_path / name, tp=2, pp=2, names="core")
    for tensor in open_megatron(folder).weights.values():
        half = tuple(max(1, length // 2) for length in tensor.shape)
        offset = tuple(length - part for length, part in zip(tensor.shape, half, strict=True))
        expected = tensor.read()[tuple(slice(begin, None) for begin in offset)]
        assert torch.equal(tensor.part(offset, half), expected)


def test_four_ranks_of_tensor_parallelism(tmp_path: Path) -> None:
    ours = as_lazy(tiny_model("gpt2"))
    write_megatron(ours, tmp_path / "out", tp=4, pp=2)
    found = open_megatron(tmp_path / "out")
    require_equal(ours, found)
    assert found.megatron_args["padded_vocab_size"] == 512


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", ["gpt2", "llama", "llama-grouped-tied"])
def test_the_tour_of_all_formats_changes_no_byte(name: str, dtype: DtypeName, tmp_path: Path) -> None:
    first, last = tmp_path / "first", tmp_path / "last"
    write_stored(in_dtype(as_lazy(tiny_model(name)), torch_dtype(dtype)), first)
    write_native(open_huggingface(first), tmp_path / "native")
    write_megatron(open_native(tmp_path / "native"), tmp_path / "megatron", tp=2, pp=2)
    write_native(open_megatron(tmp_path / "megatron"), tmp_path / "native-2")
    write_stored(open_native(tmp_path / "native-2"), last)
    for file in ("model.safetensors", "config.json", "generation_config.json", "tokenizer.json"):
        assert (first / file).read_bytes() == (last / file).read_bytes(), file


@pytest.mark.parametrize("version", [0, 1.0, 2.0, 3.0])
@pytest.mark.parametrize("tp", [1, 2])
def test_every_version_is_read(version: float, tp: int, tmp_path: Path) -> None:
    ours = tiny_model("gpt2")
    write_checkpoint(ours, tmp_path / "out", tp=tp, pp=2)
    make_version(tmp_path / "out", version, heads_per_rank=4 // tp)
    found = open_model(tmp_path / "out", device=torch.device("cpu"))
    assert compare(ours, found).max_difference == 0


@settings(max_examples=60, deadline=None)
@given(
    groups=st.integers(1, 4), per_group=st.integers(1, 4), half_width=st.integers(1, 4), bias=st.booleans()
)
def test_queries_keys_and_values_are_found_by_head(
    groups: int, per_group: int, half_width: int, bias: bool
) -> None:
    heads, width = groups * per_group, 2 * half_width
    config = LlamaConfig(
        vocab_size=10,
        max_sequence_length=8,
        num_layers=1,
        hidden_size=heads * width,
        num_heads=heads,
        num_kv_heads=groups,
        ffn_size=8,
    )
    [rule] = [rule for rule in rules(config) if rule.theirs.endswith("linear_qkv.weight")]
    # each row says what it is: query head 100 + n, key 200 + g, value 300 + g, and its place in the head
    rows = []
    for group in range(groups):
        for base, numbers in (
            (100, range(group * per_group, (group + 1) * per_group)),
            (200, [group]),
            (300, [group]),
        ):
            rows += [(base + number, place) for number in numbers for place in range(width)]
    theirs = torch.tensor(rows, dtype=torch.float32)
    theirs = theirs[:, 0] * 1000 + theirs[:, 1] if bias else theirs
    packing = Packing(config=config)
    query, key, value = packing.unpack(rule, theirs)
    labels = [part if bias else part[:, 0] * 1000 + part[:, 1] for part in (query, key, value)]
    for label, base, count in zip(labels, (100, 200, 300), (heads, groups, groups), strict=True):
        expected = [(base + number) * 1000 + place for number in range(count) for place in range(width)]
        assert label.tolist() == expected
    assert torch.equal(packing.pack(rule, (query, key, value)), theirs)


@pytest.mark.parametrize("name", MODELS)
def test_every_parameter_has_a_rule(name: str) -> None:
    config = MODELS[name]
    names = list(logical_shapes(config))
    covered = [part for rule in rules_for(rules(config), names) for part in rule.ours]
    assert sorted(covered) == sorted(names)


def test_torchs_own_reader_takes_what_is_written(tmp_path: Path) -> None:
    ours = tiny_model("gpt2")
    write_checkpoint(ours, tmp_path / "out", tp=2)
    path = rank_files(tmp_path / "out")[1]
    with torch.serialization.safe_globals([argparse.Namespace]):
        content = torch.load(path, weights_only=True)
    args: Any = content["args"]
    encoder = content["model"]["language_model"]["encoder"]
    assert content["checkpoint_version"] == 3.0
    assert encoder["layers.1.self_attention.query_key_value.weight"].shape == (48, 32)
    assert args.params_dtype == torch.float32
    checked_by_megatron = {  # check_checkpoint_args in megatron/checkpointing.py
        "num_layers": 2,
        "hidden_size": 32,
        "num_attention_heads": 4,
        "add_position_embedding": True,
        "max_position_embeddings": 64,
        "make_vocab_size_divisible_by": 128,
        "padded_vocab_size": 512,
        "tokenizer_type": "HuggingFaceTokenizer",
        "tensor_model_parallel_size": 2,
        "pipeline_model_parallel_size": 1,
    }
    assert {key: getattr(args, key) for key in checked_by_megatron} == checked_by_megatron
    query = dict(ours.model.named_parameters())["layers.1.attention.wq.weight"]
    # the second rank has heads 2 and 3, each with its query first
    assert torch.equal(encoder["layers.1.self_attention.query_key_value.weight"][24:32], query[24:32])


def test_the_stages_are_as_megatron_makes_them(tmp_path: Path) -> None:
    ours = tiny_model("gpt2")
    write_checkpoint(ours, tmp_path / "out", pp=2)
    first, last = (torch.load(path, weights_only=False)["model"] for path in rank_files(tmp_path / "out"))
    assert [path.parent.name for path in rank_files(tmp_path / "out")] == ["mp_rank_00_000", "mp_rank_00_001"]
    assert first.keys() == {"language_model"}
    assert first["language_model"].keys() == {"embedding", "encoder"}
    assert last.keys() == {"language_model", "word_embeddings_for_head"}
    assert last["language_model"].keys() == {"encoder"}
    layers = set(first["language_model"]["encoder"])
    assert all(name.startswith("layers.0.") for name in layers)
    assert (
        layers | {"final_layernorm.weight", "final_layernorm.bias"}
        == last["language_model"]["encoder"].keys()
    )
    table = last["word_embeddings_for_head"]["weight"]
    assert torch.equal(table, first["language_model"]["embedding"]["word_embeddings"]["weight"])


def test_padding_cannot_outweigh_the_vocabulary(tmp_path: Path) -> None:
    ours = tiny_model("gpt2")
    with torch.no_grad():  # the logits of a trained GPT-2 are far below 0
        ours.model.norm.bias.fill_(1)
        ours.model.embed.tokens.weight[:300].sub_(2)
    write_checkpoint(ours, tmp_path / "out")
    [path] = rank_files(tmp_path / "out")
    model = torch.load(path, weights_only=False)["model"]
    table = model["language_model"]["embedding"]["word_embeddings"]["weight"]
    assert table.shape[0] == 384
    tokens = torch.randint(300, (2, 64), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        logits = ours.model(tokens) @ table.T
    without, with_padding = logits[..., :300].logsumexp(-1), logits.logsumexp(-1)
    assert without.max() < 0
    assert (with_padding - without).max() <= torch.log(torch.tensor(384 / 300)) + 1e-4


@settings(max_examples=100, deadline=None)
@given(
    vocab_size=st.integers(1, 10**6), tp=st.sampled_from([1, 2, 4, 8]), multiple=st.sampled_from([1, 64, 128])
)
def test_padding_is_least_and_undone(vocab_size: int, tp: int, multiple: int) -> None:
    rows = padded_rows(vocab_size, tp, multiple)
    assert rows % (multiple * tp) == 0
    assert 0 <= rows - vocab_size < multiple * tp
    settings = {"rows": rows, "tp": tp, "multiple": multiple, "where": ""}
    assert true_vocab_size(tokenizer_size=vocab_size, stated=None, **settings) == vocab_size


def test_padding_of_gpt2() -> None:
    assert [padded_rows(50257, tp) for tp in (1, 2, 4, 8)] == [50304, 50432, 50688, 51200]


def test_what_does_not_divide_is_refused(tmp_path: Path) -> None:
    ours = as_lazy(tiny_model("llama-grouped-tied"))
    with pytest.raises(ConfigError, match="--tp 4 does not divide 2 key/value heads"):
        write_megatron(ours, tmp_path / "out", tp=4)
    with pytest.raises(ConfigError, match="--pp 3 does not divide 2 layers"):
        write_megatron(ours, tmp_path / "out", pp=3)


def test_a_model_is_not_written_over_itself(tmp_path: Path) -> None:
    write_checkpoint(tiny_model("gpt2"), tmp_path / "a")
    for target in (tmp_path / "a", tmp_path / "a" / "release", tmp_path / "a" / "release" / "b"):
        with pytest.raises(CheckpointError, match=r"would be written into, or over|not an earlier export"):
            write_megatron(open_megatron(tmp_path / "a"), target)
    require_equal(as_lazy(tiny_model("gpt2")), open_megatron(tmp_path / "a"))
