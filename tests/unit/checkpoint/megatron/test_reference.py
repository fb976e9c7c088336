"""Checkpoints that Megatron-LM itself wrote, and the logits that it computed from them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import linear

from groundup.checkpoint.huggingface.weights import read_huggingface, write_stored
from groundup.checkpoint.lazy import LazyModel, LoadedModel, load
from groundup.checkpoint.megatron.read import open_megatron
from groundup.checkpoint.megatron.write import write_megatron
from groundup.tokens.tokenizer.load_tokenizer import load_tokenizer

NAMES = ("legacy_992da75_gpt_tp1pp1", "legacy_992da75_gpt_tp2pp1", "mcore_head_gpt_tp1pp1")


@pytest.fixture(scope="module")
def reference(shared_data: Path) -> Path:
    folder = shared_data.parent / "reference" / "megatron" / "checkpoints"
    if not folder.is_dir():
        pytest.skip(f"no samples at {folder}")
    return folder


def opened(folder: Path) -> LazyModel:
    return open_megatron(folder, tokenizer=load_tokenizer("bytes"), vocab_size=600)


def error_of(loaded: LoadedModel, folder: Path) -> float:
    """Largest difference from the logits that Megatron-LM computed."""
    recorded = folder if (folder / "logits.npy").is_file() else folder.with_name(NAMES[0])
    tokens = torch.from_numpy(np.load(recorded / "tokens.npy")).long()
    expected = torch.from_numpy(np.load(recorded / "logits.npy"))[..., :600]
    model: Any = loaded.model
    with torch.inference_mode():
        logits: Tensor = linear(model(tokens), model.head.weight[:600])
    assert expected.std() > 0.1
    return (logits - expected).abs().max().item()


@pytest.mark.parametrize("name", NAMES)
def test_recorded_logits(reference: Path, name: str, tmp_path: Path) -> None:
    stored = opened(reference / name)
    assert stored.step == 10
    assert stored.samples == 1280
    assert error_of(load(stored, device="cpu"), reference / name) < 1e-4
    write_stored(stored, tmp_path / "hf")
    assert error_of(read_huggingface(tmp_path / "hf"), reference / name) < 1e-4
    write_megatron(stored, tmp_path / "again", tp=2, pp=2, names="core")
    again = open_megatron(tmp_path / "again")
    assert (again.step, again.samples, again.config) == (10, 1280, stored.config)
    assert error_of(load(again, device="cpu"), reference / name) < 1e-4


def test_recorded_logits_in_transformers(reference: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    for name in NAMES[::2]:
        write_stored(opened(reference / name), tmp_path / name)
        model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / name)
        tokens = torch.from_numpy(np.load(reference / name / "tokens.npy")).long()
        expected = torch.from_numpy(np.load(reference / name / "logits.npy"))[..., :600]
        with torch.inference_mode():
            assert (model(tokens).logits - expected).abs().max() < 1e-4


def test_both_parallelisms_hold_the_same_model(reference: Path) -> None:
    one, two = opened(reference / NAMES[0]), opened(reference / NAMES[1])
    for name, tensor in one.weights.items():
        assert torch.equal(tensor.read(), two.weights[name].read()), name


@pytest.mark.parametrize("name", NAMES)
def test_the_same_names_are_written(reference: Path, name: str, tmp_path: Path) -> None:
    """What is written has the keys, in each nested dict, and shapes of what Megatron-LM wrote."""
    from groundup.checkpoint.safe_pickle.unpickle import load_pickled

    tp = 2 if "tp2" in name else 1
    written = write_megatron(
        opened(reference / name), tmp_path / "out", tp=tp, names="core" if "mcore" in name else "legacy"
    )

    def outline(tree: Any) -> Any:
        if isinstance(tree, dict):
            return {key: outline(value) for key, value in tree.items()}
        return (tuple(tree.shape), tree.dtype) if isinstance(tree, Tensor) else tree

    for path in sorted((reference / name).rglob("*.pt")):
        theirs = load_pickled(path)
        ours = load_pickled(written / path.parent.name / path.name)
        assert outline(ours["model"]) == outline(theirs["model"])
        assert ours["iteration"] == theirs["iteration"]
        assert ours["checkpoint_version"] == theirs["checkpoint_version"]
        for key in ("num_layers", "padded_vocab_size", "tokenizer_type", "bias_gelu_fusion", "kv_channels"):
            assert getattr(ours["args"], key) == getattr(theirs["args"], key), key
