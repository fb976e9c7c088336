import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch.nn.functional import cross_entropy

from groundup.core.errors import ConfigError, DataError
from groundup.eval import perplexity as module
from groundup.eval import scored_rows
from groundup.eval.perplexity import perplexity, token_byte_lengths, unigram_entropy
from groundup.eval.token_data import open_tokens
from groundup.tokens.dataset.indexed_writer import IndexedWriter
from groundup.tokens.sampling.collate import Evaluation
from groundup.tokens.tokenize import build_tokens
from tests.instances import MODELS
from tests.tiny import tiny_model, tiny_tokenizer


def random_tokens(count: int) -> npt.NDArray[np.uint16]:
    return np.random.default_rng(0).integers(0, 300, count).astype(np.uint16)


@pytest.mark.parametrize("name", MODELS)
def test_equals_the_plain_definition_at_any_batch_size(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = tiny_model(name)
    tokens = random_tokens(1000)
    model: Any = loaded.model
    expected = 0.0
    with torch.no_grad():
        for begin in range(0, 999, 64):
            window = torch.from_numpy(tokens[begin : begin + 65].astype(np.int64))
            logits = model.head(model(window[None, :-1]))[0, :, :300].double()
            expected += cross_entropy(logits, window[1:], reduction="sum").item()
    one = perplexity(loaded.model, loaded.config, tokens, batch_size=1)
    assert one.num_tokens == 999
    assert one.total_loss == pytest.approx(expected, rel=1e-5)
    many = perplexity(loaded.model, loaded.config, tokens, batch_size=64)
    assert many.num_tokens == 999
    assert many.loss == pytest.approx(one.loss, abs=1e-5)
    monkeypatch.setattr(scored_rows, "_LOGITS_BYTES", 7 * 4 * 300)  # chunks of seven tokens
    chunked = perplexity(loaded.model, loaded.config, tokens, batch_size=64)
    assert chunked.loss == pytest.approx(one.loss, abs=1e-5)


def test_a_zero_model_has_the_loss_of_the_true_vocabulary() -> None:
    loaded = tiny_model("gpt2")
    with torch.no_grad():
        for parameter in loaded.model.parameters():
            parameter.zero_()
    found = perplexity(loaded.model, loaded.config, random_tokens(200))
    assert found.loss == pytest.approx(math.log(300), abs=1e-6)
    assert found.perplexity == pytest.approx(300, rel=1e-5)


def test_windows_may_be_shorter_and_tokens_fewer() -> None:
    loaded = tiny_model("llama")
    seen: list[int] = []
    found = perplexity(
        loaded.model,
        loaded.config,
        random_tokens(500),
        sequence_length=10,
        batch_size=3,
        max_tokens=47,
        on_progress=seen.append,
    )
    assert found.num_tokens == sum(seen) == 47
    assert seen == [30, 17]  # whole windows, then the last of them with the rest


def test_bits_per_byte_counts_the_predicted_text() -> None:
    loaded = tiny_model("gpt2")
    tokenizer = loaded.tokenizer
    text = "the tide, é and 漢"
    ids = np.array([*tokenizer.encode("x"), *tokenizer.encode(text), tokenizer.end_of_document_id])
    lengths = token_byte_lengths(tokenizer)
    assert lengths[tokenizer.end_of_document_id] == 0
    found = perplexity(loaded.model, loaded.config, ids, byte_lengths=lengths)
    assert found.num_bytes == len(text.encode())
    assert found.bits_per_byte == pytest.approx(found.total_loss / math.log(2) / len(text.encode()))


def test_evaluation_of_a_hopeless_model() -> None:
    found = Evaluation(total_loss=1e6, num_tokens=10, num_bytes=0)
    assert found.perplexity == math.inf
    assert math.isnan(found.bits_per_byte)


def test_the_model_is_left_in_its_mode() -> None:
    loaded = tiny_model("gpt2")
    loaded.model.train()
    perplexity(loaded.model, loaded.config, random_tokens(50))
    assert loaded.model.training


def test_bad_tokens_are_refused() -> None:
    loaded = tiny_model("gpt2")
    with pytest.raises(DataError, match="needs at least two"):
        perplexity(loaded.model, loaded.config, random_tokens(1))
    tokens = random_tokens(300)
    tokens[100] = 300
    with pytest.raises(DataError, match="token 300 at position 100"):
        perplexity(loaded.model, loaded.config, tokens, sequence_length=16)
    with pytest.raises(DataError, match="context holds 64"):
        perplexity(loaded.model, loaded.config, random_tokens(300), sequence_length=65)


def test_unigram_entropy(monkeypatch: pytest.MonkeyPatch) -> None:
    assert unigram_entropy(np.array([1, 2, 3, 4] * 5)) == pytest.approx(math.log(4))
    assert unigram_entropy(np.array([7, 7, 7])) == 0
    tokens = random_tokens(1000)
    whole = unigram_entropy(tokens)
    monkeypatch.setattr(module, "_CHUNK", 13)
    assert unigram_entropy(tokens) == pytest.approx(whole)
    with pytest.raises(DataError, match="no tokens"):
        unigram_entropy(np.array([], dtype=np.uint16))


def test_texts_and_datasets_give_the_same_tokens(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer()
    source = tmp_path / "texts.jsonl"
    source.write_text("".join(f'{{"text": "the text of number {i}"}}\n' for i in range(10)) + "broken\n")
    on_the_fly = open_tokens([source], tokenizer)[:]
    expected = []
    for i in range(10):
        expected += [*tokenizer.encode(f"the text of number {i}"), tokenizer.end_of_document_id]
    assert on_the_fly.tolist() == expected
    report = build_tokens([source], tmp_path / "built", tokenizer, workers=1)
    prefix = report.prefixes["text"]
    assert open_tokens([prefix], tokenizer)[:].tolist() == expected
    assert open_tokens([prefix.with_name(prefix.name + ".bin")], tokenizer)[:].tolist() == expected
    parts = [
        open_tokens([prefix], tokenizer, split="80,10,10", split_name=name)[:].tolist()
        for name in ("train", "validation", "test")
    ]
    assert [*parts[0], *parts[1], *parts[2]] == expected
    assert parts[0] == expected[: len(parts[0])]
    assert parts[1][-1] == tokenizer.end_of_document_id
    with pytest.raises(DataError, match=r"test split \(100,0,0\) has 0 tokens"):
        open_tokens([prefix], tokenizer, split="100,0,0", split_name="test")
    with pytest.raises(ConfigError, match="texts have no test split"):
        open_tokens([source], tokenizer, split_name="test")
    with pytest.raises(DataError, match="no such token files"):
        open_tokens([tmp_path / "absent.bin"], tokenizer)


def test_takes_what_a_run_takes(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer()
    end = tokenizer.end_of_document_id
    documents = [[end, *range(n, n + 5)] for n in range(30)]
    stream = [token for document in documents for token in document]

    def take(*names: str, **options: Any) -> list[int]:
        tokens = open_tokens([tmp_path / name for name in names], tokenizer, **options)
        assert len(tokens) == len(tokens[:])
        assert tokens[3:9].tolist() == tokens[:].tolist()[3:9]
        return tokens[:].tolist()

    (tmp_path / "shards").mkdir()
    for number, begin in enumerate((0, 50, 100, 150)):  # documents go on in the next shard
        np.save(tmp_path / "shards" / f"s_{number}.npy", np.array(stream[begin : begin + 50], np.uint16))
    assert take("shards") == take("shards/*.npy") == stream
    assert take("shards/s_1.npy") == stream[50:100]
    splits = [take("shards", split="20,9,1", split_name=name) for name in ("train", "validation", "test")]
    assert [len(split) for split in splits] == [120, 54, 6]
    assert [*splits[0], *splits[1], *splits[2]] == stream

    (tmp_path / "named").mkdir()
    for name, at in (("train_0", 0), ("train_1", 60), ("val_0", 120)):
        np.save(tmp_path / "named" / f"x_{name}.npy", np.array(stream[at : at + 60], np.uint16))
    assert take("named") == stream
    assert take("named", split_name="train") == stream[:120]
    assert take("named", split_name="validation") == stream[120:]
    with pytest.raises(DataError, match="named: none of its files is named as one of test"):
        take("named", split_name="test")

    (tmp_path / "parts").mkdir()
    for number in range(3):
        with IndexedWriter(tmp_path / "parts" / f"part_{number}", vocab_size=300) as writer:
            writer.add(np.array(stream[60 * number : 60 * number + 60]), np.full(10, 6))
    assert take("parts") == stream
    assert take("parts", split="20,9,1", split_name="validation") == splits[1]
    with pytest.raises(DataError, match="of which one path is taken"):
        take("parts/part_0", "parts/part_1")


def test_data_of_another_tokenizer_is_refused(tmp_path: Path) -> None:
    from groundup.tokens.tokenizer.bpe import ByteLevelBpe, ByteLevelTokenizer

    tokenizer = tiny_tokenizer()
    source = tmp_path / "texts.txt"
    source.write_text("the text")
    prefix = build_tokens([source], tmp_path / "built", tokenizer, workers=1).prefixes["text"]
    bpe = tokenizer.bpe
    fewer = ByteLevelBpe(vocab=bpe.vocab, merges=bpe.merges[:-1], specials=bpe.specials)
    other = ByteLevelTokenizer(fewer, end_of_document="<|endoftext|>")
    with pytest.raises(DataError, match=f"{tokenizer.fingerprint}.*{other.fingerprint}"):
        open_tokens([prefix], other)
