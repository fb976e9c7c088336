"""A run ends when a figure on held-out data no longer improves."""

import dataclasses

import pytest

from groundup.core.errors import ConfigError
from groundup.tokens.sampling.collate import Evaluation
from tests.runs import losses, make_config, make_data, run


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("data"))


def config_of(data, run_dir, *more):
    return make_config(
        data,
        run_dir,
        "num_steps=9",
        "validation.interval=1",
        "validation.patience=2",
        "log.interval=3",
        *more,
    )


def measuring(values):
    """An evaluation whose loss is that of the step; that at the end comes again."""

    def evaluate(run, split, num_batches):
        loss = values[run.state.step - 1]
        return Evaluation(total_loss=loss, num_tokens=1, num_bytes=1, figures={"reward": -loss})

    return evaluate


VALUES = [5.0, 4.0, 4.5, 3.0, 3.5, 3.0, 1.0, 1.0, 1.0]  # best at step 4 until step 6


def test_patience_counts_measurements_since_the_best(data, tmp_path):
    config = config_of(data, tmp_path / "run")
    records = run(config, evaluate=measuring(VALUES))
    assert max(losses(records)) == 6
    assert (config.run_dir / "checkpoints/step_0000006").is_dir()
    again = run(config, evaluate=measuring(VALUES))  # stays where it stopped
    assert losses(again) == losses(records)
    longer = dataclasses.replace(config, validation=dataclasses.replace(config.validation, patience=3))
    assert max(losses(run(longer, evaluate=measuring(VALUES)))) == 9


def test_a_figure_of_which_more_is_better(data, tmp_path):
    options = ("validation.metric=reward", "validation.better=higher")
    assert max(losses(run(config_of(data, tmp_path / "run", *options), evaluate=measuring(VALUES)))) == 6
    falls = measuring([-value for value in VALUES])
    assert max(losses(run(config_of(data, tmp_path / "falls", *options), evaluate=falls))) == 3


def test_a_figure_that_is_not_measured(data, tmp_path):
    config = config_of(data, tmp_path / "run", "validation.metric=accuracy")
    with pytest.raises(ConfigError, match=r"accuracy is not measured\. There are: loss, perplexity"):
        run(config)
    with pytest.raises(ConfigError, match="patience needs validations"):
        config_of(data, tmp_path / "run", "validation.interval=0")
