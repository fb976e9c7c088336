"""``groundup verify parallel`` says what is right, and what is not."""

import pytest

from groundup.cli.app import run
from groundup.core.errors import ConfigError, TrainingError
from groundup.parallel.layout import Layout, PipelineConfig
from groundup.train.config import TrainConfig
from groundup.verify.parallel import parse_layout, verify_parallel
from groundup.verify.resume import verify_resume
from tests.runs import make_config, make_data
from tests.runs import run as train_here


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        ("dp2", Layout(dp=2)),
        ("tp4", Layout(dp=1, tp=4)),
        ("dp2-tp2-zero3", Layout(dp=2, tp=2, zero=3)),
        ("dp4-zero2-shard2", Layout(dp=4, zero=2, shard=2)),
        ("cp2", Layout(dp=1, cp=2)),
        ("pp2", Layout(dp=1, pp=2)),
        ("tp2-pp2-interleaved", Layout(dp=1, tp=2, pp=2, pipeline=PipelineConfig(schedule="interleaved"))),
    ],
)
def test_names_of_layouts(name: str, layout: Layout) -> None:
    assert parse_layout(name) == layout


@pytest.mark.parametrize("name", ["", "pp2-gpipe-gpipe", "pp2-1f1b2", "dp", "dp2,tp2", "zero4", "dp2-dp4"])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="--layouts"):
        parse_layout(name)


def test_a_layout_that_trains_another_model_is_found(tmp_path) -> None:
    """The launcher here trains every layout on one process; "dp4" with another seed, "tp4" not at all."""
    import dataclasses

    config = make_config(make_data(tmp_path), tmp_path / "run")

    def launch(copy: TrainConfig, file) -> int:
        if copy.layout.tp == 4:
            return 1
        seed = 2 if copy.layout.dp == 4 else copy.seed
        train_here(dataclasses.replace(copy, layout=Layout(), seed=seed))
        return 0

    found = list(
        verify_parallel(
            config,
            {name: parse_layout(name) for name in ("dp2", "dp4", "tp4")},
            tmp_path,
            launch=launch,
            num_steps=3,
            shrink=True,
        )
    )
    assert [one.is_right for one in found] == [True, False, False]
    assert (found[0].loss, found[0].grad_norm) == (0, 0)
    assert found[1].grad_norm > 1e-3
    assert found[2].error == "did not train to the end"


@pytest.mark.parametrize("shrink", [False, True])
def test_a_run_that_begins_with_a_model_is_verified_too(tmp_path, shrink) -> None:
    import dataclasses

    data = make_data(tmp_path)
    train_here(make_config(data, tmp_path / "first", "num_steps=3"))
    begun = ("start.path=" + str(tmp_path / "first"), "start.state=true", "num_steps=9")

    def launch(copy: TrainConfig, file) -> int:
        assert copy.start.path == (None if shrink else tmp_path / "first")
        train_here(dataclasses.replace(copy, layout=Layout()))
        return 0

    config = make_config(data, tmp_path / "run", *begun)
    [found] = verify_parallel(
        config, {"dp2": Layout(dp=2)}, tmp_path, launch=launch, num_steps=2, shrink=shrink
    )
    assert found.is_right
    resumed = verify_resume(config, tmp_path / "resume", launch=launch, num_steps=2, shrink=shrink)
    assert resumed.is_right
    assert list(resumed.losses) == [1, 2]


@pytest.mark.slow
def test_a_layout_that_cannot_work_is_not_right(tmp_path, capsys, monkeypatch) -> None:
    """The guide's test has layouts that are."""
    from groundup.core.config import to_yaml
    from tests.forked import python

    monkeypatch.setattr("sys.executable", python())
    file = tmp_path / "run.yaml"
    file.write_text(to_yaml(make_config(make_data(tmp_path), tmp_path / "run", "micro_batch_size=1")))
    with pytest.raises(TrainingError, match="not the same model as one process: tp3"):
        run(["verify", "parallel", str(file), "--layouts", "tp3", "--steps", "1"])
    assert "did not train to the end" in capsys.readouterr().out
