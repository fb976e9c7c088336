"""Preferences are learned alike in every layout, and their reference log-probabilities are the same."""

import dataclasses
from pathlib import Path

import numpy as np
import orjson
import pytest

from groundup.parallel.layout import Layout
from tests.parallel.ranks import train_on_ranks
from tests.unit.finetune.preferences import config, train, write_base_and_pairs

LAYOUTS = {
    2: {
        "dp2": Layout(dp=2),
        "dp2-zero3": Layout(dp=2, zero=3),
        "tp2": Layout(tp=2),
        "pp2": Layout(pp=2),
    },
    4: {"dp2-tp2-zero2": Layout(dp=2, tp=2, zero=2), "tp2-pp2": Layout(tp=2, pp=2)},
}
SGD = ("optimizer.kind=sgd", "optimizer.lr=0.3", "num_steps=3", "data.split=80,20", "validation.interval=3")
FIGURES = ("loss", "grad_norm", "reward_chosen", "reward_margin", "reward_accuracy", "log_prob_rejected")


@pytest.mark.timeout(600)
@pytest.mark.exhaustive
@pytest.mark.parametrize("world_size", LAYOUTS)
def test_layouts_equal_one_process(tmp_path: Path, world_size: int) -> None:
    write_base_and_pairs(tmp_path)
    settings = (*SGD, "micro_batch_size=1", "global_batch_size=4")
    train(config(tmp_path, tmp_path / "alone", *settings))
    expected, reference = _figures(tmp_path / "alone"), _reference(tmp_path / "alone")
    configs = {
        name: dataclasses.replace(config(tmp_path, tmp_path / name, *settings), layout=layout)
        for name, layout in LAYOUTS[world_size].items()
    }
    train_on_ranks(world_size, list(configs.values()), tmp_path, work=train)
    for name in configs:
        found = _figures(tmp_path / name)
        assert found.keys() == expected.keys()
        for key, values in expected.items():
            assert found[key] == pytest.approx(values, rel=2e-5, abs=2e-5), (name, key)
        for split, values in _reference(tmp_path / name).items():
            np.testing.assert_allclose(values, reference[split], rtol=1e-5)


def _figures(run_dir: Path) -> dict[tuple[str, int], list[float]]:
    return {
        (record["kind"], record["step"]): [record[name] for name in FIGURES if name in record]
        for record in map(orjson.loads, (run_dir / "metrics.jsonl").read_bytes().splitlines())
    }


def _reference(run_dir: Path) -> dict[str, np.ndarray]:
    paths = sorted((run_dir / "reference").glob("*/000000.npy"))
    assert len(paths) == 2
    return {path.parent.name: np.load(path) for path in paths}
