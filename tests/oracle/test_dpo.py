"""Losses, metrics and gradients of pairs equal those that TRL computed; see ``record_dpo.py``."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from groundup.checkpoint.huggingface.weights import read_huggingface
from groundup.finetune.chats import ChatRecord
from groundup.finetune.pair_loss import PairLoss, PairObjective, sequence_log_probs
from groundup.finetune.pair_split import PairFormat, PairSplit
from groundup.finetune.pairs import PairFields
from groundup.finetune.tokenized_chats import open_chats
from groundup.inference.chat_template import read_chat_template
from groundup.parallel.device import choose_precision
from groundup.tokens.sampling.packing import PackedDataset

FOLDER = Path(__file__).parent / "dpo"
RECORDED = json.loads((FOLDER / "results.json").read_text())
GRADIENTS = load_file(FOLDER / "gradients.safetensors")
PRECISION = choose_precision("fp32", torch.device("cpu"))
BETA = RECORDED["beta"]
SMOOTHING = 0.2


class Recorded:
    """Takes the ids that were recorded as they are."""

    noun = "pairs"
    max_tokens = 0
    tokenizer = None

    def fingerprint(self, paths):
        return "recorded"

    def encode(self, record):
        prompt, chosen, rejected = (record.fields[f"{name}_ids"] for name in ("prompt", "chosen", "rejected"))
        learned = [[False] * len(prompt) + [True] * len(answer) for answer in (chosen, rejected)]
        return [*prompt, *chosen, *prompt, *rejected], [*learned[0], *learned[1]]


def batch_of(folder, length):
    """The recorded pairs in rows of so many tokens: one or several pairs a row."""
    path = folder / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in RECORDED["ids"]))
    source = open_chats([path], Recorded(), folder / "kept")
    samples = PackedDataset(source, sequence_length=length, seed=0)
    split = PairSplit(samples=samples, vocab_size=259, source=source, documents=(0, 3))
    reference = read_huggingface(FOLDER / "reference").model
    batch = split.read(0, split.num_samples, ordered=True)
    with torch.no_grad():
        hidden = reference(batch.tokens_BT, positions_BT=batch.positions_BT, documents_BT=batch.documents_BT)
        found = sequence_log_probs(reference, hidden, batch, PRECISION)
    for row in range(split.num_samples):
        numbers = split.pairs_of(row)
        split.reference[numbers] = found[row, : len(numbers)].numpy()
    return split.read(0, split.num_samples, ordered=True)


def computed(pair_loss, folder, length):
    """(mean loss, mean figures, gradients by name)"""
    model = read_huggingface(FOLDER / "policy").model.requires_grad_()
    batch = batch_of(folder, length)
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


@pytest.mark.parametrize("length", [168, 512], ids=["a-pair-a-row", "packed"])
@pytest.mark.parametrize("name", LOSSES)
def test_losses_metrics_and_gradients(tmp_path, name, length):
    loss, figures, gradients = computed(LOSSES[name], tmp_path, length)
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


def test_ids_of_conversations(tmp_path):
    """Theirs, but for the line break that the template writes behind an answer."""
    loaded = read_huggingface(FOLDER / "policy")
    how = PairFormat(
        tokenizer=loaded.tokenizer,
        template=read_chat_template(loaded.companions, loaded.tokenizer.special_tokens),
        template_source="",
        bos_ids=(),
        fields=PairFields(),
        max_tokens=100,
    )
    for pair, theirs in zip(RECORDED["pairs"], RECORDED["ids"], strict=True):
        ids, learned = how.encode(ChatRecord(tmp_path, 1, pair))
        prompt, chosen, rejected = (theirs[f"{name}_ids"] for name in ("prompt", "chosen", "rejected"))
        assert chosen[-1] == rejected[-1] == loaded.tokenizer.encode("\n")[0]
        assert ids == [*prompt, *chosen[:-1], *prompt, *rejected[:-1]]
        assert [one for one, is_learned in zip(ids, learned, strict=True) if is_learned] == [
            *chosen[:-1],
            *rejected[:-1],
        ]
