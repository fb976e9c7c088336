"""The choice of threads, on a machine whose clock is ours."""

import dataclasses
import logging

import pytest
import torch

from groundup.core.log import also_to_file
from groundup.parallel.mesh import ParallelMesh
from groundup.train import cpu
from groundup.train.config import TrainConfig
from groundup.train.cpu import Threads, counts_to_try
from tests.runs import make_config, make_data, run


class Machine:
    """Steps take the seconds that are set for their number of threads."""

    def __init__(self, counts, seconds):
        self.now, self.seconds, self.count = 0.0, seconds, counts[0]
        self.used = []
        self.threads = Threads(counts, set_count=self.set_count, clock=lambda: self.now)

    def set_count(self, count):
        self.count = count

    def train(self, num_steps, num_samples=4):
        self.used = []
        for _ in range(num_steps):
            with self.threads.step(num_samples):
                self.used.append(self.count)
                self.now += self.seconds[self.count] * num_samples / 4
        return self.used


@pytest.fixture
def told(tmp_path):
    """What was logged so far."""
    level, path = logging.getLogger("groundup").level, tmp_path / "log"
    logging.getLogger("groundup").setLevel(logging.INFO)
    with also_to_file(path):
        yield lambda: path.read_text()
    logging.getLogger("groundup").setLevel(level)


@pytest.mark.parametrize(
    ("seconds", "best"),
    [
        ({2: 0.02, 1: 0.03}, 2),
        ({2: 0.03, 1: 0.02}, 1),
        ({2: 0.0201, 1: 0.02}, 2),
        ({8: 0.1, 4: 0.08, 2: 0.05, 1: 0.07}, 2),
        ({8: 0.001, 4: 0.002, 2: 0.002, 1: 0.001}, 8),
    ],
)
def test_the_quickest_number_is_found_and_kept(seconds, best, told):
    machine = Machine(tuple(seconds), seconds)
    with machine.threads:
        machine.train(400)
        assert not machine.threads.is_trying
        assert set(machine.train(2000)) == {best}
        assert machine.count == best
    assert machine.count == max(seconds)  # as it was
    with machine.threads:
        assert machine.count == best
    assert told().count("threads: a step takes") == 1
    assert f"{best} from here on" in told()


def test_a_collapse_is_noticed_told_and_over_when_it_is_over(told):
    machine = Machine((2, 1), {2: 0.02, 1: 0.03})
    with machine.threads:
        machine.train(1500)
        assert machine.count == 2
        machine.seconds = {2: 0.4, 1: 0.05}  # others take the cores
        machine.train(200)
        assert machine.count == 1
        assert "steps take 20.0 times as long as before" in told()
        assert "400 ms with 2, 50 ms with 1; 1 from here on" in told()
        used = machine.train(1000)
        assert used.count(2) == 0
        machine.seconds = {2: 0.02, 1: 0.03}
        machine.train(1500)
        assert machine.count == 2
        assert "steps take 1.7 times shorter than before" in told()


def test_slowness_that_no_choice_mends_is_told_too(told):
    machine = Machine((2, 1), {2: 0.02, 1: 0.03})
    with machine.threads:
        machine.train(1500)
        machine.seconds = {2: 0.04, 1: 0.06}
        machine.train(500)
    assert "steps take 2.0 times as long as before" in told()
    assert "2 from here on" in told().splitlines()[-1]


def test_restless_speeds_do_not_mean_constant_trials():
    machine = Machine((2, 1), {2: 0.02, 1: 0.04})
    with machine.threads:
        lost = 0
        for number in range(40):
            machine.seconds = {2: 0.02 + 0.02 * (number % 2), 1: 0.04 + 0.04 * (number % 2)}
            lost += machine.train(300).count(1)
    assert lost < 0.05 * 40 * 300


def test_steps_of_many_seconds_are_not_tried():
    machine = Machine((2, 1), {2: 9.0, 1: 1.0})
    with machine.threads:
        assert set(machine.train(20)) == {2}


def test_larger_batches_are_no_collapse():
    machine = Machine((2, 1), {2: 0.02, 1: 0.03})
    with machine.threads:
        machine.train(1500)
        assert set(machine.train(1500, num_samples=16)) == {2}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("data"))


def test_what_forbids_a_choice(data, tmp_path):
    config = dataclasses.replace(make_config(data, tmp_path), deterministic=False)
    mesh = ParallelMesh(rank=0, size=1, layout=config.layout, device=torch.device("cpu"), device_mesh=None)

    def counts(
        config: TrainConfig = config, mesh: ParallelMesh = mesh, **environment: str
    ) -> tuple[int, ...]:
        return counts_to_try(config, mesh, present=12, environment=environment)

    assert counts() == (12, 6, 3, 1)
    assert counts(OMP_NUM_THREADS="12") == (12,)
    assert counts(MKL_NUM_THREADS="12") == (12,)
    for setting in ({"deterministic": True}, {"compile": True}, {"threads": 12}):
        assert counts(dataclasses.replace(config, **setting)) == (12,)
    assert counts(mesh=dataclasses.replace(mesh, size=2)) == (12,)
    assert counts(mesh=dataclasses.replace(mesh, device=torch.device("cuda"))) == (12,)


@pytest.fixture
def two_threads(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_a_run_chooses_and_a_deterministic_one_does_not(data, tmp_path, two_threads, told, monkeypatch):
    monkeypatch.setattr(cpu, "_LONGEST_STEP", 1e9)  # however busy the machine is
    for deterministic in (True, False):
        config = make_config(data, tmp_path / str(deterministic), "num_steps=3000", "log.interval=1000")
        stop = dataclasses.replace(config.sample, interval=1)
        counts = set()

        def complete(run_, counts=counts):
            counts.add(torch.get_num_threads())
            if "threads: a step takes" in told() or run_.state.step == 30:
                raise KeyboardInterrupt
            return [""]

        if not deterministic:
            config = dataclasses.replace(
                config, checkpoint=dataclasses.replace(config.checkpoint, interval=3000)
            )
        with pytest.raises(KeyboardInterrupt):
            run(dataclasses.replace(config, deterministic=deterministic, sample=stop), complete=complete)
        assert torch.get_num_threads() == 2
        assert counts == ({2} if deterministic else {1, 2})


def test_a_given_number_is_used(data, tmp_path, two_threads):
    run(make_config(data, tmp_path / "run", "num_steps=1", "threads=3"))
    assert torch.get_num_threads() == 3
