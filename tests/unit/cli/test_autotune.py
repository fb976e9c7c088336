"""What ``groundup autotune`` makes of what it measures."""

import dataclasses

import pytest

from groundup.cli.autotune import _search, _train
from groundup.core.config import resolve
from groundup.core.errors import TrainingError
from groundup.plan.autotune import Choice, Measured, search_space
from groundup.plan.devices import Devices
from groundup.train.config import TrainConfig
from tests.unit.plan.test_autotune import RUN


@dataclasses.dataclass
class Speeds:
    """Measures by a table of micro-batches: at first, and again in turns."""

    first: dict[int, float]
    later: dict[int, float]

    def measure(self, choice: Choice) -> Measured:
        speed = self.first.get(choice.micro_batch_size, 0.0)
        return Measured(choice, speed, memory=1 << 30, error="" if speed else "the GPU's memory is full")

    def measure_again(self, choice: Choice) -> Measured:
        return Measured(choice, self.later[choice.micro_batch_size])


def search(speeds: Speeds):
    run = resolve(TrainConfig, overrides=RUN).value
    devices = Devices(memory_gib=64, ranks=1, per_machine=8)
    space = search_space(run, devices, "fp32", compiles=False)
    return run, _search(space, speeds, run, divisions=8, quiet=False)


def test_the_quickest_is_compared_with_the_first_row_in_turns(capsys):
    run, found = search(Speeds({8: 100.0, 16: 150.0}, {8: 100.0, 16: 140.0}))
    assert found.best.choice.settings(run) == {"micro_batch_size": 16}
    assert found.ratios == [1.4, 1.4, 1.4]
    said = capsys.readouterr().out.splitlines()
    assert said[0].split() == ["100", "1.00", "1.0", "as", "configured"]
    assert "150   1.50    1.0  micro_batch_size=16" in "\n".join(said)
    assert any(line.endswith("micro_batch_size=32: the GPU's memory is full") for line in said)
    assert said[-1] == "Again, in 3 turns: 1.40 (1.40 to 1.40) times as quick as the first row."


def test_what_was_quick_by_chance_is_not_chosen():
    run, found = search(Speeds({8: 100.0, 16: 150.0}, {8: 100.0, 16: 90.0}))
    assert found.best.choice.settings(run) == {} and found.ratios == [0.9] * 3


def test_nothing_trains():
    with pytest.raises(TrainingError, match="the GPU's memory is full"):
        search(Speeds({}, {}))


def test_a_way_that_fails_says_why_in_a_line(tmp_path):
    file = tmp_path / "probe.yaml"
    file.write_text("run_dir: run\nnum_steps: none\n")
    said = _train(file)
    assert "\n" not in said and said.startswith("3 problems in the config: model is required")


def test_what_no_longer_trains_is_not_chosen():
    run, found = search(Speeds({8: 100.0, 16: 150.0}, {8: 100.0, 16: 0.0}))
    assert found.best.choice.settings(run) == {} and found.ratios == [0.0] * 3
