"""Runs in fp8, on CPUs that are told that they have it: near those in fp32, alike over layouts."""

import pytest

from groundup.core.errors import MachineError
from groundup.parallel import device
from groundup.train.stability.replay import agreement, open_replayer
from tests.parallel.ranks import train_on_ranks
from tests.poisoned import poisoned, reading
from tests.runs import losses, make_config, make_data, records_of, run

SETTINGS = ("precision=fp8", "optimizer.kind=sgd", "optimizer.lr=0.05", "clip_grad_norm=1")
LAYOUTS = {
    "dp2": ("layout.dp=2",),
    "dp2-zero3": ("layout.dp=2", "layout.zero=3"),
    "cp2": ("layout.cp=2",),
    "pp2": ("layout.pp=2",),
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("data"))


def run_with_fp8(config):
    """Runs as if this machine's CPU multiplied in fp8, which it does slowly."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device, "lacks", lambda name, device: "")
        return run(config)


def test_losses_are_near_those_in_fp32_and_not_the_same(data, tmp_path):
    expected = losses(run(make_config(data, tmp_path / "fp32", *SETTINGS, "precision=fp32")))
    found = losses(run_with_fp8(make_config(data, tmp_path / "fp8", *SETTINGS)))
    assert found != expected
    assert found == pytest.approx(expected, rel=0.01)


def test_layouts_agree(data, tmp_path):
    alone = losses(run_with_fp8(make_config(data, tmp_path / "alone", *SETTINGS)))
    configs = {
        name: make_config(data, tmp_path / name, *SETTINGS, *layout) for name, layout in LAYOUTS.items()
    }
    train_on_ranks(2, list(configs.values()), tmp_path, run_with_fp8)
    for name, config in configs.items():
        found = losses(records_of(config))
        # Context parallelism rounds each half of a row by its own largest number.
        first = 1e-3 if name == "cp2" else 1e-6
        assert found[1] == pytest.approx(alone[1], rel=first), name
        assert found == pytest.approx(alone, rel=2e-3), name


def test_a_run_goes_on_to_the_bit(data, tmp_path):
    whole = losses(run_with_fp8(make_config(data, tmp_path / "whole", *SETTINGS)))
    for steps in (3, 6):
        config = make_config(data, tmp_path / "half", *SETTINGS, f"num_steps={steps}", "schedule_steps=6")
        found = losses(run_with_fp8(config))
    assert {step: found[step] for step in (4, 5, 6)} == {step: whole[step] for step in (4, 5, 6)}


def test_a_step_dump_is_replayed_in_fp8(data, tmp_path):
    guard = ("spike_guard.kind=skip", "spike_guard.window=8", "spike_guard.warmup=6", "optimizer.lr=1e-2")
    settings = (*guard, "spike_guard.grad_norm_deviations=50", "spike_guard.step_dump=true")
    with reading(poisoned(100, 104)):  # of four samples a step: the 26th
        run_with_fp8(make_config(data, tmp_path / "run", "precision=fp8", "num_steps=27", *settings))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device, "lacks", lambda name, device: "")
        found = {}
        for name in ("fp8", "fp32"):
            replayer = open_replayer(tmp_path / "run/failures/step-26", device="cpu", precision=name)
            result = replayer.run()
            found[name] = agreement(result, replayer.dump, replayer.precision)
    assert found["fp8"] == "exactly"
    assert found["fp32"] != "exactly"


def test_a_cpu_has_no_fp8(data, tmp_path):
    config = make_config(data, tmp_path / "run", "precision=fp8")
    with pytest.raises(MachineError, match="CPUs do not multiply in fp8; GPUs do"):
        run(config)
    assert not (tmp_path / "run").exists()
