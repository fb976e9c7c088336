"""What a command line of training means."""

import math
import re
import sys

import orjson
import pytest

from groundup.__main__ import main
from groundup.cli.run_config import presets, run_config
from groundup.core.config import to_yaml
from groundup.core.errors import ConfigError
from groundup.train.setup import build_run
from tests.runs import make_config, make_data


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("data"))


def words(data, tmp_path, *overrides):
    tiny = ("preset=tiny", f"data.path={data}", "data.sequence_length=32", "data.split=80,10,10")
    return [*tiny, "device=cpu", "num_steps=2", "log.interval=1", f"run_dir={tmp_path / 'run'}", *overrides]


def test_a_preset_takes_the_vocabulary_of_the_tokenizer(data, tmp_path):
    resolved = run_config(None, words(data, tmp_path))
    assert resolved.value.model.vocab_size == 300
    assert resolved.origins["model.vocab_size"] == f"the tokenizer of {data} (preset tiny: 4096)"
    assert f"the tokenizer of {data}" in resolved.render()
    assert build_run(resolved.value).tokenizer.vocab_size == 300


def test_a_vocabulary_that_is_given_stays_and_is_refused_as_before(data, tmp_path):
    resolved = run_config(None, words(data, tmp_path, "model.vocab_size=400"))
    assert resolved.value.model.vocab_size == 400
    with pytest.raises(ConfigError, match=r"Set model\.vocab_size=300"):
        build_run(resolved.value)


def test_without_the_data_the_config_of_a_preset_can_be_shown(tmp_path):
    resolved = run_config(None, words(tmp_path / "none", tmp_path))
    assert resolved.value.model.vocab_size == 4096
    assert resolved.origins["model.vocab_size"] == "preset tiny"


def test_train_alone_tells_of_presets():
    with pytest.raises(ConfigError) as refusal:
        run_config(None, [])
    for name in presets():
        assert name in str(refusal.value)
    assert "groundup train preset=tiny run_dir=runs/a data.path=PREFIX" in str(refusal.value)


def test_who_gives_no_model_is_told_of_presets_beside_all_else():
    with pytest.raises(ConfigError) as refusal:
        run_config(None, ["run_dir=a", "optimzer.lr=1"])
    assert "Did you mean 'optimizer'?" in str(refusal.value)
    assert str(refusal.value).splitlines()[-1].startswith("Begin with a preset: ")


@pytest.mark.parametrize("verb", ["parallel", "resume"])
def test_verify_refuses_the_vocabulary_that_train_refuses(data, tmp_path, monkeypatch, capsys, verb):
    config = make_config(data, tmp_path / "run", "model.vocab_size=400")
    (tmp_path / "run.yaml").write_text(to_yaml(config))
    monkeypatch.setattr(sys, "argv", ["groundup", "verify", verb, str(tmp_path / "run.yaml")])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 1
    err = capsys.readouterr().err
    assert err.endswith("the tokenizer of the data has 300. Set model.vocab_size=300.\n")


def test_the_log_shows_both_rates_of_muon(data, tmp_path, monkeypatch, capsys):
    overrides = words(data, tmp_path, "optimizer.lr=1e-4", "num_steps=2", "schedule.kind=constant")
    monkeypatch.setattr(sys, "argv", ["groundup", "train", *overrides, "warmup.fraction=0"])
    with pytest.raises(SystemExit) as stop:
        main()
    assert not stop.value.code
    assert len(re.findall(r"\| lr 1\.000e-04 \(adamw 1\.000e-02\) \|", capsys.readouterr().err)) == 2
    lines = (tmp_path / "run/metrics.jsonl").read_bytes().splitlines()
    records = [record for line in lines if (record := orjson.loads(line))["kind"] == "train"]
    assert [record["adamw_lr"] / record["lr"] for record in records] == pytest.approx([100, 100])
    assert all(math.isclose(record["lr"], 1e-4) for record in records)
