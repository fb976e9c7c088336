"""Models of the Llama family that ``transformers`` makes, against the same ones here and on the way back."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from groundup.checkpoint.families import family_of
from groundup.checkpoint.huggingface.weights import open_huggingface, read_huggingface, write_stored
from groundup.checkpoint.megatron.read import open_megatron
from groundup.checkpoint.megatron.write import write_megatron
from groundup.checkpoint.native.model import open_native, write_native
from groundup.inference.engine import Engine
from groundup.inference.sampler import Sampling
from groundup.models.llama import LlamaConfig
from groundup.models.rope import LinearRopeScaling, Llama3RopeScaling, NoRopeScaling
from tests.oracle.test_transformers import our_logits, their_greedy, their_logits
from tests.tiny import tiny_tokenizer

transformers = pytest.importorskip("transformers")

ORIGINAL = 32
LONGEST = 128
SIZES: dict[str, Any] = {
    "vocab_size": 300,
    "max_position_embeddings": LONGEST,
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "bos_token_id": 299,
    "eos_token_id": 299,
}
# With this base the four frequencies of a head are kept, blended, and twice divided.
LLAMA3 = {"rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0,
          "high_freq_factor": 4.0, "original_max_position_embeddings": ORIGINAL}  # fmt: skip
AS_RELEASED = {**LLAMA3, "factor": 32.0, "original_max_position_embeddings": 8192}
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
FAMILY: dict[str, tuple[str, dict[str, Any]]] = {
    "llama2": ("Llama", {"num_key_value_heads": 4}),
    "llama3.1": ("Llama", {"rope_parameters": LLAMA3}),
    "llama3.2": ("Llama", {"rope_parameters": AS_RELEASED, "tie_word_embeddings": True}),
    "llama3.2-short": ("Llama", {"rope_parameters": LLAMA3, "tie_word_embeddings": True}),
    "llama-linear": ("Llama", {"rope_parameters": LINEAR}),
    "llama-linear-tied": ("Llama", {"rope_parameters": LINEAR, "tie_word_embeddings": True}),
    "mistral": ("Mistral", {"sliding_window": None, "rope_parameters": {"rope_theta": 1e6}}),
    "qwen2": ("Qwen2", {"tie_word_embeddings": True, "rope_parameters": {"rope_theta": 1e6}}),
    "qwen2.5": ("Qwen2", {"sliding_window": 131072, "max_window_layers": 28, "rms_norm_eps": 1e-5}),
    "smollm2": ("Llama", {"hidden_size": 72, "num_attention_heads": 9, "num_key_value_heads": 3,
                          "tie_word_embeddings": True, "rms_norm_eps": 1e-5}),
    "stablelm-3b": ("StableLm", {"num_key_value_heads": 4, "layer_norm_eps": 1e-4}),  # a quarter is rotated
    "stablelm-2": ("StableLm", {"use_qkv_bias": True, "tie_word_embeddings": True,
                                "rope_parameters": {**LLAMA3, "partial_rotary_factor": 0.5}}),
}  # fmt: skip
MEGATRON = [name for name in FAMILY if name not in ("llama3.1", "llama3.2-short", "stablelm-2")]
"""It has no llama3 scaling of another original length than 8192."""


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    yield


def theirs_of(name: str) -> Any:
    """A random model of theirs; weights, norms and biases that tell."""
    kind, options = FAMILY[name]
    config = getattr(transformers, f"{kind}Config")(**{**SIZES, **options})
    model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = 0.2 * torch.randn(parameter.shape, generator=generator)
            parameter.copy_(noise if parameter.ndim == 2 else parameter + noise)
    return model


def saved(model: Any, folder: Path) -> Path:
    model.save_pretrained(folder)
    tiny_tokenizer().save(folder)
    return folder


def tokens(length: int) -> torch.Tensor:
    return torch.randint(300, (2, length), generator=torch.Generator().manual_seed(0))


def loaded_again(folder: Path) -> Any:
    model, report = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    return model.eval()


@pytest.mark.parametrize("name", FAMILY)
def test_what_they_save_is_the_same_model_here_and_back(name: str, tmp_path: Path) -> None:
    theirs = theirs_of(name)
    ours = read_huggingface(saved(theirs, tmp_path / "theirs"))
    tokens_BT = tokens(LONGEST)
    expected = their_logits(theirs, tokens_BT)
    assert expected.std() > 0.3, "logits that are all alike would prove nothing"
    assert (our_logits(ours, tokens_BT) - expected).abs().max() <= 1e-5
    engine = Engine(ours)  # with a cache, over the end of the original context
    for prompt in (tokens_BT[0, : ORIGINAL - 4].tolist(), tokens_BT[1, : 2 * ORIGINAL].tolist()):
        [found] = engine.generate([prompt], sampling=Sampling(temperature=0), max_new_tokens=40)
        assert list(found.ids) == their_greedy(theirs, prompt, 40)
    write_stored(open_huggingface(tmp_path / "theirs"), tmp_path / "out")
    again = loaded_again(tmp_path / "out")
    kind = FAMILY[name][0]
    assert type(again).__name__ == f"{'Llama' if kind == 'Mistral' else kind}ForCausalLM"
    assert torch.equal(their_logits(again, tokens_BT), expected)


@pytest.mark.parametrize("name", MEGATRON)
def test_the_tour_of_all_formats_changes_no_weight(name: str, tmp_path: Path) -> None:
    theirs = theirs_of(name)
    first = saved(theirs, tmp_path / "theirs")
    write_native(open_huggingface(first), tmp_path / "native")
    tp = 3 if name == "smollm2" else 2  # it has 3 key/value heads
    native = open_native(tmp_path / "native")
    naming = "core" if family_of(native.config).megatron.why_not_legacy(native.config) else "legacy"
    write_megatron(native, tmp_path / "megatron", tp=tp, pp=2, names=naming)
    write_native(open_megatron(tmp_path / "megatron"), tmp_path / "native-2")
    write_stored(open_native(tmp_path / "native-2"), tmp_path / "last")
    before, after = (load_file(folder / "model.safetensors") for folder in (first, tmp_path / "last"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
    assert open_huggingface(tmp_path / "last").config == open_huggingface(first).config
    tokens_BT = tokens(64)
    assert torch.equal(
        their_logits(loaded_again(tmp_path / "last"), tokens_BT), their_logits(theirs, tokens_BT)
    )


@pytest.mark.parametrize(
    ("name", "scaling"),
    [
        ("llama2", NoRopeScaling()),
        ("llama-linear", LinearRopeScaling(factor=4)),
        ("llama3.1", Llama3RopeScaling(factor=8, original_max_sequence_length=ORIGINAL)),
    ],
)
@pytest.mark.parametrize("kind", ["type", "rope_type"])
def test_the_spelling_of_transformers_4_is_read(
    name: str, scaling: object, kind: str, tmp_path: Path
) -> None:
    folder = saved(theirs_of(name), tmp_path / "theirs")
    path = folder / "config.json"
    config = json.loads(path.read_text())
    parameters = config.pop("rope_parameters")
    config["rope_theta"] = parameters.pop("rope_theta")
    config["rope_scaling"] = None
    if parameters["rope_type"] != "default":
        config["rope_scaling"] = {kind: parameters.pop("rope_type"), **parameters}
    found = open_huggingface(folder).config
    path.write_text(json.dumps(config))
    assert open_huggingface(folder).config == found
    assert isinstance(found, LlamaConfig)
    assert found.rope_scaling == scaling


def test_within_its_window_a_mistral_is_one_without(tmp_path: Path) -> None:
    model = transformers.MistralForCausalLM(
        transformers.MistralConfig(**{**SIZES, "sliding_window": 24})
    ).eval()
    ours = read_huggingface(saved(model, tmp_path / "theirs"))
    assert ours.config.max_sequence_length == 24
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(10)
    ours = read_huggingface(saved(model, tmp_path / "theirs"))
    within, beyond = tokens(24), tokens(LONGEST)
    assert (our_logits(ours, within) - their_logits(model, within)).abs().max() <= 1e-5
    assert (our_logits(ours, beyond) - their_logits(model, beyond)).abs().max() > 1e-3
