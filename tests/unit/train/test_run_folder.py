"""A run folder belongs to one training at a time."""

import dataclasses
from pathlib import Path

import pytest

from groundup.checkpoint.native.folder import find_newest
from groundup.cli.app import run as run_line
from groundup.cli.train import run_training
from groundup.core.config import to_yaml
from groundup.core.errors import MachineError
from groundup.core.files import write_json
from groundup.core.folder_lock import Holder, locked_folder
from tests.runs import losses, make_config, make_data, records_of


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return make_data(tmp_path_factory.mktemp("data"))


def content_of(folder: Path) -> dict[str, bytes]:
    """Of all files but those of the lock."""
    paths = (path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("lock"))
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def test_a_second_training_is_refused_at_once_and_changes_nothing(data, tmp_path) -> None:
    config = make_config(data, tmp_path / "run")
    run_training(config)
    file = tmp_path / "run.yaml"
    file.write_text(to_yaml(dataclasses.replace(config, num_steps=9)))
    (config.run_dir / "ranks").mkdir()
    (config.run_dir / "ranks/rank-1.log").write_text("of the first")
    before = content_of(config.run_dir)
    commands = (
        ["train", str(file)],
        ["train", str(file), "--max-restarts", "1"],
        ["train", str(file), "layout.dp=2"],
        ["checkpoint", "prune", str(config.run_dir)],
        ["checkpoint", "prune", str(config.run_dir / "checkpoints")],
        ["checkpoint", "pull", f"file://{tmp_path}/nowhere", str(config.run_dir)],
    )
    with locked_folder(config.run_dir, doing="training"):
        for command in commands:
            with pytest.raises(
                MachineError, match=r"process \d+ on .* is training in this folder since \d+-"
            ):
                run_line(command)
        assert content_of(config.run_dir) == before
        for reader in (["checkpoint", "ls"], ["checkpoint", "show"], ["checkpoint", "prune", "--dry-run"]):
            with pytest.raises(SystemExit) as ended:
                run_line([*reader, str(config.run_dir)])
            assert not ended.value.code


def test_a_rank_of_another_launch_leaves_the_ranks_alone(data, tmp_path, monkeypatch) -> None:
    config = make_config(data, tmp_path / "run", "layout.dp=2")
    (config.run_dir / "ranks").mkdir(parents=True)
    (config.run_dir / "ranks/rank-1.progress").write_text("of the first")
    torchrun = {"RANK": 1, "LOCAL_RANK": 1, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "MASTER_PORT": 1}
    for name, value in torchrun.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "second")
    with (
        locked_folder(config.run_dir, doing="training", launch="first"),
        pytest.raises(MachineError, match="is training in this folder"),
    ):
        run_training(config)
    assert (config.run_dir / "ranks/rank-1.progress").read_text() == "of the first"


def test_a_training_that_was_killed_is_in_nobodys_way(data, tmp_path) -> None:
    config = make_config(data, tmp_path / "run")
    gone = dataclasses.replace(Holder.this_process("training"), started="1")
    config.run_dir.mkdir()
    write_json(config.run_dir / "lock.json", dataclasses.asdict(gone))
    run_training(config)
    assert list(losses(records_of(config))) == [1, 2, 3, 4, 5, 6]
    assert find_newest(config.run_dir / "checkpoints")[0].name == "step_0000006"
    assert not (config.run_dir / "lock.json").exists()
