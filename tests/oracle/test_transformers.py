"""Our models, exports and generation against ``transformers``, an independent implementation."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import linear

from groundup.checkpoint.huggingface.weights import read_huggingface, write_huggingface
from groundup.checkpoint.lazy import LoadedModel
from groundup.inference.engine import Engine
from groundup.inference.sampler import Sampling, filtered, penalised
from groundup.tokens.tokenizer.load_tokenizer import load_tokenizer
from tests.instances import MODELS
from tests.tiny import END, tiny_model

transformers = pytest.importorskip("transformers")

TEXTS = [
    "the tide, the ebb and the eel",
    "def f(x):\n    return x  # é漢字 \t🙂\r\n",
    f"before{END}after",
    "",
    "  two  spaces and 1234567 don't",
]


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    yield


def our_logits(loaded: LoadedModel, tokens_BT: torch.Tensor) -> torch.Tensor:
    model: Any = loaded.model
    with torch.inference_mode():
        return linear(model(tokens_BT), model.head.weight[: loaded.config.vocab_size])


def their_logits(model: Any, tokens_BT: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        logits: torch.Tensor = model(tokens_BT).logits
    return logits


def their_greedy(model: Any, prompt: list[int], count: int) -> list[int]:
    tokens_BT = torch.tensor([prompt])
    found = model.generate(
        tokens_BT,
        attention_mask=torch.ones_like(tokens_BT),
        do_sample=False,
        max_new_tokens=count,
        eos_token_id=-1,
        pad_token_id=0,
    )
    ids: list[int] = found[0, len(prompt) :].tolist()
    return ids


@pytest.mark.parametrize("name", MODELS)
def test_the_export_is_the_same_model(name: str, tmp_path: Path) -> None:
    ours = tiny_model(name)
    write_huggingface(ours, tmp_path / "out")
    theirs, report = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "out", output_loading_info=True
    )
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    theirs.eval()
    assert theirs.config.vocab_size == 300
    assert theirs.dtype == torch.float32
    tokens_BT = torch.randint(300, (3, 64), generator=torch.Generator().manual_seed(0))
    expected = their_logits(theirs, tokens_BT)
    assert expected.std() > 0.3, "logits that are all alike would prove nothing"
    assert (our_logits(ours, tokens_BT) - expected).abs().max() <= 1e-5
    engine = Engine(ours)
    prompts = [[5, 9, 200], [7], [299, 1, 2, 3, 4, 5], [5, 9, 200] * 6]
    together = engine.generate(prompts, sampling=Sampling(temperature=0), max_new_tokens=40)
    for prompt, found in zip(prompts, together, strict=True):
        assert list(found.ids) == their_greedy(theirs, prompt, 40)


@pytest.mark.parametrize("name", MODELS)
def test_what_they_save_is_the_same_model_here(name: str, tmp_path: Path) -> None:
    ours = tiny_model(name)
    write_huggingface(ours, tmp_path / "out")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    theirs.save_pretrained(tmp_path / "theirs", max_shard_size="40KB")
    assert len(list((tmp_path / "theirs").glob("*.safetensors"))) > 1
    ours.tokenizer.save(tmp_path / "theirs")
    back = read_huggingface(tmp_path / "theirs")
    tokens_BT = torch.randint(300, (2, 64), generator=torch.Generator().manual_seed(1))
    assert (our_logits(back, tokens_BT) - their_logits(theirs, tokens_BT)).abs().max() <= 1e-5


def test_the_exported_tokenizer_encodes_equally(tmp_path: Path) -> None:
    ours = tiny_model("gpt2")
    write_huggingface(ours, tmp_path / "out")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    for text in TEXTS:
        plain = theirs(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        assert ours.tokenizer.encode(text) == plain
        assert theirs.decode(plain) == text
    assert theirs(TEXTS[0])["input_ids"] == ours.tokenizer.encode(TEXTS[0])
    assert theirs.eos_token_id == ours.tokenizer.end_of_document_id == 299


def test_the_gpt2_tokenizer_encodes_equally(tmp_path: Path, shared_data: Path) -> None:
    tokenizer = load_tokenizer(shared_data / "gpt2")
    tokenizer.save(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in TEXTS:
        assert tokenizer.encode(text) == theirs(text, split_special_tokens=True)["input_ids"]


def test_a_real_llama_is_the_same_model(tmp_path: Path, shared_data: Path) -> None:
    source = shared_data / "models" / "stories260K"
    ours = read_huggingface(source)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(source).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    [found] = Engine(ours).generate([[1]], sampling=Sampling(temperature=0), max_new_tokens=200)
    assert list(found.ids) == their_greedy(theirs, [1], 200)
    text = "Once upon a time, there was a little girl named Lily."
    assert found.text.strip().startswith(text)
    ids = [*ours.bos_ids, *ours.tokenizer.encode(text)]
    assert ids == tokenizer(text)["input_ids"]
    tokens_BT = torch.tensor([found.ids])
    assert (our_logits(ours, tokens_BT) - their_logits(theirs, tokens_BT)).abs().max() <= 1e-5
    write_huggingface(ours, tmp_path / "out")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    assert torch.equal(their_logits(again, tokens_BT), their_logits(theirs, tokens_BT))
    retold = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert retold(text)["input_ids"] == ids


def test_filters_leave_the_same_tokens() -> None:
    generator = torch.Generator().manual_seed(0)
    logits_BV = 3 * torch.randn(40, 200, generator=generator)
    context_BT = torch.randint(200, (40, 30), generator=generator)
    sampling = Sampling(temperature=0.7, top_k=50, top_p=0.9, min_p=0.05, repetition_penalty=1.4)
    expected = logits_BV
    for theirs in (
        transformers.RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty),
        transformers.TemperatureLogitsWarper(sampling.temperature),
        transformers.TopKLogitsWarper(sampling.top_k),
        transformers.TopPLogitsWarper(sampling.top_p),
        transformers.MinPLogitsWarper(sampling.min_p),
    ):
        before = expected.isfinite().sum()
        expected = theirs(context_BT, expected)
        assert expected.isfinite().sum() < before or "Top" not in type(theirs).__name__, (
            "it would prove nothing"
        )
    penalised_BV = penalised(logits_BV, sampling.repetition_penalty, context_BT.tolist())
    found = filtered(penalised_BV / sampling.temperature, sampling)
    torch.testing.assert_close(found, expected)
