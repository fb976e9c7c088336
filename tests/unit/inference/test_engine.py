import dataclasses
import weakref
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch.nn.functional import linear

from groundup.checkpoint.huggingface.weights import read_huggingface
from groundup.checkpoint.lazy import LoadedModel, as_lazy, load
from groundup.core.errors import DataError
from groundup.inference.engine import Engine
from groundup.inference.packed_linear import can_pack
from groundup.inference.sampler import Sampling
from groundup.inference.sequence import Request
from groundup.models import WeightDtypes
from tests.instances import MODELS
from tests.tiny import tiny_model

GREEDY = Sampling(temperature=0)
PROMPTS = [[5, 9, 200], [7], [299, 1, 2, 3, 4, 5], [8], [100, 250, 3]]


def greedy_without_cache(loaded: LoadedModel, prompt: list[int], count: int) -> list[int]:
    ids = list(prompt)
    model: Any = loaded.model
    with torch.inference_mode():
        for _ in range(count):
            hidden = model(torch.tensor([ids]))[0, -1]
            ids.append(int(linear(hidden, model.head.weight[: loaded.config.vocab_size]).argmax()))
    return ids[len(prompt) :]


@pytest.mark.parametrize("name", MODELS)
def test_greedy_equals_generation_without_cache(name: str) -> None:
    loaded = tiny_model(name)
    found = Engine(loaded).generate(PROMPTS, sampling=GREEDY, max_new_tokens=20)
    assert [list(g.ids) for g in found] == [greedy_without_cache(loaded, p, 20) for p in PROMPTS]
    assert len({g.ids for g in found}) > 1, "the models would prove nothing"


@pytest.mark.parametrize("name", MODELS)
def test_a_prompt_gives_in_a_batch_what_it_gives_alone(name: str) -> None:
    engine = Engine(tiny_model(name), max_batch_size=3)
    prompts = PROMPTS + [[7]] * 5
    settings: dict[str, Any] = {"sampling": Sampling(temperature=1.5), "max_new_tokens": 16}
    stop_ids = set(range(0, 300, 12))  # so that rows leave the batch at different steps
    together = engine.generate(prompts, seed=3, stop_ids=stop_ids, **settings)
    alone = [
        engine.generate([prompt], seed=3 + i, stop_ids=stop_ids, **settings)[0]
        for i, prompt in enumerate(prompts)
    ]
    assert together == alone
    assert len({len(g.ids) for g in together}) > 2
    assert {g.finished for g in together} == {"stop", "length"}
    assert not any(number in stop_ids for g in together for number in g.ids)
    assert all((g.stop_id in stop_ids) == (g.finished == "stop") for g in together)


def test_padded_ids_never_come_out() -> None:
    loaded = tiny_model("gpt2-erf-untied-biasless")
    with torch.no_grad():
        loaded.model.head.weight[300:] = 100 * loaded.model.head.weight[:84]  # type: ignore[index, union-attr]
    engine = Engine(loaded)
    for sampling in (GREEDY, Sampling(temperature=5.0)):
        found = engine.generate([[1]] * 40, sampling=sampling, max_new_tokens=50)
        assert max(number for g in found for number in g.ids) < 300


def test_the_context_is_used_to_its_last_token() -> None:
    loaded = tiny_model("gpt2")
    engine = Engine(loaded)
    length = loaded.config.max_sequence_length
    prompt = [1] * (length - 3)
    [found] = engine.generate([prompt], sampling=GREEDY, max_new_tokens=100)
    assert (len(found.ids), found.finished) == (4, "context")
    assert list(found.ids) == greedy_without_cache(loaded, prompt, 4)
    [found] = engine.generate([prompt], sampling=GREEDY, max_new_tokens=4)
    assert (len(found.ids), found.finished) == (4, "length")
    [found] = engine.generate([[1] * length], sampling=GREEDY, max_new_tokens=9)
    assert (len(found.ids), found.finished) == (1, "context")


def test_bad_prompts_are_refused() -> None:
    engine = Engine(tiny_model("llama"))
    for prompt, message in (
        ([], "the prompt is empty.*299"),
        ([1] * 65, "has 65 tokens, the model's context holds 64"),
        ([1, 300], "token 300 at position 1"),
        ([-1], "token -1 at position 0"),
    ):
        with pytest.raises(DataError, match=message):
            engine.generate([[1], prompt], sampling=GREEDY, max_new_tokens=4)
        with pytest.raises(DataError, match=message):
            engine.stream(Request(prompt=prompt, sampling=GREEDY, max_new_tokens=4))


def test_the_stream_is_the_text_in_whole_characters() -> None:
    engine = Engine(tiny_model("llama-grouped-tied"))
    settings: dict[str, Any] = {"sampling": Sampling(temperature=3.0), "max_new_tokens": 40, "seed": 1}
    [whole] = engine.generate([[65]], **settings)
    pieces = list(engine.stream(Request(prompt=[65], **settings)))
    assert "".join(piece.text for piece in pieces) == whole.text
    assert [number for piece in pieces for number in piece.ids] == list(whole.ids)
    assert [piece.finished for piece in pieces if piece.finished] == [whole.finished]
    assert pieces[-1].finished == whole.finished


def test_a_character_of_several_tokens_comes_in_one_piece() -> None:
    loaded = tiny_model("gpt2")
    wanted = loaded.tokenizer.encode("aé漢")

    class Scripted(torch.nn.Module):
        """Predicts the next id of the script, whatever it reads."""

        def __init__(self) -> None:
            super().__init__()
            self.head = torch.nn.Linear(384, 384, bias=False)
            torch.nn.init.eye_(self.head.weight)
            self.position = 0

        def forward(self, tokens_BT: torch.Tensor, **_: Any) -> torch.Tensor:
            self.position += 1
            one_hot = torch.nn.functional.one_hot(torch.tensor([[wanted[self.position - 1]]]), 384)
            return one_hot.float()

    engine = Engine(dataclasses.replace(loaded, model=Scripted()))
    pieces = list(engine.stream(Request(prompt=[1], sampling=GREEDY, max_new_tokens=len(wanted))))
    assert [piece.text for piece in pieces] == ["a", "", "é", "", "", "漢"]


def test_a_model_in_training_is_back_in_training_afterwards() -> None:
    loaded = tiny_model("gpt2")
    config = dataclasses.replace(loaded.config, dropout=0.5)
    model = type(loaded.model)(config)  # type: ignore[call-arg, arg-type]
    model.load_state_dict(loaded.model.state_dict())
    live = dataclasses.replace(loaded, model=model.train())
    assert live.model.training
    found = Engine(live).generate([[5]], sampling=GREEDY, max_new_tokens=8)
    assert found == Engine(loaded).generate([[5]], sampling=GREEDY, max_new_tokens=8)
    assert live.model.training


def test_another_dtype_leaves_the_model_as_it_is() -> None:
    loaded = tiny_model("llama")
    engine = Engine(loaded, dtype=torch.bfloat16)
    [found] = engine.generate([[5]], sampling=GREEDY, max_new_tokens=4)
    assert len(found.ids) == 4
    assert next(loaded.model.parameters()).dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_a_model_of_its_own_is_not_kept_twice(name: str, dtype: torch.dtype) -> None:
    kept = tiny_model(name)
    own = load(as_lazy(kept), device="cpu", dtypes=WeightDtypes(default=dtype))
    weight = weakref.ref(cast(Any, own.model).layers["0"].mlp.w1.weight)
    settings: dict[str, Any] = {"sampling": GREEDY, "max_new_tokens": 20}
    expected = Engine(own, dtype=dtype).generate(PROMPTS, **settings)
    assert expected == Engine(kept, dtype=dtype).generate(PROMPTS, **settings)
    assert weight() is not None, "others may use the model"
    engine = Engine(own, dtype=dtype, owns_model=True)
    assert engine.generate(PROMPTS, **settings) == expected
    assert (weight() is None) == can_pack(torch.device("cpu"), dtype)


def test_a_linear_layer_of_another_kind_is_used_as_it_is() -> None:
    class Doubled(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(x)

    loaded, plain = tiny_model("llama"), tiny_model("llama")
    cast(Any, loaded.model).layers["0"].attention.wv.__class__ = Doubled
    found = Engine(loaded).generate(PROMPTS, sampling=GREEDY, max_new_tokens=20)
    assert [list(g.ids) for g in found] == [greedy_without_cache(loaded, p, 20) for p in PROMPTS]
    assert found != Engine(plain).generate(PROMPTS, sampling=GREEDY, max_new_tokens=20)


def test_a_real_model_tells_its_story(shared_data: Path) -> None:
    loaded = read_huggingface(shared_data / "models" / "stories260K")
    assert loaded.bos_ids == (1,)
    [found] = Engine(loaded).generate([[1]], sampling=GREEDY, max_new_tokens=40)
    assert found.text.startswith(" Once upon a time, there was a little girl named Lily.")
