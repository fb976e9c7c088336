"""Losses, metrics and gradients of pairs equal those that TRL computed; see ``record_dpo.py``."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from groundup.checkpoint.huggingface.weights import read_huggingface
from groundup.finetune.pair_loss import PairLoss, PairObjective, sequence_log_probs
from groundup.finetune.pair_samples import PairSplit, TokenPair
from groundup.parallel.device import choose_precision

FOLDER = Path(__file__).parent / "dpo"
RECORDED = json.loads((FOLDER / "results.json").read_text())
GRADIENTS = load_file(FOLDER / "gradients.safetensors")
PRECISION = choose_precision("fp32", torch.device("cpu"))
BETA = RECORDED["beta"]
SMOOTHING = 0.2


def batch_of(length):
    """The recorded pairs in rows of so many tokens: one or several pairs a row."""
    pairs = [
        TokenPair(
            **{
                name: np.array(row[f"{name}_ids"], dtype=np.int32)
                for name in ("prompt", "chosen", "rejected")
            },
            where="",
        )
        for row in RECORDED["ids"]
    ]
    split = PairSplit(pairs, sequence_length=length, seed=0, name="train")
    reference = read_huggingface(FOLDER / "reference").model
    batch = split.read(0, split.num_samples, ordered=True)
    with torch.no_grad():
        hidden = reference(batch.tokens_BT, positions_BT=batch.positions_BT, documents_BT=batch.documents_BT)
        found = sequence_log_probs(reference, hidden, batch, PRECISION)
    for row in range(split.num_samples):
        numbers = split.pairs_of(row)
        split.reference[numbers] = found[row, : len(numbers)].numpy()
    return split.read(0, split.num_samples, ordered=True)


def computed(pair_loss, length=96):
    """(mean loss, mean figures, gradients by name)"""
    model = read_huggingface(FOLDER / "policy").model.requires_grad_()
    batch = batch_of(length)
    objective = PairObjective(pair_loss=pair_loss)
    assert objective.denominator(batch) == len(RECORDED["ids"])
    hidden = model(batch.tokens_BT, positions_BT=batch.positions_BT, documents_BT=batch.documents_BT)
    loss, figures = objective.sums(model, hidden, batch, PRECISION)
    mean = loss / objective.denominator(batch)
    mean.backward()
    named = dict(
        zip(objective.figures, (value.item() / len(RECORDED["ids"]) for value in figures), strict=True)
    )
    return mean.item(), named, {name: parameter.grad for name, parameter in model.named_parameters()}


NAMES = {
    "embed.tokens": "embed_tokens",
    "attention_norm": "input_layernorm",
    "mlp_norm": "post_attention_layernorm",
    **{f"attention.w{one}": f"self_attn.{one}_proj" for one in "qkvo"},
    "mlp.w1": "mlp.gate_proj",
    "mlp.w2": "mlp.down_proj",
    "mlp.w3": "mlp.up_proj",
}
"""Of parameters, ours and theirs; the others have one name."""


def theirs(name):
    return "model." + next((name.replace(*two) for two in NAMES.items() if two[0] in name), name)


def recorded(loss):
    """(mean loss, gradients by their names)"""
    if loss != "conservative":
        prefix = f"{loss}/"
        found = {
            name.removeprefix(prefix): value for name, value in GRADIENTS.items() if name.startswith(prefix)
        }
        return RECORDED["results"][loss]["loss"], found
    # TRL has the robust loss, ((1 - e) L(m) - e L(-m)) / (1 - 2 e); the conservative one, (1 - e) L(m) +
    # e L(-m), is L + (1 - 2 e) (L - robust), as L(-m) - L(m) is m.
    (one, gradients), (robust, others) = recorded("sigmoid"), recorded("robust")
    share = 1 - 2 * SMOOTHING
    return one + share * (one - robust), {
        name: value + share * (value - others[name]) for name, value in gradients.items()
    }


LOSSES = {name: PairLoss(loss=name, beta=BETA) for name in ("sigmoid", "sigmoid_norm", "ipo", "hinge")}
LOSSES["conservative"] = PairLoss(beta=BETA, label_smoothing=SMOOTHING)


@pytest.mark.parametrize("length", [96, 256], ids=["a-pair-a-row", "packed"])
@pytest.mark.parametrize("name", LOSSES)
def test_losses_metrics_and_gradients(name, length):
    loss, figures, gradients = computed(LOSSES[name], length)
    expected, expected_gradients = recorded(name)
    assert loss == pytest.approx(expected, rel=1e-5)
    for parameter, value in gradients.items():
        wanted = expected_gradients[theirs(parameter)]
        value = value[: len(wanted)]  # of the true vocabulary
        assert (value - wanted).norm() <= 1e-5 * wanted.norm(), parameter
    metrics = RECORDED["results"]["sigmoid"]
    for answer in ("chosen", "rejected"):
        assert figures[f"log_prob_{answer}"] == pytest.approx(metrics[f"logps/{answer}"], rel=1e-5)
        if name in ("sigmoid", "hinge", "conservative"):
            assert figures[f"reward_{answer}"] == pytest.approx(metrics[f"rewards/{answer}"], rel=1e-5)
    if name in ("sigmoid", "hinge", "conservative"):
        assert figures["reward_margin"] == pytest.approx(metrics["rewards/margins"], rel=1e-4)
        assert figures["reward_accuracy"] == pytest.approx(metrics["rewards/accuracies"])
