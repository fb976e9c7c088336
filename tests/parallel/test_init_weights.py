"""A run that begins with another model is the same run under every layout."""

import dataclasses

import pytest

from groundup.checkpoint.formats import open_model
from groundup.checkpoint.huggingface.weights import write_huggingface
from groundup.parallel.layout import Layout
from groundup.train.config import StartConfig
from tests.parallel.ranks import train_on_ranks
from tests.runs import losses, make_config, make_data, records_of, run


@pytest.mark.slow
def test_each_rank_takes_its_part_of_the_weights(tmp_path):
    data = make_data(tmp_path)
    run(make_config(data, tmp_path / "first", "optimizer.lr=1e-2"))
    write_huggingface(open_model(tmp_path / "first", device="cpu"), tmp_path / "hf")
    base = make_config(
        data, tmp_path / "alone", "micro_batch_size=1", "optimizer.kind=sgd", "optimizer.lr=0.3"
    )
    starts = {"hf": StartConfig(path=tmp_path / "hf"), "run": StartConfig(path=tmp_path / "first")}
    base = dataclasses.replace(base, start=starts["hf"])
    alone = losses(run(base))
    configs = {
        (name, start): dataclasses.replace(
            base, run_dir=tmp_path / f"{name}-{start}", layout=layout, start=starts[start]
        )
        for name, layout in (("zero3", Layout(dp=2, zero=3)), ("tp", Layout(tp=2)), ("pp", Layout(pp=2)))
        for start in starts
    }
    train_on_ranks(2, list(configs.values()), tmp_path)
    for key, config in configs.items():
        assert losses(records_of(config)) == pytest.approx(alone, rel=1e-5), key
