"""GRPO on two ranks, which share out the completions, is GRPO in one process."""

import pytest

from tests.grpo import grpo_config, make_prompts, run_grpo, samples_of
from tests.parallel.ranks import train_on_ranks
from tests.runs import records_of

SETTINGS = ("stage.beta=0.1", "stage.updates=2", "stage.scale_rewards=batch", "num_steps=4")


LORA = ("lora.rank=2", "optimizer.lr=0.03")


@pytest.mark.parametrize("more", [(), pytest.param(LORA, marks=pytest.mark.exhaustive)])
def test_two_ranks_are_one_process(tmp_path, more):
    folder = make_prompts(tmp_path)
    settings = (*SETTINGS, *more)
    alone = grpo_config(folder, tmp_path / "alone", *settings, "stage.group_size=8", "micro_batch_size=2")
    expected = run_grpo(alone)
    layouts = {"dp2": ["layout.dp=2"], "zero3": ["layout.dp=2", "layout.zero=3"]}
    configs = [  # both ranks have a part of the one group
        grpo_config(folder, tmp_path / name, *settings, "stage.group_size=8", "micro_batch_size=2", *layout)
        for name, layout in layouts.items()
    ]
    train_on_ranks(2, configs, tmp_path, run_grpo)
    for config in configs:
        found = [record for record in records_of(config) if record["kind"] == "train"]
        for key in ("loss", "reward", "reward_std", "completion_length", "kl", "clip_fraction", "grad_norm"):
            ours, theirs = ([record[key] for record in records] for records in (found, expected))
            assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-6), key
        texts = [(one["sample"], one["completion"], one["reward"]) for one in samples_of(config)]
        assert texts == [(one["sample"], one["completion"], one["reward"]) for one in samples_of(alone)]
    assert expected[3]["clip_fraction"] > 0
