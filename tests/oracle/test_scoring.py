"""Scores against ``transformers``, one continuation at a time, tokenized by its own tokenizer."""

import gzip
import math
from pathlib import Path

import orjson
import pytest
import torch

from groundup.checkpoint.formats import open_model
from groundup.checkpoint.huggingface.weights import write_huggingface
from groundup.eval.tasks import HellaSwag, Lambada, WikiText
from tests.tiny import tiny_model

transformers = pytest.importorskip("transformers")


@pytest.fixture(autouse=True)
def _offline(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def alone(model, tokenizer, context, continuation):
    """The log-probability and whether it is greedy, as EleutherAI's harness defines them."""
    known = tokenizer(context).input_ids
    ids = torch.tensor(tokenizer(context + continuation).input_ids)
    ids = torch.cat((torch.tensor(known), ids[len(known) :]))
    wanted = len(ids) - len(known)
    ids = ids[-(model.config.max_position_embeddings + 1) :]
    with torch.inference_mode():
        logits = model(ids[None, :-1]).logits[0, -wanted:].double()
    targets = ids[-wanted:]
    return float(logits.log_softmax(-1)[range(wanted), targets].sum()), bool(
        (logits.argmax(-1) == targets).all()
    )


@pytest.fixture(params=["stories260K", "gpt2", "llama-grouped-tied"])
def folder(request, tmp_path, shared_data) -> Path:
    """A Hugging Face folder: a trained Llama, or random weights."""
    if request.param == "stories260K":
        return shared_data / "models/stories260K"
    write_huggingface(tiny_model(request.param), tmp_path / "model")
    return tmp_path / "model"


def beginning(file: Path, folder: Path, count: int) -> Path:
    path = folder / file.name.removesuffix(".gz")
    path.write_bytes(b"\n".join(gzip.decompress(file.read_bytes()).split(b"\n")[:count]))
    return path


def test_hellaswag_and_lambada_are_what_transformers_computes(folder, tmp_path, shared_data):
    loaded = open_model(folder, device=torch.device("cpu"))
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    path = beginning(shared_data / "hellaswag/hellaswag_val.jsonl.gz", tmp_path, 60)
    lines = [orjson.loads(line) for line in path.read_bytes().splitlines()]
    lines = [line for line in lines if max(map(len, line["endings"])) < 60][:8]
    path.write_bytes(b"\n".join(map(orjson.dumps, lines)))
    items = HellaSwag(prompt="plain").measure(loaded, [path]).items
    assert len(items) == len(lines) > 0
    for item, line in zip(items, lines, strict=True):
        expected = [alone(model, tokenizer, line["ctx"], f" {ending}") for ending in line["endings"]]
        assert [score.logprob for score in item.scores] == pytest.approx([e[0] for e in expected], abs=1e-4)
        assert [score.is_greedy for score in item.scores] == [e[1] for e in expected]
        best = max(range(4), key=lambda number: expected[number][0])
        assert item.prediction == line["endings"][best]
    path = beginning(shared_data / "lambada/lambada_test.jsonl.gz", tmp_path, 12)
    for item, line in zip(
        Lambada().measure(loaded, [path]).items, path.read_bytes().splitlines(), strict=True
    ):
        context, _, word = orjson.loads(line)["text"].rpartition(" ")
        logprob, is_greedy = alone(model, tokenizer, context, f" {word}")
        assert item.scores[0].logprob == pytest.approx(logprob, abs=1e-4)
        assert item.values["accuracy"] == is_greedy


def test_wikitext_windows_overlap_as_megatron_has_it(folder, tmp_path):
    """A plain loop over windows, of which all but the first count their last targets only."""
    loaded = open_model(folder, device=torch.device("cpu"))
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    path = tmp_path / "wiki.test.tokens"
    path.write_text("The tide , it 's said , came in at 1 @,@ 200 miles ( or so ) . \n" * 25)
    tokens = torch.tensor(loaded.tokenizer.encode(path.read_text()))
    length, stride = loaded.config.max_sequence_length, 16
    losses = []
    for begin in range(0, len(tokens), stride):
        window = tokens[begin : begin + length + 1]
        with torch.inference_mode():
            logprobs = model(window[None, :-1]).logits[0].double().log_softmax(-1)
        window_losses = -logprobs[range(len(window) - 1), window[1:]]
        losses.append(window_losses if begin == 0 else window_losses[length - stride :])
        if begin + length + 1 >= len(tokens):
            break
    expected = torch.cat(losses)
    assert len(losses) > 3
    found = WikiText(stride=stride, detokenize=False).measure(loaded, [path]).figures
    assert found["tokens"] == len(expected) == len(tokens) - 1
    assert found["loss"] == pytest.approx(float(expected.mean()), abs=1e-4)
    words = len(path.read_text().strip().split(" "))
    assert found["token_ratio"] == pytest.approx(len(expected) / (words - 1))
    adjusted = min(20.0, found["loss"] * found["token_ratio"])
    assert found["adjusted_perplexity"] == pytest.approx(math.exp(adjusted))
