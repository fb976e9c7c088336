"""Runs on preferences: what they learn, log and keep, and how they go on."""

import json
import shutil

import numpy as np
import pytest
import torch

from groundup.checkpoint.native.model import open_native
from groundup.core.errors import ConfigError, DataError
from groundup.finetune import reference
from groundup.finetune.pair_loss import PairLoss
from tests.unit.finetune.preferences import config, train, write_base_and_pairs


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dpo")
    write_base_and_pairs(folder)
    return folder


def weights(run_dir):
    return {name: lazy.read() for name, lazy in open_native(run_dir).weights.items()}


@pytest.mark.parametrize("loss", ["sigmoid", "simpo"])
def test_pairs_held_out_are_told_apart_and_figures_recorded(folder, tmp_path, loss):
    overrides = (f"stage.loss={loss}", "stage.beta=0.5", "num_steps=15", "validation.interval=15")
    records = train(config(folder, tmp_path / "run", *overrides))
    steps = [record for record in records if record["kind"] == "train"]
    assert steps[-1]["loss"] < 0.7 * steps[0]["loss"]
    if loss == "sigmoid":  # the weights are still those of the reference
        assert steps[0]["loss"] == pytest.approx(np.log(2), rel=1e-5)
        assert steps[0]["reward_chosen"] == pytest.approx(0, abs=1e-4)
    assert (tmp_path / "run" / "reference").exists() == (loss == "sigmoid")
    (held_out,) = [record for record in records if record["kind"] == "validation"]
    assert held_out["num_tokens"] == 12  # pairs
    assert held_out["reward_accuracy"] == 1
    margin = held_out["reward_chosen"] - held_out["reward_rejected"]
    assert held_out["reward_margin"] == pytest.approx(margin, rel=1e-4)
    assert margin > 0


def curve(records):
    figures = ("loss", "grad_norm", "reward_margin", "log_prob_chosen")
    return {
        record["step"]: [record[name] for name in figures] for record in records if record["kind"] == "train"
    }


@pytest.mark.parametrize(("keeps_reference", "more"), [(True, ()), (False, ()), (False, ("lora.rank=2",))])
def test_a_killed_run_goes_on_to_the_same_bits(folder, tmp_path, keeps_reference, more):
    whole = curve(train(config(folder, tmp_path / "whole", *more)))
    assert whole[1][0] == pytest.approx(np.log(2), rel=1e-5)  # the reference is the model without adapters

    def kill(run):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(config(folder, tmp_path / "run", "sample.interval=4", *more), complete=kill)
    if not keeps_reference:  # they are those of the weights at the start, not of the present ones
        shutil.rmtree(tmp_path / "run" / "reference")
    assert curve(train(config(folder, tmp_path / "run", *more))) == whole
    expected, found = weights(tmp_path / "whole"), weights(tmp_path / "run")
    assert all(torch.equal(expected[name], found[name]) for name in expected)


def test_reference_log_probabilities_are_computed_once(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(reference, "_BLOCK", 4)
    computed, log_probs = [], reference._log_probs

    def counted(run, state, batch):
        computed.append(len(batch.tokens_BT))
        if sum(computed) == 9 and run.config.run_dir.name == "interrupted":
            raise KeyboardInterrupt
        return log_probs(run, state, batch)

    monkeypatch.setattr(reference, "_log_probs", counted)

    def one_step(name, *more):
        computed.clear()
        shared = f"stage.reference_dir={tmp_path / 'shared'}"
        settings = ("num_steps=1", "micro_batch_size=1", "global_batch_size=1", "data.split=100,0", *more)
        return curve(train(config(folder, tmp_path / name, shared, *settings)))

    with pytest.raises(KeyboardInterrupt):
        one_step("interrupted")
    (kept,) = (tmp_path / "shared").iterdir()
    assert sorted(path.name for path in kept.iterdir()) == ["000000.npy", "000001.npy"]
    expected = one_step("resumed")
    num_samples = expected and len(computed) + 8
    assert one_step("again") == expected
    assert computed == []
    one_step("other-beta", "stage.beta=0.2")
    assert computed == []
    one_step("other-length", "data.sequence_length=48")  # other rows
    assert sum(computed) >= num_samples
    (kept / "000001.npy").write_bytes((kept / "000000.npy").read_bytes()[:-8])
    with pytest.raises(DataError, match=r"000001\.npy: .*Remove it"):
        one_step("damaged")


def test_what_is_no_pair_is_counted_with_its_place(folder, tmp_path, caplog):
    good = {"prompt": "Ann has a ", "chosen": "dog.", "rejected": "cat."}
    bad = [
        {"prompt": "a"},
        {**good, "rejected": "dog."},
        {**good, "chosen": " "},
        {**good, "chosen": "w" * 99},
    ]
    lines = [json.dumps(one) for one in (good, *bad, good, good)] + ["nonsense"]
    path = tmp_path / "pairs.jsonl"
    path.write_text("\n".join(lines))
    settings = (f"data.path={path}", "data.split=100,0", "num_steps=1", "global_batch_size=2")
    with caplog.at_level("INFO", logger="groundup"):
        train(config(folder, tmp_path / "run", *settings))
    assert "3 pairs of" in caplog.text
    for line, reason in (
        (2, "no chosen (the keys are: prompt)"),
        (3, "identical answers"),
        (4, "empty answer (chosen)"),
        (5, "too long (108 tokens; at most 64 fit)"),
        (8, "not JSON"),
    ):
        assert f"{path}:{line}: left out: {reason}" in caplog.text
    path.write_text("\n".join(lines[1:5]))
    with pytest.raises(DataError, match="holds no pairs to learn from: 1 no chosen, 1 identical answers"):
        train(config(folder, tmp_path / "none", *settings))


def test_layouts_and_losses_that_do_not_fit_are_refused(folder, tmp_path):
    with pytest.raises(ConfigError, match=r"layout\.cp: .* cp parts among ranks"):
        config(folder, tmp_path / "run", "layout.cp=2")
    with pytest.raises(ConfigError, match="neither label_smoothing nor target_margin"):
        config(folder, tmp_path / "run", "stage.loss=ipo", "stage.label_smoothing=0.1")


def test_simpo_compares_log_probabilities_per_token_without_a_reference():
    simpo = PairLoss(loss="simpo", beta=2.0, target_margin=1.0)
    log_probs, lengths = torch.tensor([[-6.0, -12.0]]), torch.tensor([[3.0, 4.0]])
    rewards = simpo.rewards(log_probs, torch.full((1, 2), torch.nan), lengths)
    assert rewards.tolist() == [[-4.0, -6.0]]
    assert simpo.of_margins(rewards[:, 0] - rewards[:, 1]).item() == pytest.approx(np.log1p(np.exp(-1)))
