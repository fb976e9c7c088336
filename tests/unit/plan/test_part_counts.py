"""Counts of parameters, against published ones and the models themselves."""

import dataclasses

import pytest

from groundup.core.vocabulary import padded_vocab_size
from groundup.models import build_model
from groundup.models.count import num_parameters
from groundup.models.gpt2 import GPT2Config
from groundup.plan.part_counts import count_by_part, count_on_rank, held_of
from groundup.train.adamw import AdamW
from tests.instances import MODELS

MEDIUM = GPT2Config(
    vocab_size=50304, max_sequence_length=1024, num_layers=24, hidden_size=1024, num_heads=16, ffn_size=4096
)


def test_345m_has_the_published_number():
    assert sum(count_by_part(MEDIUM).values()) == 354_871_296
    assert sum(count_by_part(dataclasses.replace(MEDIUM, vocab_size=50257)).values()) == 354_871_296


def test_each_of_two_tensor_ranks_has_the_published_number():
    assert count_on_rank(dataclasses.replace(MEDIUM, vocab_size=50432), 2) == 178_100_224


@pytest.mark.parametrize("name", MODELS)
def test_parts_add_up_to_the_model(name):
    model = MODELS[name]
    whole = sum(value.numel() for value in build_model(model, device="meta").parameters())
    assert sum(count_by_part(model).values()) == whole == count_on_rank(model, 1)
    held = [held_of(where, model, AdamW(), 1, 1) for where in ("embed", "layer", "head")]
    assert held[0].weights + model.num_layers * held[1].weights + held[2].weights == whole
    assert [one.state_bytes for one in held] == [8 * one.weights for one in held]
    assert num_parameters(dataclasses.replace(model, vocab_size=padded_vocab_size(model.vocab_size))) == whole


def test_key_value_heads_that_ranks_cannot_divide_are_whole():
    model = MODELS["llama-grouped-tied"]  # two of them
    layer = {tp: held_of("layer", model, AdamW(), tp, 1) for tp in (2, 4)}
    keys_and_values = 2 * model.num_kv_heads * model.head_dim * model.hidden_size
    cut = layer[2].matrices - keys_and_values // 2
    assert layer[4].matrices == cut // 2 + keys_and_values
