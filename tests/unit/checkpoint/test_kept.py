"""What a run keeps: nothing sound is deleted, and nothing damaged begins a run anew in silence."""

import dataclasses
import shutil
from pathlib import Path

import pytest

from groundup.checkpoint.native.commit import publish_checkpoint
from groundup.checkpoint.native.folder import (
    checkpoint_path,
    find_damage,
    find_newest,
    list_checkpoints,
    step_of,
)
from groundup.checkpoint.native.pruning import Keep, Pruning
from groundup.cli.app import run as run_line
from groundup.core.errors import CheckpointError
from groundup.core.files import temporary_path
from groundup.train.config import TrainConfig
from tests.runs import losses, make_config, make_data, records_of, run


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return make_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory) -> TrainConfig:
    """A run with checkpoints of steps 1 to 4."""
    config = make_config(
        data,
        tmp_path_factory.mktemp("trained") / "run",
        *("num_steps=4", "schedule_steps=20", "checkpoint.interval=1", "checkpoint.keep_last=9"),
    )
    run(config)
    return config


@pytest.fixture
def config(trained, tmp_path) -> TrainConfig:
    """A copy of that run."""
    shutil.copytree(trained.run_dir, tmp_path / "run", symlinks=True)
    return dataclasses.replace(trained, run_dir=tmp_path / "run")


def keeping(config: TrainConfig, last: int, **changes) -> TrainConfig:
    return dataclasses.replace(
        config, checkpoint=dataclasses.replace(config.checkpoint, keep_last=last), **changes
    )


def folder_of(config: TrainConfig, step: int) -> Path:
    return checkpoint_path(config.run_dir / "checkpoints", step)


def names_of(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def steps_of(config: TrainConfig) -> list[int]:
    return [step_of(folder) for folder in list_checkpoints(config.run_dir / "checkpoints")]


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


# Pruning


def test_a_run_whose_checkpoints_are_all_damaged_is_refused_or_begun_anew(data, tmp_path, caplog) -> None:
    horizon = "schedule_steps=20"
    config = make_config(data, tmp_path / "run", "num_steps=20", "checkpoint.interval=10", horizon)
    run(config)
    checkpoints, metrics = config.run_dir / "checkpoints", config.run_dir / "metrics.jsonl"
    for step in (10, 20):
        (folder_of(config, step) / "COMPLETE").unlink()
    before = metrics.read_bytes()
    again = ("num_steps=9", "checkpoint.interval=3", horizon)
    with pytest.raises(CheckpointError) as refused:
        run(make_config(data, config.run_dir, *again))
    both = ("step_0000010: incomplete", "step_0000020: incomplete")
    for said in (*both, "checkpoint verify", "another run_dir", "start.anew=true"):
        assert said in str(refused.value)
    assert metrics.read_bytes() == before
    assert names_of(checkpoints) == ["latest", "step_0000010", "step_0000020"]

    anew = make_config(data, config.run_dir, *again, "start.anew=true")
    assert list(losses(run(anew))) == list(range(1, 10))
    assert steps_of(anew) == [6, 9]
    assert (checkpoints / "latest").resolve() == folder_of(anew, 9).resolve()
    assert find_newest(checkpoints)[0] == folder_of(anew, 9)
    aside = config.run_dir / "set-aside-1"
    assert names_of(aside / "checkpoints") == ["latest", "step_0000010", "step_0000020"]
    assert (aside / "metrics.jsonl").read_bytes() == before
    assert "set-aside-1" in caplog.text

    # The same command goes on from what is sound now.
    longer = dataclasses.replace(anew, num_steps=10)
    assert list(losses(run(longer))) == list(range(1, 11))
    assert not (config.run_dir / "set-aside-2").exists()


@pytest.mark.parametrize("asynchronous", [False, True])
def test_damaged_checkpoints_do_not_count_as_kept_and_stay(config, caplog, asynchronous) -> None:
    flip(folder_of(config, 1) / "model.safetensors")
    (folder_of(config, 3) / "COMPLETE").unlink()
    flip(folder_of(config, 4) / "optimizer.safetensors")
    damaged = (folder_of(config, 4) / "optimizer.safetensors").read_bytes()
    config = keeping(config, 2, num_steps=3)
    config = dataclasses.replace(
        config, checkpoint=dataclasses.replace(config.checkpoint, asynchronous=asynchronous)
    )
    run(config)  # from step 2 to step 3, whose damaged folder makes room
    assert steps_of(config) == [1, 2, 3, 4]
    assert find_damage(folder_of(config, 2)) is find_damage(folder_of(config, 3)) is None
    assert (config.run_dir / "checkpoints/latest").resolve().name == "step_0000003"
    assert (config.run_dir / "checkpoints/damaged_step_0000003/model.safetensors").is_file()
    assert "step_0000001 is damaged (model.safetensors does not match its checksum)" in caplog.text
    assert "step_0000004 is of a later step than step_0000003" in caplog.text

    run(dataclasses.replace(config, num_steps=6))
    assert steps_of(config) == [1, 5, 6]
    aside = config.run_dir / "checkpoints/damaged_step_0000004/optimizer.safetensors"
    assert aside.read_bytes() == damaged


def test_a_sound_checkpoint_of_a_later_step_stays(config) -> None:
    checkpoints = config.run_dir / "checkpoints"
    gone = Pruning(checkpoints, Keep(last=1)).after_saving(folder_of(config, 3))
    assert gone == [folder_of(config, 2), folder_of(config, 1)]
    assert steps_of(config) == [3, 4]


def test_what_rollback_may_need_is_counted_in_sound_ones(config) -> None:
    flip(folder_of(config, 2) / "model.safetensors")
    folders = list_checkpoints(config.run_dir / "checkpoints")
    found = Keep(last=1, back=3).sort(folders, find_damage)
    assert [step_of(folder) for folder in found.kept] == [4, 3, 1]
    assert Keep(last=1, back=2).sort(folders, find_damage).superfluous == [folder_of(config, 1)]
    assert list(found.damaged) == [folder_of(config, 2)]


def test_those_that_stay_for_good_need_not_be_read(config) -> None:
    folders = list_checkpoints(config.run_dir / "checkpoints")
    read: list[int] = []
    found = Keep(last=1, every=2).sort(folders, lambda folder: read.append(step_of(folder)))
    assert read == [4, 3, 1]
    assert [step_of(folder) for folder in found.kept] == [4, 2]


def test_a_linked_checkpoint_is_unlinked_only(config, tmp_path) -> None:
    folder_of(config, 1).rename(tmp_path / "elsewhere")
    folder_of(config, 1).symlink_to(tmp_path / "elsewhere")
    run_line_well(["checkpoint", "prune", str(config.run_dir), "--keep-last", "3"])
    assert steps_of(config) == [2, 3, 4]
    assert find_damage(tmp_path / "elsewhere") is None


def run_line_well(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run_line(arguments)
    assert not ended.value.code


def test_prune_and_ls_read_what_they_judge(config, capsys) -> None:
    flip(folder_of(config, 4) / "model.safetensors")
    run_line_well(["checkpoint", "ls", str(config.run_dir)])
    listed = capsys.readouterr().out
    assert listed.count("whole") == 3
    assert "model.safetensors does not match its checksum" in listed
    run_line_well(["checkpoint", "ls", str(config.run_dir), "--quick"])
    assert "whole" not in capsys.readouterr().out
    run_line_well(["checkpoint", "prune", str(config.run_dir), "--keep-last", "1"])
    assert steps_of(config) == [3, 4]
    assert f"left, damaged: {folder_of(config, 4)} (model.safetensors does not" in capsys.readouterr().out
    assert (config.run_dir / "checkpoints/latest").resolve().name == "step_0000003"


# Replacing


def test_a_replacement_that_was_interrupted_leaves_one_of_the_two(config, monkeypatch) -> None:
    folder = folder_of(config, 4)
    temporary = temporary_path(folder, shared=True)
    shutil.copytree(folder, temporary)
    rename = Path.rename

    def killed(path: Path, target: Path) -> Path:
        if path == temporary:
            raise KeyboardInterrupt
        return rename(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", killed)
        with pytest.raises(KeyboardInterrupt):
            publish_checkpoint(temporary, folder, replaces=True)
    assert not folder.exists()
    assert list(losses(run(dataclasses.replace(config, num_steps=5)))) == [1, 2, 3, 4, 5]
    assert find_damage(folder) is None
    publish_checkpoint(shutil.copytree(folder, temporary), folder, replaces=True)
    assert names_of(folder.parent) == ["latest", *(f"step_000000{step}" for step in range(1, 6))]


def test_a_sound_checkpoint_of_the_same_step_that_came_meanwhile_is_kept(config, tmp_path, caplog) -> None:
    coming = folder_of(config, 4).rename(tmp_path / "coming")
    config = dataclasses.replace(config, sample=dataclasses.replace(config.sample, interval=4))

    def complete(run) -> list[str]:
        shutil.copytree(coming, folder_of(config, 4))  # between the fourth step and its save
        return [""]

    run(config, complete=complete)
    assert find_damage(config.run_dir / "checkpoints/other_step_0000004") is None
    assert find_damage(folder_of(config, 4)) is None
    assert "step_0000004 was there already (sound) and is now other_step_0000004" in caplog.text


def test_a_folder_in_place_of_the_link_to_the_latest_is_kept(config) -> None:
    latest = config.run_dir / "checkpoints/latest"
    latest.unlink()
    shutil.copytree(folder_of(config, 4), latest)
    run(dataclasses.replace(config, num_steps=5))
    assert str(latest.readlink()) == "step_0000005"
    assert find_damage(latest.with_name("copy_of_latest")) is None


# Beginning


def test_a_damaged_tokenizer_that_the_data_has_too_is_told_and_survived(config, caplog, tmp_path) -> None:
    for step in range(1, 5):
        flip(folder_of(config, step) / "tokenizer/merges.txt")
    assert "tokenizer/merges.txt" in find_damage(folder_of(config, 4))
    assert list(losses(run(keeping(config, 1, num_steps=5)))) == [1, 2, 3, 4, 5]
    assert "merges.txt does not match its checksum; the tokenizer of the data is the same" in caplog.text
    assert steps_of(config) == [1, 2, 3, 4, 5]
    shutil.rmtree(folder_of(config, 5))
    other, damaged = find_newest(config.run_dir / "checkpoints", tokenizer="another")
    assert other is None
    assert len(damaged) == 4
    with pytest.raises(CheckpointError, match=r"all checkpoints are damaged: step_0000004: tokenizer/merges"):
        run_line(["checkpoint", "show", str(config.run_dir)])
    start = dataclasses.replace(config.start, path=config.run_dir)
    with pytest.raises(CheckpointError, match="all checkpoints are damaged"):
        run(dataclasses.replace(config, run_dir=tmp_path / "next", start=start))


def test_the_link_to_the_latest_leads_to_what_the_run_continues_from(config) -> None:
    flip(folder_of(config, 4) / "model.safetensors")
    run(dataclasses.replace(config, num_steps=3))  # nothing is left to do
    assert str((config.run_dir / "checkpoints/latest").readlink()) == "step_0000003"


def test_records_of_a_run_whose_checkpoints_were_taken_away_are_kept(config) -> None:
    before = (config.run_dir / "metrics.jsonl").read_bytes()
    (config.run_dir / "checkpoints").rename(config.run_dir / "moved")
    run(config)
    assert (config.run_dir / "set-aside-1/metrics.jsonl").read_bytes() == before
    assert list(losses(records_of(config))) == [1, 2, 3, 4]
