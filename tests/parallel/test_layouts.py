"""Every layout trains the same model: losses and gradient norms against one process, with SGD in fp32.

SGD, since Adam hides gradients of a wrong size; tolerance 1e-5 relative, on every one of six steps.
"""

import dataclasses
from pathlib import Path

import pytest

from groundup.core.config import resolve
from groundup.models import ModelConfig
from groundup.models.gpt2 import GPT2Config
from groundup.models.llama import LlamaConfig
from groundup.parallel.layout import Layout
from groundup.train.config import TrainConfig
from tests.parallel.ranks import train_on_ranks
from tests.runs import make_config, make_data, run

SIZES = {"vocab_size": 300, "max_sequence_length": 32, "num_layers": 2, "hidden_size": 32, "num_heads": 4}
MODELS = {
    "gpt2": GPT2Config(**SIZES, ffn_size=64),
    "llama": LlamaConfig(**SIZES, ffn_size=96, num_kv_heads=2),
    "llama-grouped-tied": LlamaConfig(**SIZES, ffn_size=96, num_kv_heads=1, tied_embedding=True),
}
SGD = ("optimizer.kind=sgd", "optimizer.lr=0.3", "clip_grad_norm=1.0")
LAYOUTS = {
    2: {
        "dp2": Layout(dp=2),
        "dp2-zero1": Layout(dp=2, zero=1),
        "dp2-zero2": Layout(dp=2, zero=2),
        "dp2-zero3": Layout(dp=2, zero=3),
        "tp2": Layout(tp=2),
    },
    4: {
        "dp4-zero3": Layout(dp=4, zero=3),
        "dp4-zero3-shard2": Layout(dp=4, zero=3, shard=2),
        "dp2-tp2": Layout(dp=2, tp=2),
        "dp2-tp2-zero3": Layout(dp=2, tp=2, zero=3),
        "tp4": Layout(tp=4),
    },
}


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return make_data(tmp_path_factory.mktemp("data"))


def _config(
    data: Path, run_dir: Path, *more: str, layout: Layout, model: ModelConfig = MODELS["gpt2"]
) -> TrainConfig:
    base = make_config(
        data, run_dir, "global_batch_size=8", "micro_batch_size=1", "checkpoint.interval=6", *SGD, *more
    )
    return dataclasses.replace(base, layout=layout, model=model)


@pytest.mark.slow
@pytest.mark.parametrize("world_size", LAYOUTS)
def test_losses_and_gradient_norms_equal_those_of_one_process(
    data: Path, tmp_path: Path, world_size: int
) -> None:
    alone = {
        name: _curve(run(_config(data, tmp_path / f"{name}-alone", layout=Layout(), model=model)))
        for name, model in MODELS.items()
    }
    configs = {
        (name, layout_name): _config(data, tmp_path / f"{name}-{layout_name}", layout=layout, model=model)
        for name, model in MODELS.items()
        for layout_name, layout in LAYOUTS[world_size].items()
    }
    train_on_ranks(world_size, list(configs.values()), tmp_path)
    for (name, layout_name), config in configs.items():
        curve = _curve(_records(config.run_dir))
        assert len(curve) == 6
        for step, expected in alone[name].items():
            assert curve[step] == pytest.approx(expected, rel=1e-5), (name, layout_name, step)


def _records(run_dir: Path) -> list[dict]:
    import orjson

    return [orjson.loads(line) for line in (run_dir / "metrics.jsonl").read_bytes().splitlines()]


def _curve(records: list[dict]) -> dict[int, tuple[float, float]]:
    """Step -> loss and gradient norm."""
    return {r["step"]: (r["loss"], r["grad_norm"]) for r in records if r["kind"] == "train"}


@pytest.mark.slow
def test_a_checkpoint_of_any_layout_continues_under_any_other(data: Path, tmp_path: Path) -> None:
    """Adam's moments too: the last three of six steps equal those of a run that was never cut."""
    adam = ("optimizer.kind=adamw", "optimizer.lr=0.01", "schedule_steps=6")
    whole = _curve(run(_config(data, tmp_path / "whole", *adam, layout=Layout())))
    layouts = {"dp2-zero3": Layout(dp=2, zero=3), "tp2": Layout(tp=2), "dp2": Layout(dp=2)}
    firsts = {
        name: _config(data, tmp_path / f"from-{name}", *adam, "num_steps=3", layout=layout)
        for name, layout in layouts.items()
    }
    train_on_ranks(2, list(firsts.values()), tmp_path)
    names = list(layouts)
    seconds = [
        dataclasses.replace(firsts[name], num_steps=6, layout=layouts[names[(number + 1) % len(names)]])
        for number, name in enumerate(names)
    ]
    train_on_ranks(2, seconds, tmp_path)
    for config in seconds:
        assert _curve(_records(config.run_dir)) == {
            step: pytest.approx(expected, rel=2e-5) for step, expected in whole.items()
        }
    alone = _config(data, tmp_path / "from-alone", *adam, "num_steps=3", layout=Layout())
    run(alone)
    train_on_ranks(2, [dataclasses.replace(alone, num_steps=6, layout=Layout(dp=2, zero=3))], tmp_path)
    assert _curve(_records(alone.run_dir)) == {
        step: pytest.approx(expected, rel=2e-5) for step, expected in whole.items()
    }


def test_a_layout_is_a_setting_like_any_other() -> None:
    overrides = ["layout.dp=2", "layout.tp=2", "layout.zero=3"]
    from groundup.core.config import config

    @config
    class Holder:
        layout: Layout = Layout()

    assert resolve(Holder, overrides=overrides).value.layout == Layout(dp=2, tp=2, zero=3)
