"""Adapters against PEFT on the same base and batch: files both ways, logits, losses and gradients."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import cross_entropy, linear

from groundup.checkpoint.formats import open_lazy, open_model, peft_adapter
from groundup.checkpoint.huggingface.weights import write_huggingface
from groundup.checkpoint.lazy import as_lazy, in_memory, load
from groundup.checkpoint.low_rank import AdapterAbout, adapter_of, base_fingerprint
from groundup.core.errors import CheckpointError, ConfigError
from groundup.finetune.lora import (
    LoraConfig,
    add_adapters,
    fill_adapters,
    target_layers,
    with_adapters_merged,
)
from groundup.inference.engine import Engine
from groundup.inference.sampler import Sampling
from tests.instances import MODELS
from tests.oracle.test_transformers import our_logits, their_logits
from tests.tiny import tiny_model

transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")

LORAS = {
    "all": LoraConfig(rank=3, alpha=6.0),
    "attention, rslora": LoraConfig(rank=2, alpha=5.0, targets="attention", rslora=True),
    "some": LoraConfig(rank=4, targets="wv,w1,wq"),
}
KINDS = ("gpt2", "gpt2-erf-untied-biasless", "llama-grouped-tied", "qwen2-grouped-tied", "stablelm")


@pytest.fixture(autouse=True)
def _offline(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def batch() -> torch.Tensor:
    return torch.randint(0, 300, (2, 17), generator=torch.Generator().manual_seed(5))


def adapted(kind: str, lora: LoraConfig, folder: Path) -> tuple[Any, Any]:
    """A base and the same with an adapter that tells, whose folders lie beneath the given one."""
    loaded = tiny_model(kind)
    write_huggingface(loaded, folder / "base")
    base = open_lazy(folder / "base")
    add_adapters(loaded.model, loaded.config, lora)
    fill_adapters(loaded.model, seed=7)
    generator = torch.Generator().manual_seed(1)
    trained = {name: value for name, value in loaded.model.named_parameters() if value.requires_grad}
    with torch.no_grad():
        for name, value in trained.items():
            if name.endswith("lora_b"):
                value.normal_(0, 0.3, generator=generator)
    about = AdapterAbout(
        base=str(folder / "base"),
        base_fingerprint=base_fingerprint(base),
        rank=lora.rank,
        alpha=lora.alpha,
        rslora=lora.rslora,
    )
    tensors = {name: in_memory(value.detach()) for name, value in trained.items()}
    peft_adapter().write_adapter(adapter_of(about, tensors, folder / "run"), base, folder / "adapter")
    return loaded, base


def theirs(folder: Path) -> Any:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder / "base", dtype=torch.float32)
    return peft.PeftModel.from_pretrained(model, folder / "adapter", is_trainable=True).eval()


def require_close(found: torch.Tensor, wanted: torch.Tensor) -> None:
    """Logits differ by 1e-5 of the largest, as everywhere."""
    torch.testing.assert_close(found, wanted, atol=1e-5 * float(wanted.abs().max()), rtol=0)


@pytest.mark.parametrize("name", LORAS)
@pytest.mark.parametrize("kind", KINDS)
def test_losses_and_gradients_are_those_of_peft(kind, name, tmp_path):
    loaded, _ = adapted(kind, LORAS[name], tmp_path)
    tokens_BT = batch()
    hidden_BTD = loaded.model(tokens_BT[:, :-1])
    logits_BTV = linear(hidden_BTD, loaded.model.head.weight[:300])
    loss = cross_entropy(logits_BTV.flatten(0, 1), tokens_BT[:, 1:].flatten())
    loss.backward()
    model = theirs(tmp_path)
    found = model(tokens_BT, labels=tokens_BT)
    found.loss.backward()
    torch.testing.assert_close(logits_BTV, found.logits[:, :-1], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(loss, found.loss, atol=1e-5, rtol=1e-5)
    ours = {key: value.grad for key, value in loaded.model.named_parameters() if value.requires_grad}
    assert not any(value.grad is not None for value in loaded.model.parameters() if not value.requires_grad)
    gradients = dict(gradients_by_our_names(model, kind, LORAS[name]))
    assert gradients.keys() == ours.keys()
    for key, gradient in gradients.items():
        torch.testing.assert_close(ours[key], gradient, atol=1e-5, rtol=1e-5)


def gradients_by_our_names(model: Any, kind: str, lora: LoraConfig):
    """Yields theirs; those of a GPT-2's queries, keys and values are parts of one tensor."""
    from groundup.checkpoint.families import family_of
    from groundup.checkpoint.families.name_rules import rules_for
    from groundup.checkpoint.logical_tensors import logical_shapes

    shapes = logical_shapes(MODELS[kind])
    targets = {tuple(layer.split(".")[2:]) for layer in target_layers(MODELS[kind], lora.targets)}
    modules = dict(model.base_model.model.named_modules())
    for rule in rules_for(family_of(MODELS[kind]).huggingface.names, list(shapes)):
        row = column = 0
        for ours in rule.ours:
            layer = ours.removesuffix(".weight")
            if not ours.endswith(".weight"):
                continue
            if tuple(layer.split(".")[2:]) in targets:
                module = modules[rule.theirs.removesuffix(".weight")]
                a, b = module.lora_A["default"].weight.grad, module.lora_B["default"].weight.grad
                yield f"{layer}.lora_a", a[column : column + lora.rank]
                yield f"{layer}.lora_b", b[row : row + shapes[ours][0], column : column + lora.rank]
                column += lora.rank
            row += shapes[ours][0]


@pytest.mark.parametrize("kind", KINDS)
def test_merged_is_applied_and_peft_loads_what_is_written(kind, tmp_path):
    loaded, _ = adapted(kind, LORAS["all"], tmp_path)
    applied = our_logits(loaded, batch())
    plain = our_logits(open_model(tmp_path / "base", device="cpu"), batch())
    assert (applied - plain).abs().max() > 0.1
    for path, adapter in ((tmp_path / "adapter", None), (tmp_path / "base", tmp_path / "adapter")):
        merged = open_model(path, adapter=adapter, device="cpu")
        require_close(our_logits(merged, batch()), applied)
    require_close(their_logits(theirs(tmp_path), batch()), applied)
    drawn = [Engine(one).generate([[1, 2, 3]], sampling=Sampling(temperature=0), max_new_tokens=12)[0].ids
             for one in (loaded, merged, open_model(tmp_path / "base", device="cpu"))]  # fmt: skip
    assert drawn[0] == drawn[1] != drawn[2]  # as completions while training are
    of_rollouts = with_adapters_merged(dict(loaded.model.named_parameters()), 2.0)
    stored = dict(merged.model.named_parameters())
    assert of_rollouts.keys() <= stored.keys()
    for name, weight in of_rollouts.items():
        require_close(weight, stored[name])


@pytest.mark.parametrize("kind", ["gpt2", "llama-grouped-tied"])
def test_an_adapter_of_peft_is_merged_as_peft_applies_it(kind, tmp_path):
    write_huggingface(tiny_model(kind), tmp_path / "base")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "base", dtype=torch.float32)
    first, second = ("c_attn", "c_fc") if kind == "gpt2" else ("q_proj", "up_proj")
    settings = peft.LoraConfig(
        task_type="CAUSAL_LM",
        r=4,
        lora_alpha=12,
        target_modules=[first, second],
        use_rslora=True,
        layers_to_transform=[1],
        rank_pattern={second: 2},
        alpha_pattern={f"1.*{second}": 7},
        fan_in_fan_out=kind == "gpt2",
        init_lora_weights=False,  # B is random too
    )
    model = peft.get_peft_model(model, settings).eval()
    wanted = their_logits(model, batch())
    model.save_pretrained(tmp_path / "adapter")
    for path, adapter in ((tmp_path / "adapter", None), (tmp_path / "base", tmp_path / "adapter")):
        merged = open_model(path, adapter=adapter, device="cpu")
        require_close(our_logits(merged, batch()), wanted)


def test_an_adapter_of_another_base_is_refused_naming_both(tmp_path):
    adapted("gpt2", LORAS["all"], tmp_path)
    for kind, seed, problem in (
        ("gpt2", 1, "its weights are others"),
        ("llama", 0, "it adapts transformer.h"),
    ):
        write_huggingface(tiny_model(kind, seed=seed), tmp_path / f"other-{kind}")
        with pytest.raises(CheckpointError) as error:
            open_lazy(tmp_path / f"other-{kind}", adapter=tmp_path / "adapter")
        message = str(error.value)
        assert problem in message
        assert f"is an adapter of {tmp_path / 'base'}, not of {tmp_path / f'other-{kind}'}" in message
    write_huggingface(tiny_model("gpt2", hidden_size=64), tmp_path / "wider")
    with pytest.raises(CheckpointError, match=r"wq.weight has shape \(64, 64\), the adapter's is \(64, 32\)"):
        open_lazy(tmp_path / "wider", adapter=tmp_path / "adapter")
    (tmp_path / "base").rename(tmp_path / "moved")
    with pytest.raises(CheckpointError, match=r"adapter of .*base, which is not here. Name the base model"):
        open_lazy(tmp_path / "adapter")
    open_lazy(tmp_path / "moved", adapter=tmp_path / "adapter")


def test_a_base_in_another_format_or_rounded_is_the_same_base(tmp_path):
    _, base = adapted("gpt2-erf-untied-biasless", LORAS["some"], tmp_path)
    write_huggingface(load(base, device="cpu"), tmp_path / "rounded", dtype="bfloat16")
    merged = open_lazy(tmp_path / "rounded", adapter=tmp_path / "adapter")
    assert {tensor.dtype for tensor in merged.weights.values()} == {torch.float32}
    assert base_fingerprint(as_lazy(tiny_model("gpt2-erf-untied-biasless"))) == base_fingerprint(base)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"use_dora": True}, "use_dora = True is not supported, only False"),
        ({"peft_type": "LOHA"}, "peft_type 'LOHA' is not supported, only LORA"),
        ({"bias": "all"}, "bias = 'all' is not supported, only 'none'"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save .* is not supported"),
        ({"init_lora_weights": "pissa"}, "has changed the base's weights too"),
        ({"r": 0}, "r = 0 and lora_alpha = 6.0 are no rank and no number"),
        ({"lora_alpha": "much"}, "lora_alpha = 'much'"),
        ({"alpha_pattern": {"(": 2}}, "alpha_pattern"),
    ],
)
def test_adapters_that_compute_something_else_are_refused(change, problem, tmp_path):
    adapted("gpt2", LORAS["all"], tmp_path)
    path = tmp_path / "adapter" / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(CheckpointError, match=problem) as error:
        open_lazy(tmp_path / "adapter")
    assert str(path) in str(error.value)


def test_damaged_adapters_are_refused(tmp_path):
    adapted("llama", LORAS["all"], tmp_path)
    path = tmp_path / "adapter" / "adapter_model.safetensors"
    tensors = load_file(path)
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
    lacking = {key: value for key, value in tensors.items() if key != name}
    embedding = {"base_model.model.model.embed_tokens.lora_A.weight": torch.zeros(3, 32),
                 "base_model.model.model.embed_tokens.lora_B.weight": torch.zeros(300, 3)}  # fmt: skip
    for content, problem in (
        (lacking, "lora_A and lora_B of model.layers.0.self_attn.q_proj do not fit"),
        ({}, "holds no adapter"),
        ({**tensors, "base_model.model.lm_head.weight": torch.zeros(1, 1)}, "which is no part of a LoRA"),
        (embedding, "model.embed_tokens, which is no linear layer of a block"),
    ):
        save_file(content, path)
        with pytest.raises(CheckpointError, match=problem):
            open_lazy(tmp_path / "adapter")
    path.unlink()
    with pytest.raises(CheckpointError, match=r"holds no adapter_model\.safetensors"):
        open_lazy(tmp_path / "adapter")


def test_targets_are_read_off_the_axis_table():
    assert len(target_layers(MODELS["gpt2"], "all")) == 6
    assert len(target_layers(MODELS["llama"], "all")) == 7
    assert target_layers(MODELS["llama"], "wo, mlp") == [
        "layers.*.attention.wo", "layers.*.mlp.w1", "layers.*.mlp.w2", "layers.*.mlp.w3",
    ]  # fmt: skip
    for targets in ("q_proj", "wq,embed", ""):
        with pytest.raises(
            ConfigError, match=r"is no linear layer of a gpt2. Choose of all, attention, mlp, w1"
        ):
            target_layers(MODELS["gpt2"], targets)
