"""Fine-tuning on conversations learns the tokens that TRL learns, with its loss and gradients.

``record_trl_sft.py`` recorded TRL's, with all conversations padded in one batch; here they are packed.
"""

import json
from pathlib import Path

import pytest

from groundup.checkpoint.formats import open_lazy
from groundup.checkpoint.huggingface.weights import write_huggingface
from groundup.checkpoint.lazy import load
from groundup.finetune.templates import with_template
from groundup.parallel.dtensor import local
from groundup.train.forward_backward import add_gradients
from groundup.train.setup import build_run
from tests.chats import finetuning, write_base, write_chats

TRL = json.loads(Path(__file__).with_name("trl_sft.json").read_text())

NAMES = {
    "embed.tokens": "model.embed_tokens",
    "norm": "model.norm",
    "attention.wq": "self_attn.q_proj",
    "attention.wk": "self_attn.k_proj",
    "attention.wv": "self_attn.v_proj",
    "attention.wo": "self_attn.o_proj",
    "mlp.w1": "mlp.gate_proj",
    "mlp.w3": "mlp.up_proj",
    "mlp.w2": "mlp.down_proj",
    "attention_norm": "input_layernorm",
    "mlp_norm": "post_attention_layernorm",
}


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    stored = with_template(open_lazy(write_base(folder / "base")), "chatml")
    write_huggingface(load(stored, device="cpu"), folder / "chatml")
    return folder / "chatml"


def build(model: Path, folder: Path, *overrides: str):
    chats = write_chats(folder / "chats.jsonl", ({"messages": talk} for talk in TRL["talks"]))
    config = finetuning(model, chats, folder / "run", "num_steps=1", *overrides)
    return build_run(config, learning=config.learning())


def test_ids_and_what_is_learned(model: Path, tmp_path: Path) -> None:
    source = build(model, tmp_path).data.train.source
    found = {}
    for document in range(source.num_documents):
        begin, end = source.token_begin(document), source.token_begin(document + 1)
        _, line = source.place(document)
        found[line] = source.tokens[begin:end].tolist(), source.learned[begin:end].tolist()
    expected = dict(enumerate(zip(TRL["ids"], TRL["learned"], strict=True), start=1))
    assert found == expected
    assert 0 < sum(map(sum, TRL["learned"])) < sum(map(len, TRL["learned"]))


def test_loss_and_gradients_of_the_same_conversations_packed(model: Path, tmp_path: Path) -> None:
    run = build(model, tmp_path)
    num_samples = run.data.train.num_samples
    assert num_samples < len(TRL["talks"])  # else nothing is packed
    batch = run.data.train.read(0, num_samples)
    assert batch.num_targets == sum(map(sum, TRL["learned"]))
    scale = 1 / batch.num_targets
    (total,) = add_gradients(run.state, batch, run.config, run.precision, run.mesh, scale=scale)
    assert float(total) * scale == pytest.approx(TRL["loss"], rel=1e-5)
    norms = {name: float(local(p.grad).norm()) for name, p in run.state.model.named_parameters()}
    assert {_theirs(name): pytest.approx(norm, rel=1e-5) for name, norm in norms.items()} == TRL[
        "gradient_norms"
    ]


def _theirs(name: str) -> str:
    name = name.removesuffix(".weight")
    if name.startswith("layers."):
        _, layer, rest = name.split(".", 2)
        return f"model.layers.{layer}.{NAMES[rest]}.weight"
    return f"{NAMES[name]}.weight"
