"""The last-word task: counted right, whatever the batch, and as published."""

import gzip
import math

import orjson
import pytest
import torch

from groundup.core.errors import DataError
from groundup.eval.tasks.lambada import Lambada
from tests.tiny import tiny_model

PASSAGES = ["a b c", "the end of the\n story", "one two three  four", "it was the worst of times", "x y"]


def write(folder, passages):
    path = folder / "passages.jsonl"
    path.write_bytes(b"\n".join(orjson.dumps({"text": passage}) for passage in passages))
    return path


def plain(loaded, passage):
    """Right or not and the negative log-probability, by one full forward pass and no padding."""
    context, space, word = passage.rpartition(" ")
    first, target = loaded.tokenizer.encode(context.rstrip()), loaded.tokenizer.encode(space + word)
    hidden = loaded.model(torch.tensor([first + target[:-1]]))[0, len(first) - 1 :]
    logits = hidden @ loaded.model.head.weight[: loaded.config.vocab_size].T
    chosen = logits.log_softmax(-1)[range(len(target)), target]
    return logits.argmax(-1).tolist() == target, -chosen.sum().item()


@pytest.mark.parametrize("name", ["gpt2", "llama-grouped-tied"])
def test_equals_passage_by_passage_whatever_the_batch(tmp_path, name):
    loaded = tiny_model(name)
    path = write(tmp_path, PASSAGES)
    expected = [plain(loaded, passage) for passage in PASSAGES]
    results = [Lambada(batch_size=size).measure(loaded, [path]).figures for size in (1, 2, 64)]
    for result in results:
        assert result["right"] == sum(right for right, _ in expected)
        mean = sum(loss for _, loss in expected) / len(expected)
        assert math.log(result["perplexity"]) == pytest.approx(mean, rel=1e-5)
        assert result["passages"] == len(PASSAGES)


def test_a_model_that_knows_the_word_scores_one(tmp_path):
    """A head that always answers with the tokens of one word: right on it, wrong on another."""
    loaded = tiny_model("gpt2-erf-untied-biasless")
    (target,) = loaded.tokenizer.encode(" b")
    with torch.no_grad():
        loaded.model.head.weight.zero_()
        loaded.model.norm.register_forward_hook(lambda *_: torch.ones(1, 1, 32))
        loaded.model.head.weight[target] = 1.0
    right = Lambada(batch_size=1).measure(loaded, [write(tmp_path, ["a b"])]).figures
    assert right["accuracy"] == 1.0
    assert right["perplexity"] < 1.001
    assert Lambada(batch_size=1).measure(loaded, [write(tmp_path, ["a c"])]).figures["accuracy"] == 0.0


def test_a_passage_of_one_word_is_refused_with_its_place(tmp_path):
    path = write(tmp_path, ["two words", "alone"])
    with pytest.raises(DataError, match=r"passages\.jsonl:2: the passage 'alone' has no context"):
        Lambada().measure(tiny_model("gpt2"), [path])


def test_reads_the_published_file(shared_data, tmp_path):
    lines = gzip.decompress((shared_data / "lambada/lambada_test.jsonl.gz").read_bytes()).splitlines()
    assert len(lines) == 5153
    path = tmp_path / "lambada.jsonl"
    path.write_bytes(b"\n".join(lines[:20]))
    result = Lambada().measure(tiny_model("gpt2"), [path]).figures
    assert result["passages"] == 20
    assert 0 <= result["accuracy"] < 0.5
