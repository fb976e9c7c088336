"""Every layout trains the same model: losses and gradient norms against one process, with SGD in fp32.

SGD, since Adam hides gradients of a wrong size; tolerance 1e-5 relative, on every one of four steps.
"""

import dataclasses
from pathlib import Path

import pytest

from groundup.core.config import resolve
from groundup.models import ModelConfig
from groundup.models.gpt2 import GPT2Config
from groundup.models.llama import LlamaConfig
from groundup.models.stablelm import StableLMConfig
from groundup.parallel.layout import Layout, PipelineConfig
from groundup.train.config import TrainConfig
from tests.parallel.ranks import train_on_ranks
from tests.runs import make_config, make_data, run

SIZES = {"vocab_size": 300, "max_sequence_length": 32, "num_layers": 4, "hidden_size": 32, "num_heads": 4}
MODELS = {
    "gpt2": GPT2Config(**SIZES, ffn_size=64),
    "llama": LlamaConfig(**SIZES, ffn_size=96, num_kv_heads=2),
    "qwen2-tied": LlamaConfig(**SIZES, ffn_size=96, num_kv_heads=1, tied_embedding=True, qkv_bias=True),
    "stablelm": StableLMConfig(**SIZES, ffn_size=96, num_kv_heads=2, rotary_fraction=0.5, linear_bias="all"),
}
NUM_STEPS = 4
VALIDATE = ("data.split=96,2,2", "validation.interval=2")
SGD = ("optimizer.kind=sgd", "optimizer.lr=0.3", "clip_grad_norm=1.0")


def _pipeline(schedule: str, layers: tuple[int, ...] = (), **degrees: int) -> Layout:
    return Layout(pp=2, pipeline=PipelineConfig(schedule=schedule, layers=layers), **degrees)


LAYOUTS = {
    2: {
        "dp2": Layout(dp=2),
        "dp2-zero1": Layout(dp=2, zero=1),
        "dp2-zero2": Layout(dp=2, zero=2),
        "dp2-zero3": Layout(dp=2, zero=3),
        "tp2": Layout(tp=2),
        "cp2": Layout(cp=2),
        "cp2-zero3": Layout(cp=2, zero=3),
        "pp2": Layout(pp=2),
        "pp2-by-hand": _pipeline("1f1b", layers=(3, 1)),
        "pp2-gpipe": _pipeline("gpipe"),
        "pp2-interleaved": _pipeline("interleaved"),
    },
    4: {
        "dp4-zero3": Layout(dp=4, zero=3),
        "dp4-zero3-shard2": Layout(dp=4, zero=3, shard=2),
        "dp2-tp2": Layout(dp=2, tp=2),
        "dp2-tp2-zero3": Layout(dp=2, tp=2, zero=3),
        "tp4": Layout(tp=4),
        "tp2-pp2": Layout(tp=2, pp=2),
        "dp2-pp2": Layout(dp=2, pp=2),
        "dp2-pp2-zero3": Layout(dp=2, pp=2, zero=3),
        "dp2-pp2-zero2-int": _pipeline("interleaved", dp=2, zero=2),
        "cp4": Layout(cp=4),
        "dp2-cp2": Layout(dp=2, cp=2),
        "dp2-cp2-zero3-shard1": Layout(dp=2, cp=2, zero=3, shard=1),
        "cp2-tp2": Layout(cp=2, tp=2),
        "cp2-pp2": Layout(cp=2, pp=2),
    },
}
FOR_ALL_MODELS = {"tp2", "cp2", "pp2-interleaved", "tp4"}
"""Layouts that cut what is different in Llama and Qwen2, or a tied head; all are tried with GPT-2."""
NOT_EACH_TIME = {
    *("dp4-zero3", "dp2-tp2", "dp2-pp2", "dp2-pp2-zero2-int", "cp4", "dp2-cp2", "cp2-pp2", "cp2-zero3")
}
"""Mixes of what other layouts have."""
OF_EACH_TIME = {"gpt2": LAYOUTS[2].keys() | LAYOUTS[4].keys(), "stablelm": {"tp2"}}
"""For a model; FOR_ALL_MODELS where it has none."""


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return make_data(tmp_path_factory.mktemp("data"))


def _config(
    data: Path, run_dir: Path, *more: str, layout: Layout, model: ModelConfig = MODELS["gpt2"]
) -> TrainConfig:
    """Steps of eight samples: of micro-batches of one in pipelines, else of two micro-batches a rank."""
    micro_batch_size = 1 if layout.pp > 1 else 4 // max(1, layout.dp)
    base = make_config(
        data,
        run_dir,
        "global_batch_size=8",
        f"micro_batch_size={micro_batch_size}",
        f"validation.num_batches={4 // micro_batch_size}",
        f"num_steps={NUM_STEPS}",
        *VALIDATE,
        *SGD,
        *more,
    )
    return dataclasses.replace(base, layout=layout, model=model)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("each_time", [True, pytest.param(False, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("world_size", LAYOUTS)
def test_losses_and_gradient_norms_equal_those_of_one_process(
    data: Path, tmp_path: Path, world_size: int, each_time: bool
) -> None:
    alone = {
        name: _curve(run(_config(data, tmp_path / f"{name}-alone", layout=Layout(), model=model)))
        for name, model in MODELS.items()
    }
    configs = {
        (name, layout_name): _config(data, tmp_path / f"{name}-{layout_name}", layout=layout, model=model)
        for name, model in MODELS.items()
        for layout_name, layout in LAYOUTS[world_size].items()
        if not each_time
        or (layout_name not in NOT_EACH_TIME and layout_name in OF_EACH_TIME.get(name, FOR_ALL_MODELS))
    }
    # Forks have one order of their sets; here ranks whose orders differ must agree on all collectives.
    start_method = "spawn" if world_size == 2 else "forkserver"
    train_on_ranks(world_size, list(configs.values()), tmp_path, start_method=start_method)
    for (name, layout_name), config in configs.items():
        curve = _curve(_records(config.run_dir))
        assert len(curve) == NUM_STEPS
        for step, expected in alone[name].items():
            assert curve[step] == pytest.approx(expected, rel=1e-5), (name, layout_name, step)
        records = _records(tmp_path / f"{name}-alone")
        assert _held_out(_records(config.run_dir)) == pytest.approx(_held_out(records), rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("dp", [2, pytest.param(4, marks=pytest.mark.exhaustive)])
def test_every_factorization_of_the_global_batch_is_the_same_step(
    data: Path, tmp_path: Path, dp: int
) -> None:
    """Eight samples as micro-batch x accumulation x dp."""
    alone = _curve(run(_config(data, tmp_path / "alone", layout=Layout())))
    sizes = [size for size in (1, 2, 4) if size * dp <= 8]
    configs = [
        _config(data, tmp_path / str(size), f"micro_batch_size={size}", layout=Layout(dp=dp))
        for size in sizes
    ]
    train_on_ranks(dp, configs, tmp_path)
    for config in configs:
        curve = _curve(_records(config.run_dir))
        for step, expected in alone.items():
            assert curve[step] == pytest.approx(expected, rel=1e-6), (config.micro_batch_size, step)


@pytest.mark.slow
def test_documents_that_cross_the_borders_of_ranks_are_kept_apart(data: Path, tmp_path: Path) -> None:
    model, all_for_training = MODELS["llama"], ("data.split='1'", "validation.interval=0")
    apart = (*all_for_training, "data.mask_documents=true")
    joined = _curve(run(_config(data, tmp_path / "joined", *all_for_training, layout=Layout(), model=model)))
    alone = _curve(run(_config(data, tmp_path / "alone", *apart, layout=Layout(), model=model)))
    assert alone[NUM_STEPS] != pytest.approx(joined[NUM_STEPS], rel=1e-4)  # else no sample has two documents
    configs = {
        name: _config(data, tmp_path / name, *apart, layout=LAYOUTS[4][name], model=model)
        for name in ("cp4", "cp2-pp2")
    }
    train_on_ranks(4, list(configs.values()), tmp_path)
    for name, config in configs.items():
        curve = _curve(_records(config.run_dir))
        for step, expected in alone.items():
            assert curve[step] == pytest.approx(expected, rel=1e-5), (name, step)


def _records(run_dir: Path) -> list[dict]:
    import orjson

    return [orjson.loads(line) for line in (run_dir / "metrics.jsonl").read_bytes().splitlines()]


def _held_out(records: list[dict]) -> list[float]:
    """Losses on what is held out, while training and at the end."""
    losses = [r["loss"] for r in records if r["kind"] in ("validation", "test")]
    assert len(losses) == 3
    return losses


def _curve(records: list[dict]) -> dict[int, tuple[float, float]]:
    """Step -> loss and gradient norm."""
    return {r["step"]: (r["loss"], r["grad_norm"]) for r in records if r["kind"] == "train"}


def test_a_layout_is_a_setting_like_any_other() -> None:
    overrides = ["layout.dp=2", "layout.tp=2", "layout.zero=3"]
    from groundup.core.config import config

    @config
    class Holder:
        layout: Layout = Layout()

    assert resolve(Holder, overrides=overrides).value.layout == Layout(dp=2, tp=2, zero=3)
