"""nanoGPT's ``ckpt.pt``, as its train.py saves it of a model that is built here by its names."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention

from groundup.checkpoint.formats import detect_format, open_lazy, open_model
from groundup.checkpoint.lazy import LoadedModel, as_lazy
from groundup.checkpoint.nanogpt import open_nanogpt, write_nanogpt
from groundup.cli.app import build_app
from groundup.core.errors import CheckpointError, ConfigError, DataError
from tests.tiny import NANOGPT, tiny_model, tiny_tokenizer

ARGS = {"n_layer": 2, "n_head": 4, "n_embd": 32, "block_size": 64, "vocab_size": 320, "dropout": 0.1}


class TheirBlock(nn.Module):
    def __init__(self, args: dict[str, Any]) -> None:
        super().__init__()
        width, bias = args["n_embd"], args["bias"]
        self.heads = args["n_head"]
        self.ln_1 = nn.LayerNorm(width, bias=bias)
        self.attn = nn.ModuleDict(
            {"c_attn": nn.Linear(width, 3 * width, bias=bias), "c_proj": nn.Linear(width, width, bias=bias)}
        )
        self.ln_2 = nn.LayerNorm(width, bias=bias)
        self.mlp = nn.ModuleDict(
            {"c_fc": nn.Linear(width, 4 * width, bias=bias), "c_proj": nn.Linear(4 * width, width, bias=bias)}
        )

    def forward(self, x_BTD: Tensor) -> Tensor:
        projected = self.attn["c_attn"](self.ln_1(x_BTD)).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in projected)
        attended = scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x_BTD = x_BTD + self.attn["c_proj"](attended)
        return x_BTD + self.mlp["c_proj"](gelu(self.mlp["c_fc"](self.ln_2(x_BTD))))


class TheirModel(nn.Module):
    """With the parameters and the computation of nanoGPT's ``GPT``."""

    def __init__(self, args: dict[str, Any]) -> None:
        super().__init__()
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(args["vocab_size"], args["n_embd"]),
                "wpe": nn.Embedding(args["block_size"], args["n_embd"]),
                "h": nn.ModuleList(TheirBlock(args) for _ in range(args["n_layer"])),
                "ln_f": nn.LayerNorm(args["n_embd"], bias=args["bias"]),
            }
        )
        self.lm_head = nn.Linear(args["n_embd"], args["vocab_size"], bias=False)
        self.transformer["wte"].weight = self.lm_head.weight

    def forward(self, tokens_BT: Tensor) -> Tensor:
        x_BTD = self.transformer["wte"](tokens_BT) + self.transformer["wpe"].weight[: tokens_BT.shape[1]]
        for block in self.transformer["h"]:
            x_BTD = block(x_BTD)
        return self.lm_head(self.transformer["ln_f"](x_BTD))


def their_model(**args: Any) -> TheirModel:
    torch.manual_seed(0)
    model = TheirModel({**ARGS, "bias": True, **args})
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model


def save(model: TheirModel, folder: Path, *, prefix: str = "", masks: bool = False, **args: Any) -> Path:
    """As train.py does after some steps, with an optimizer that has a state."""
    optimizer = optimizer_of(model)
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    model(torch.arange(8).unsqueeze(0)).square().sum().backward()
    optimizer.step()
    state = {prefix + name: tensor for name, tensor in model.state_dict().items()}
    if masks:  # as before PyTorch 2.0
        state |= {f"transformer.h.{i}.attn.bias": torch.ones(1, 1, 64, 64).tril() for i in range(2)}
    checkpoint = {
        "model": state,
        "optimizer": optimizer.state_dict(),
        "model_args": {**ARGS, "bias": True, **args},
        "iter_num": 250,
        "best_val_loss": torch.tensor(3.5),
        "config": {
            "dataset": "shakespeare_char",
            "learning_rate": 1e-3,
            "compile": bool(prefix),
            "batch_size": 12,
            "gradient_accumulation_steps": 5,
        },
    }
    folder.mkdir()
    torch.save(checkpoint, folder / "ckpt.pt")
    return folder / "ckpt.pt"


def optimizer_of(model: TheirModel) -> torch.optim.AdamW:
    """As configure_optimizers makes it: tensors of two dimensions first."""
    parameters = list(model.parameters())
    groups = ([p for p in parameters if p.dim() >= 2], [p for p in parameters if p.dim() < 2])
    decays = zip(groups, (0.1, 0.0), strict=True)
    return torch.optim.AdamW([{"params": group, "weight_decay": decay} for group, decay in decays], lr=1e-3)


def logits(loaded: LoadedModel, tokens_BT: Tensor) -> Tensor:
    model: Any = loaded.model
    return model.head(model(tokens_BT))[..., : loaded.config.vocab_size]


@pytest.mark.parametrize(
    ("bias", "prefix", "masks"), [(True, "", True), (True, "_orig_mod.", False), (False, "_orig_mod.", False)]
)
@torch.no_grad()
def test_what_nanogpt_saves_computes_the_same(bias: bool, prefix: str, masks: bool, tmp_path: Path) -> None:
    model = their_model(bias=bias)
    with torch.enable_grad():
        path = save(model, tmp_path / "out", prefix=prefix, masks=masks, bias=bias)
    tiny_tokenizer().save(tmp_path / "out" / "tokenizer")
    tokens_BT = torch.arange(60).reshape(2, 30)
    for place in (path, path.parent):
        loaded = open_model(place, device=torch.device("cpu"))
        assert (loaded.config.vocab_size, loaded.tokenizer.vocab_size) == (320, 300)
        torch.testing.assert_close(logits(loaded, tokens_BT), model(tokens_BT), rtol=1e-5, atol=1e-5)
    assert open_lazy(path).step == 250


@pytest.mark.parametrize("bias", [True, False])
@torch.no_grad()
def test_what_is_written_is_loaded_as_sample_py_does(bias: bool, tmp_path: Path) -> None:
    ours = tiny_model("gpt2", bias=bias, **NANOGPT)
    write_nanogpt(as_lazy(ours), tmp_path / "out")
    checkpoint = torch.load(tmp_path / "out" / "ckpt.pt", weights_only=True)
    assert checkpoint.keys() == {"model", "model_args", "iter_num", "best_val_loss", "config"}
    assert checkpoint["model_args"].keys() == {*ARGS, "bias"}
    model = TheirModel(checkpoint["model_args"])
    model.load_state_dict(checkpoint["model"])
    stored = checkpoint["model"]
    assert stored["lm_head.weight"].data_ptr() == stored["transformer.wte.weight"].data_ptr()  # once
    tokens_BT = torch.arange(60).reshape(2, 30)
    torch.testing.assert_close(model.eval()(tokens_BT), logits(ours, tokens_BT), rtol=1e-5, atol=1e-5)


def test_a_model_with_other_parts_is_refused_by_name(tmp_path: Path) -> None:
    for name, changes, message in (
        ("llama", {}, "nanoGPT has GPT-2 alone, and the model's kind is llama"),
        ("gpt2", {**NANOGPT, "activation": "gelu_tanh"}, "activation 'gelu' only, and this one 'gelu_tanh'"),
        ("gpt2", {**NANOGPT, "tied_embedding": False}, "tied_embedding True only"),
        ("gpt2", {**NANOGPT, "ffn_size": 64}, "ffn_size 128 only, and this one 64"),
        ("gpt2", {**NANOGPT, "norm_eps": 1e-6}, "norm_eps 1e-05 only"),
        ("gpt2", {**NANOGPT, "dropout": 0.1}, "attention_dropout 0.1 only"),
    ):
        with pytest.raises(ConfigError, match=message):
            write_nanogpt(as_lazy(tiny_model(name, **changes)), tmp_path / "out")
        assert not any(tmp_path.iterdir())


def test_what_is_not_nanogpts_own_is_refused_by_name(tmp_path: Path) -> None:
    path = save(their_model(), tmp_path / "out")
    with pytest.raises(DataError, match=r"has no tokenizer beside it.*--tokenizer gpt2"):
        open_nanogpt(path)
    good = torch.load(path, weights_only=True)
    weights = good["model"]
    other = {**weights, "lm_head.weight": weights["lm_head.weight"] + 1}
    less = {name: tensor for name, tensor in weights.items() if name != "transformer.h.1.mlp.c_fc.bias"}
    more = {**weights, "transformer.h.0.ln_1.gain": torch.ones(32)}
    args = good["model_args"]
    for changes, message in (
        ({"model_args": {**args, "use_rmsnorm": True}}, "model_args has use_rmsnorm, which nanoGPT's own"),
        (
            {"model_args": {**args, "n_layer": "two"}},
            "model_args.n_layer is 'two', it must be a whole number",
        ),
        ({"model_args": {**args, "n_head": 3}}, "its model_args describe no model: .*hidden_size"),
        ({"model_args": {k: v for k, v in args.items() if k != "n_embd"}}, "n_embd is missing"),
        ({"model_args": {**args, "vocab_size": 319}}, "does not fit model_args"),
        ({"model_args": None}, "holds no model and model_args of nanoGPT"),
        ({"model": other}, r"lm_head\.weight is not transformer\.wte\.weight"),
        ({"model": less}, r"missing: transformer\.h\.1\.mlp\.c_fc\.bias"),
        ({"model": more}, r"unexpected: transformer\.h\.0\.ln_1\.gain"),
        ({"model": {**weights, "lm_head.weight": 3}}, "something else than tensors"),
        ({"iter_num": -1}, "iter_num is '-1', it must be a whole number"),
    ):
        torch.save({**good, **changes}, path)
        with pytest.raises(CheckpointError, match=message):
            open_nanogpt(path, tokenizer=tiny_tokenizer())


def test_a_run_of_nanogpt_becomes_any_format(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(their_model(bias=False), tmp_path / "out-char", prefix="_orig_mod.", bias=False)
    app = build_app()

    def groundup(*words: object) -> str:
        app([str(word) for word in words], result_action="return_value")
        return capsys.readouterr().out

    tiny_tokenizer().save(tmp_path / "tokenizer")
    out = tmp_path / "out-char" / "ckpt.pt"
    groundup("convert", out, tmp_path / "run", "--to", "native", "--tokenizer", tmp_path / "tokenizer")
    shown = groundup("convert", tmp_path / "run", tmp_path / "again", "--to", "nanogpt")
    assert "largest difference of logits 0.0e+00" in shown
    assert f"Next: python sample.py --out_dir={tmp_path / 'again'} in nanoGPT" in shown
    first, last = (torch.load(path, weights_only=True) for path in (out, tmp_path / "again" / "ckpt.pt"))
    names = {name.removeprefix("_orig_mod."): tensor for name, tensor in first["model"].items()}
    assert names.keys() == last["model"].keys()
    assert all(torch.equal(tensor, last["model"][name]) for name, tensor in names.items())
    assert (first["model_args"], first["iter_num"]) == (last["model_args"], last["iter_num"])
    command = ("--prompt", "the sea", "--max-new-tokens", 4, "--seed", 1)
    assert groundup("generate", tmp_path / "again", *command) == groundup(
        "generate", tmp_path / "run", *command
    )
    assert detect_format(tmp_path / "run").name == "native"
    assert dataclasses.is_dataclass(detect_format(out))


@pytest.mark.parametrize(("bias", "prefix", "masks"), [(True, "", True), (False, "_orig_mod.", False)])
def test_moments_are_those_of_the_parameters(bias: bool, prefix: str, masks: bool, tmp_path: Path) -> None:
    """One more step of theirs on some gradients, and one of ours: the same weights."""
    model = their_model(bias=bias)
    path = save(model, tmp_path / "out", prefix=prefix, masks=masks, bias=bias)
    stored = open_nanogpt(path, tokenizer=tiny_tokenizer(), moments=True)
    assert (stored.step, stored.samples) == (250, 250 * 12 * 5)
    assert stored.moments.keys() == {
        f"{n}/{e}" for n in stored.weights for e in ("exp_avg", "exp_avg_sq", "step")
    }
    assert not open_nanogpt(path, tokenizer=tiny_tokenizer()).moments

    optimizer = optimizer_of(model)
    optimizer.load_state_dict(torch.load(path, weights_only=True)["optimizer"])
    ours = [nn.Parameter(tensor.read().clone()) for tensor in stored.weights.values()]
    groups = ([p for p in ours if p.dim() >= 2], [p for p in ours if p.dim() < 2])
    mine = torch.optim.AdamW(
        [{"params": group, "weight_decay": decay} for group, decay in zip(groups, (0.1, 0.0), strict=True)]
    )
    for name, parameter in zip(stored.weights, ours, strict=True):
        mine.state[parameter] = {
            e: stored.moments[f"{name}/{e}"].read().clone() for e in ("exp_avg", "exp_avg_sq", "step")
        }
    for one in (optimizer, mine):
        for group in one.param_groups:
            group["lr"] = 1e-3
            for parameter in group["params"]:
                parameter.grad = 0.1 * parameter.detach()  # cut and joined as the parameters are
        one.step()
    save_again = tmp_path / "again.pt"
    torch.save({"model": model.state_dict(), "model_args": {**ARGS, "bias": bias}}, save_again)
    expected = open_nanogpt(save_again, tokenizer=tiny_tokenizer())
    for name, parameter in zip(stored.weights, ours, strict=True):
        torch.testing.assert_close(parameter.detach(), expected.weights[name].read(), msg=name)


def test_another_optimizers_state_is_refused(tmp_path: Path) -> None:
    path = save(their_model(), tmp_path / "out")
    good = torch.load(path, weights_only=True)
    state = good["optimizer"]["state"]
    for changed in (
        {number: entry for number, entry in state.items() if number},
        {**state, 0: {"momentum_buffer": torch.ones(3)}},
        {**state, 0: {**state[0], "exp_avg": torch.ones(3)}},
        {**state, 0: {**state[0], "step": "x"}},
        [3],
    ):
        torch.save({**good, "optimizer": {**good["optimizer"], "state": changed}}, path)
        with pytest.raises(
            CheckpointError, match=r"state is not that of an AdamW of its model.*--no-moments"
        ):
            open_nanogpt(path, tokenizer=tiny_tokenizer(), moments=True)
        assert open_nanogpt(path, tokenizer=tiny_tokenizer()).weights
    for optimizer in ({}, None, {"state": {}}):
        torch.save({**good, "optimizer": optimizer}, path)
        assert not open_nanogpt(path, tokenizer=tiny_tokenizer(), moments=True).moments
