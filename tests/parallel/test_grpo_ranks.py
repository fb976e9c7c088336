"""GRPO on two ranks, which share out the completions, is GRPO in one process."""

import pytest

from tests.grpo import grpo_config, make_prompts, run_grpo, samples_of
from tests.parallel.ranks import train_on_ranks
from tests.runs import records_of

SETTINGS = ("stage.beta=0.1", "stage.updates=2", "stage.scale_rewards=batch", "num_steps=4")


LAYOUTS = {
    "dp2": ["layout.dp=2"],
    "zero3": ["layout.dp=2", "layout.zero=3"],
    "adapter": ["layout.dp=2", "layout.zero=2", "lora.rank=4"],
}


def test_two_ranks_are_one_process(tmp_path):
    folder = make_prompts(tmp_path)

    def config(name, *overrides):  # both ranks have a part of the one group
        settings = (*SETTINGS, "stage.group_size=8", "micro_batch_size=2", *overrides)
        return grpo_config(folder, tmp_path / name, *settings)

    alone = {"": config("alone"), "lora.rank=4": config("alone-adapter", "lora.rank=4")}
    expected = {setting: run_grpo(one) for setting, one in alone.items()}
    configs = [config(name, *layout) for name, layout in LAYOUTS.items()]
    train_on_ranks(2, configs, tmp_path, run_grpo)
    for run in configs:
        setting = "lora.rank=4" if run.lora.rank else ""
        found = [record for record in records_of(run) if record["kind"] == "train"]
        for key in ("loss", "reward", "reward_std", "completion_length", "kl", "clip_fraction", "grad_norm"):
            ours, theirs = ([record[key] for record in records] for records in (found, expected[setting]))
            assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-6), (run.run_dir.name, key)
        ours, theirs = (
            [(one["sample"], one["completion"], one["reward"]) for one in samples_of(of)]
            for of in (run, alone[setting])
        )
        assert ours == theirs
    assert expected[""][3]["clip_fraction"] > 0
