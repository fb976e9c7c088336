"""A real model learns a preference from pairs of its own texts, and it shows in what it writes."""

import json

import pytest

from groundup.checkpoint.formats import open_model
from groundup.cli.completion import prompt_ids
from groundup.inference.engine import Engine
from groundup.inference.sampler import Sampling
from tests.unit.finetune.preferences import config, train

NAMES = {
    "girl": ("Lily", "Mia", "Sue", "Amy", "Anna", "Jane", "Sara", "Lucy", "Ella", "Emma"),
    "boy": ("Tom", "Tim", "Ben", "Max", "Sam", "Jack", "Bob", "Fred", "Leo", "John"),
}
PLACES = ("park", "garden", "forest", "house", "shop", "beach", "town", "lake", "river", "zoo")


def prompts(places):
    return [
        f"One day, a {who} named {name} went to the {place}."
        for place in places
        for who, names in NAMES.items()
        for name in names
    ]


def continuations(model, questions, *, seed):
    loaded = open_model(model, device="cpu")
    found = Engine(loaded).generate(
        [prompt_ids(loaded, question) for question in questions],
        sampling=Sampling(),
        max_new_tokens=40,
        seed=seed,
        stop_ids=loaded.stop_ids,
    )
    return [one.text for one in found]


def sentences(text):
    """What is preferred: many short ones."""
    return sum(text.count(mark) for mark in ".!?")


@pytest.mark.example
def test_a_model_learns_to_write_the_short_sentences_that_are_preferred(shared_data, tmp_path):
    base = shared_data / "models" / "stories260K"
    learned, held_out = PLACES[:8], PLACES[8:]
    with (tmp_path / "pairs.jsonl").open("w") as file:
        draws = [continuations(base, prompts(learned), seed=1000 * draw) for draw in range(4)]
        for prompt, *texts in zip(prompts(learned), *draws, strict=True):
            worst, bad, good, best = sorted(texts, key=sentences)
            for chosen, rejected in ((best, worst), (good, bad)):
                if sentences(chosen) > sentences(rejected):
                    file.write(json.dumps({"prompt": prompt, "chosen": chosen, "rejected": rejected}) + "\n")
    settings = (
        f"start.path={base}",
        "data.sequence_length=96",
        "data.split=85,15",
        "num_steps=60",
        "micro_batch_size=4",
        "global_batch_size=8",
        "optimizer.lr=1e-4",
        "validation.interval=30",
        "log.interval=10",
    )
    records = train(config(tmp_path, tmp_path / "run", *settings))
    held_out_pairs = [record for record in records if record["kind"] == "validation"]
    assert held_out_pairs[-1]["reward_accuracy"] >= 0.6
    assert held_out_pairs[-1]["loss"] < 0.65  # ln 2 at the start
    before, after = (
        sum(map(sentences, continuations(model, 2 * prompts(held_out), seed=7))) / (4 * 20)
        for model in (base, tmp_path / "run")
    )
    num_pairs = len((tmp_path / "pairs.jsonl").read_text().splitlines())
    accuracy = held_out_pairs[-1]["reward_accuracy"]
    print(f"{num_pairs} pairs, told apart {accuracy:.0%}; sentences {before:.2f} -> {after:.2f}")
    assert after > 1.4 * before
