"""Adapters under every layout are those of one process: losses, gradient norms and what is saved."""

import dataclasses
from pathlib import Path

import pytest
import torch

from groundup.checkpoint.native.folder import resolve_checkpoint
from groundup.checkpoint.native.load import TensorGroup
from groundup.core.config import from_dict, to_dict
from groundup.finetune.config import FinetuneConfig
from groundup.finetune.lora import LoraConfig
from groundup.models import ModelConfig
from groundup.parallel.layout import Layout
from groundup.train.config import StartConfig
from tests.parallel.ranks import train_on_ranks
from tests.parallel.test_layouts import MODELS, NUM_STEPS, SGD
from tests.runs import make_config, make_data, records_of, run

LAYOUTS = {
    "two": {
        ("gpt2", "dp2-zero3"): Layout(dp=2, zero=3),
        ("gpt2", "tp2"): Layout(tp=2),
        ("gpt2", "pp2"): Layout(pp=2),
        ("qwen2-tied", "tp2"): Layout(tp=2),  # where each rank has all key/value heads
    },
    "two, more": {
        ("gpt2", "dp2"): Layout(dp=2),
        ("gpt2", "cp2"): Layout(cp=2),
        ("qwen2-tied", "pp2"): Layout(pp=2),
        ("stablelm", "tp2"): Layout(tp=2),
    },
    "four": {
        ("gpt2", "dp2-tp2-zero3"): Layout(dp=2, tp=2, zero=3),
        ("gpt2", "dp4-zero3"): Layout(dp=4, zero=3),
        ("qwen2-tied", "dp2-tp2-zero3"): Layout(dp=2, tp=2, zero=3),
        ("qwen2-tied", "tp2-pp2"): Layout(tp=2, pp=2),
    },
}
EXHAUSTIVE = [pytest.param(name, marks=pytest.mark.exhaustive) for name in ("two, more", "four")]


def tune(config: FinetuneConfig) -> None:
    run(config, learning=config.learning())


def config_of(folder: Path, name: str, model: ModelConfig, base: str, layout: Layout) -> FinetuneConfig:
    micro_batch_size = 1 if layout.pp > 1 else 4 // max(1, layout.dp)
    plain = make_config(folder / "data_text_document", folder / name, f"num_steps={NUM_STEPS}",
                        "global_batch_size=8", f"micro_batch_size={micro_batch_size}", *SGD)  # fmt: skip
    config = from_dict(FinetuneConfig, to_dict(plain), where="test")
    lora = LoraConfig(rank=3, alpha=12.0)  # a rank that no degree divides
    start = StartConfig(path=folder / base)
    return dataclasses.replace(config, model=model, layout=layout, lora=lora, start=start)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("ranks", ["two", *EXHAUSTIVE])
def test_layouts_train_the_adapters_of_one_process(tmp_path, ranks):
    data = make_data(tmp_path)
    for name in {name for name, _ in LAYOUTS[ranks]}:
        base = make_config(data, tmp_path / f"{name}-base", "num_steps=1")
        run(dataclasses.replace(base, model=MODELS[name]))
        tune(config_of(tmp_path, f"{name}-alone", MODELS[name], f"{name}-base", Layout()))
    configs = {
        key: config_of(tmp_path, "-".join(key), MODELS[key[0]], f"{key[0]}-base", layout)
        for key, layout in LAYOUTS[ranks].items()
    }
    train_on_ranks(4 if ranks == "four" else 2, list(configs.values()), tmp_path, tune)
    for (name, layout), config in configs.items():
        alone, found = (_curve(folder) for folder in (tmp_path / f"{name}-alone", config.run_dir))
        assert len(found) == NUM_STEPS
        for step, expected in alone.items():
            assert found[step] == pytest.approx(expected, rel=1e-5), (name, layout, step)
        wanted, saved = (
            TensorGroup(resolve_checkpoint(folder), "model")
            for folder in (tmp_path / f"{name}-alone", config.run_dir)
        )
        assert set(wanted) == set(saved)
        for key in wanted:
            torch.testing.assert_close(saved.read(key), wanted.read(key), atol=1e-6, rtol=1e-4)


def _curve(run_dir: Path) -> dict[int, tuple[float, float]]:
    config = make_config(run_dir, run_dir)
    return {
        record["step"]: (record["loss"], record["grad_norm"])
        for record in records_of(config)
        if record["kind"] == "train"
    }
