import dataclasses
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from groundup.checkpoint.formats import open_lazy
from groundup.checkpoint.lazy import load
from groundup.checkpoint.megatron.ranks import is_megatron
from groundup.checkpoint.megatron.read import open_megatron
from groundup.checkpoint.parity import compare
from groundup.core.errors import CheckpointError, DataError, MachineError
from groundup.models import build_model
from groundup.models.init import initialise
from groundup.tokens.tokenizer.load_tokenizer import load_tokenizer
from tests.instances import MODELS
from tests.megatron_files import edit, make_version, rank_files, write_checkpoint
from tests.tiny import tiny_model

Change = Callable[[dict[str, Any]], None]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("good") / "gpt2"
    write_checkpoint(tiny_model("gpt2"), folder, tp=2, pp=2)
    return folder


@pytest.fixture
def broken(good: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(good, tmp_path / "broken"))


def refusal(folder: Path, **settings: Any) -> str:
    with pytest.raises(CheckpointError) as caught:
        for tensor in open_megatron(folder, **settings).weights.values():
            tensor.read()
    assert str(folder) in str(caught.value)
    return str(caught.value)


def test_missing_ranks_are_named(broken: Path) -> None:
    shutil.rmtree(broken / "release" / "mp_rank_01_000")
    assert "2 tensor-parallel ranks times 2 stages; missing: mp_rank_01_000" in refusal(broken)
    shutil.rmtree(broken / "release" / "mp_rank_01_001")
    # what is left looks whole: only the args know better
    assert "missing: mp_rank_01_000, mp_rank_01_001" in refusal(broken)
    (broken / "release" / "mp_rank_00_000" / "model_optim_rng.pt").unlink()
    assert "model_optim_rng.pt: no such file" in refusal(broken)


def test_ranks_of_different_iterations_are_refused(broken: Path) -> None:
    edit(rank_files(broken)[2], lambda content: content.update(iteration=5))
    message = refusal(broken)
    assert "the iteration differs" in message
    assert "mp_rank_01_000: 5" in message


def test_trackers(broken: Path) -> None:
    tracker = broken / "latest_checkpointed_iteration.txt"
    for text in ("", "0", "-3", "12.5", "released", "²"):
        tracker.write_text(text)
        assert "expected the number of an iteration or 'release'" in refusal(broken)
    tracker.write_text("20\n")
    assert "names iter_0000020, which is not there; there are release, tokenizer" in refusal(broken)
    (broken / "release").rename(broken / "iter_0000020")
    assert open_megatron(broken).source.name == "iter_0000020"
    tracker.unlink()
    assert not is_megatron(broken)
    with pytest.raises(CheckpointError, match="holds no usable checkpoint"):
        open_lazy(broken)
    assert open_lazy(broken / "iter_0000020").source.name == "iter_0000020"


def encoder(content: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = content["model"]["language_model"]["encoder"]
    return found


def rename(content: dict[str, Any]) -> None:
    layers = encoder(content)
    layers["layers.0.mlp.dense_4h_to_h.weights"] = layers.pop("layers.0.mlp.dense_4h_to_h.weight")


def cut(content: dict[str, Any]) -> None:
    encoder(content)["layers.0.mlp.dense_h_to_4h.weight"] = torch.zeros(20, 32)


def unlike(content: dict[str, Any]) -> None:
    encoder(content)["layers.0.self_attention.dense.bias"] += 1


def other_head(content: dict[str, Any]) -> None:
    content["model"]["word_embeddings_for_head"]["weight"][3] += 1


def far_layer(content: dict[str, Any]) -> None:
    layers = encoder(content)
    layers["layers.999999999.mlp.dense_h_to_4h.bias"] = torch.zeros(24)


def set_args(**values: Any) -> Change:
    return lambda content: vars(content["args"]).update(values)


@pytest.mark.parametrize(
    ("rank", "change", "message"),
    [
        (0, rename, "mlp.linear_fc2.weight (there is decoder.layers.0.mlp.linear_fc2.weights)"),
        (0, cut, "linear_fc1.weight has shape (20, 32), expected (24, 32) (tensor parallelism 2)"),
        (2, unlike, "linear_proj.bias differs from that of mp_rank_00_000 by up to 1.0e+00"),
        (3, other_head, "copy of the embedding, which serves as head, differs"),
        (1, lambda content: content.update(checkpoint_version=4.0), "checkpoint_version is 4.0; known are"),
        (1, lambda content: content.update(checkpoint_version=2.0), "the checkpoint_version differs"),
        (0, lambda content: content.pop("model"), "holds no model, only args, checkpoint_version, iteration"),
        (0, set_args(num_layers=3), "args tell of 3 layers, its files hold 2"),
        (0, set_args(num_experts=8), "num_experts = 8 is not supported"),
        (0, set_args(qk_layernorm=True), "qk_layernorm = True is not supported"),
        (0, set_args(apply_layernorm_1p=True), "apply_layernorm_1p = True"),
        (0, set_args(kv_channels=16), "kv_channels = 16 is not supported, only 8"),
        (0, set_args(swiglu=True), "positions learned_absolute, norm LayerNorm, mlp swiglu, biases all"),
        (0, set_args(position_embedding_type="alibi"), "positions that are neither learned nor"),
        (0, set_args(normalization="RMSNorm"), "no model here has learned positions with SwiGLU or RMSNorm"),
        (0, set_args(num_layers="two"), "num_layers is 'two', expected a number"),
        (0, set_args(num_attention_heads=0), "its args have no num_attention_heads"),
        (0, set_args(hidden_size=None), "its args have no hidden_size"),
        (0, set_args(tensor_model_parallel_size=10**9), "expected a number from 0 to 1,000"),
        (0, set_args(pipeline_model_parallel_size=1000), "and 1,988 more"),
        (0, set_args(ffn_hidden_size=10**30), "expected a number from 0 to"),
        (0, set_args(hidden_size=-32), "hidden_size is '-32', expected a number"),
        (0, set_args(rotary_base=[1]), "rotary_base is '[1]', expected a number"),
        (0, set_args(consumed_train_samples=float("nan")), "consumed_train_samples is 'nan'"),
        (0, set_args(vocab_file=3), "vocab_file is '3', expected a text"),
        (0, lambda content: content.update(iteration="x"), "iteration is 'x', expected a number"),
        (0, lambda content: content.update(checkpoint_version=torch.ones(2)), "checkpoint_version is"),
        (0, lambda content: content.update(args={"num_layers": 2}), "its args are no argparse.Namespace"),
        (0, far_layer, "has no layer 1, though layer 999999999"),
        (0, set_args(num_attention_heads=5), "kv_channels = 8 is not supported|describe no model"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(rank: int, change: Change, message: str, broken: Path) -> None:
    edit(rank_files(broken)[rank], change)
    found = refusal(broken)
    assert any(part in found for part in message.split("|")), found


def test_a_tokenizer_of_another_model_is_refused(broken: Path) -> None:
    edit(rank_files(broken)[0], lambda content: vars(content["args"]).pop("true_vocab_size"))
    assert open_megatron(broken).config.vocab_size == 300
    shutil.rmtree(broken / "tokenizer")
    with pytest.raises(
        DataError, match=r"has no tokenizer beside it; its args name HuggingFaceTokenizer.*--tok"
    ):
        open_megatron(broken)
    smaller = load_tokenizer("bytes")
    assert open_megatron(broken, tokenizer=smaller, vocab_size=300).config.vocab_size == 300
    assert "must hold the tokenizer's 257 ids and fit into" in refusal(
        broken, tokenizer=smaller, vocab_size=200
    )
    assert "must hold" in refusal(broken, tokenizer=smaller, vocab_size=600)
    edit(rank_files(broken)[0], set_args(make_vocab_size_divisible_by=64))
    edit(rank_files(broken)[0], lambda content: content["model"]["language_model"]["embedding"][
        "word_embeddings"].update(weight=torch.zeros(192, 32)))  # fmt: skip
    message = refusal(broken, tokenizer=smaller)
    assert "has 448 rows, a tokenizer of 257 ids would make 384 (a multiple of 64 x 2)" in message


@pytest.mark.parametrize("new", [True, False])
def test_a_release_without_args_is_taken_for_a_gpt2(
    new: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As NVIDIA's 345M of 2019: version 0, older names, no args, torch.save of before 1.6."""
    config = dataclasses.replace(MODELS["gpt2"], hidden_size=128, num_heads=2)
    model = build_model(config)
    initialise(model, config, seed=3)
    ours = dataclasses.replace(tiny_model("gpt2"), config=config, model=model.eval())
    write_checkpoint(ours, tmp_path / "out")
    make_version(tmp_path / "out", 0, heads_per_rank=2)

    def older(content: dict[str, Any]) -> None:
        language_model = content["model"]["language_model"]
        layers = language_model.pop("encoder")
        language_model["transformer"] = {
            name.replace(".self_attention.", ".attention."): tensor for name, tensor in layers.items()
        }
        language_model.update(language_model.pop("embedding"))
        del content["args"]

    edit(rank_files(tmp_path / "out")[0], older, _use_new_zipfile_serialization=new)
    with caplog.at_level("WARNING", logger="groundup"):
        found = open_megatron(tmp_path / "out")
    assert "has no args: taken for a GPT-2 with heads of width 64" in caplog.text
    assert found.config == config
    assert compare(ours, load(found, device="cpu")).max_difference == 0


def test_a_full_disk_is_seen_before(broken: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr("groundup.core.files.shutil.disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(MachineError, match=r"needs .* GB and the disk has 0.00 GB free"):
        write_checkpoint(tiny_model("gpt2"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_malicious_checkpoint_is_refused(broken: Path, tmp_path: Path) -> None:
    class Payload:
        def __reduce__(self) -> Any:
            return os.system, (f"touch {tmp_path / 'victim'}",)

    torch.save({"model": Payload()}, rank_files(broken)[1])
    assert "wants to call posix.system" in refusal(broken)
    assert not (tmp_path / "victim").exists()
