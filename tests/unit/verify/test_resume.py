"""``groundup verify resume`` says what is right, and what is not."""

import dataclasses

import pytest
import torch

from groundup.cli.app import run
from groundup.core.config import to_yaml
from groundup.core.errors import TrainingError
from groundup.train.config import TrainConfig
from groundup.verify.resume import verify_resume
from tests.forked import python
from tests.runs import make_config, make_data
from tests.runs import run as train_here


def test_a_run_that_goes_on_as_another_is_found(tmp_path, monkeypatch) -> None:
    config = make_config(make_data(tmp_path), tmp_path / "run", "model.dropout=0.1")
    forgets: list[bool] = []

    def launch(copy: TrainConfig, file) -> int:
        if forgets and copy.run_dir.joinpath("checkpoints").exists():  # a resumed run without its dropout
            monkeypatch.setattr(torch, "set_rng_state", lambda state: None)
        train_here(copy)
        return 0

    settings = {"launch": launch, "num_steps": 4, "shrink": True}
    right = verify_resume(config, tmp_path / "right", **settings)
    assert right.is_right
    assert (right.stopped_after, list(right.losses), right.num_tensors > 100) == (2, [1, 2, 3, 4], True)
    forgets.append(True)
    wrong = verify_resume(config, tmp_path / "wrong", **settings)
    assert not wrong.is_right
    assert [one == other for one, other in wrong.losses.values()] == [True, True, False, False]
    assert wrong.differences


def test_a_run_that_does_not_resume_is_an_error(tmp_path) -> None:
    config = make_config(make_data(tmp_path), tmp_path / "run")

    def launch(copy: TrainConfig, file) -> int:
        if copy.run_dir.joinpath("checkpoints").exists():
            return 1
        train_here(dataclasses.replace(copy))
        return 0

    with pytest.raises(TrainingError, match="does not resume"):
        verify_resume(config, tmp_path / "copies", launch=launch, num_steps=2, shrink=True)


@pytest.mark.slow
def test_a_users_config_is_verified_in_processes_of_its_own(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setattr("sys.executable", python())
    file = tmp_path / "run.yaml"
    file.write_text(to_yaml(make_config(make_data(tmp_path), tmp_path / "run")))
    with pytest.raises(SystemExit) as ended:
        run(["verify", "resume", str(file), "checkpoint.asynchronous=true", "--steps", "4"])
    assert not ended.value.code
    printed = capsys.readouterr().out
    assert printed.count("equal") == 5
    assert "equal, stopped after it" in printed
