"""``groundup plan`` as it is typed: its screen, its JSON, and what it refuses."""

import contextlib
import json

import pytest

from groundup.cli import app
from groundup.core.errors import ConfigError, DataError, MachineError
from tests.runs import make_data

MEDIUM = ("preset=gpt2-345m", "run_dir=run", "data.path=data", "--no-data")
TINY = (
    *("model.kind=gpt2", "model.vocab_size=300", "model.max_sequence_length=32", "model.num_layers=2"),
    *("model.hidden_size=32", "model.num_heads=2", "model.ffn_size=64", "data.sequence_length=32"),
    *("num_steps=6", "data.split=80,10,10", "run_dir=run", "device=cpu"),
)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("data"))


def run(words: list[str]) -> None:
    with contextlib.suppress(SystemExit):  # of success: errors are raised as they are
        app.run(words)


def plan(capsys, *words: str) -> dict:
    run(["plan", *words, "--json"])
    return json.loads(capsys.readouterr().out)


def test_a_run_on_an_a800(capsys):
    found = plan(capsys, *MEDIUM, "--gpu", "a800", "--mfu", "0.5")
    assert sum(found["parameters"].values()) == 354_871_296
    assert found["fits"] and found["precision"] == "bf16"
    speed = 0.5 * 312e12 / found["effort"]["flops_per_token"]
    assert found["effort"]["tokens_per_second"] == pytest.approx(speed)
    assert found["effort"]["hours"] == pytest.approx(500_000 * 8 * 1024 / speed / 3600)
    assert found["effort"]["kilowatt_hours"] == pytest.approx(0.4 * found["effort"]["hours"])
    assert found["disk"]["kept"] == 2 and found["disk"]["most"] == 3
    modes = found["by_mode"]
    assert modes["none"] > modes["selective"] > modes["full"]
    assert modes["none"] == found["memory"][0]["total"]


def test_megatron_lms_published_memory(capsys):
    """14.75 GiB were measured with full recomputation and batch 8, 9,652 MiB with batch 1 over dp 4."""
    of_megatron = (*MEDIUM, "--formula", "megatron", "precision=fp16")
    of_eight = ("micro_batch_size=8", "global_batch_size=8")
    full = plan(capsys, *of_megatron, *of_eight, "recompute.mode=full")["memory"][0]["total"]
    assert full / 2**30 == pytest.approx(14.75, rel=0.06)
    none = plan(capsys, *of_megatron, *of_eight)["memory"][0]
    assert (none["total"] - none["by_class"]["logits"]) / 2**30 == pytest.approx(26.6, rel=0.06)
    four = ("layout.dp=4", "micro_batch_size=1", "global_batch_size=4")
    assert plan(capsys, *of_megatron, *four)["memory"][0]["total"] / 2**20 == pytest.approx(9652, rel=0.07)


def test_the_data_of_a_run(capsys, data):
    found = plan(capsys, *TINY, f"data.path={data}", "validation.num_batches=500")
    reading = found["reading"]
    assert sum(split["documents"] for split in reading["splits"].values()) == 60
    assert reading["epochs"] == pytest.approx(6 * 8 / reading["splits"]["train"]["samples"])
    assert any(warning.startswith("validation has ") for warning in found["warnings"])


def test_a_split_without_a_sample_is_refused_after_the_screen(capsys, data):
    with pytest.raises(ConfigError, match="validation split is empty"):
        run(["plan", *TINY, f"data.path={data}", "data.split=100,0,0"])
    assert "Parameters" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "error", "said"),
    [
        (("--gpu", "GTX"), ConfigError, "Known are B200, .* V100"),
        (("--gpu", "V100", "precision=bf16"), ConfigError, "V100 has no bf16 units"),
        (("--gpu", "A100", "precision=fp8"), ConfigError, "A100 has no fp8 units .* With fp8: B200, H200"),
        (("precision=fp8", "layout.tp=2"), ConfigError, "precision fp8 needs layout.tp 1"),
        (("--gpu", "T4", "--memory", "8"), MachineError, "Set micro_batch_size=1"),
        (("layout.tp=3",), ConfigError, "num_heads 16 is not divisible by tp 3"),
        (("--gpus", "3"), ConfigError, "global_batch_size 8 is not a multiple"),
        (("--mfu", "1.5"), ConfigError, "share of the peak"),
        (("--search",), ConfigError, "number of devices and their memory"),
        (("--scale", "8,x", "--gpu", "H100"), ConfigError, "'8,x' are no numbers of devices"),
        (("--grow-batch", "--gpu", "H100"), ConfigError, "'' are no numbers of devices"),
        (("--scale", "8"), ConfigError, "scaling needs the kind of device"),
        (("--scale", "8", "--gpu", "H100", "--gpus", "8"), ConfigError, "exclude each other"),
        (("--network", "0"), ConfigError, "send nothing"),
        (("--link-latency=-1",), ConfigError, "less than nothing"),
        (("--search", "--gpus", "2", "--memory", "1"), MachineError, "the least takes"),
    ],
)
def test_what_is_refused(words, error, said):
    with pytest.raises(error, match=said):
        run(["plan", *MEDIUM, *words])


def test_data_that_is_not_there_is_refused_with_a_way_around():
    with pytest.raises(DataError, match=r"data: no such token files.* --no-data"):
        run(["plan", *MEDIUM[:-1]])


def test_a_v100_runs_in_fp16(capsys):
    assert plan(capsys, *MEDIUM, "--gpu", "V100")["precision"] == "fp16"


def test_a_search_lists_what_to_set(capsys):
    run(["plan", *MEDIUM, "--search", "--gpus", "4", "--gpu", "L4"])
    printed = capsys.readouterr().out
    assert "fit 22.08 GiB" in printed and "layout.dp=4" in printed


def test_a_plan_predicts_its_step(capsys):
    found = plan(capsys, *MEDIUM, "--gpu", "A100", "layout.dp=2")
    time, effort = found["time"], found["effort"]
    parts = [time[name] for name in ("update", "bubble", "tensor", "context", "pipeline", "data")]
    assert time["total"] == pytest.approx(sum(time["work"].values()) + sum(parts))
    assert effort["tokens_per_second"] == time["tokens_per_second"] == pytest.approx(8 * 1024 / time["total"])
    assert time["mfu"] == pytest.approx(
        effort["flops_per_token"] * time["tokens_per_second"] / (2 * 312e12), rel=1e-6
    )
    slow = plan(capsys, *MEDIUM, "--gpu", "A100", "layout.dp=2", "--link", "1", "--link-latency", "1000")
    assert slow["time"]["data"] > time["data"] and slow["time"]["work"] == time["work"]
    run(["plan", *MEDIUM, "--gpu", "A100"])
    assert "s: products " in capsys.readouterr().out
    assert plan(capsys, *MEDIUM, "--gpu", "A100", "--tokens-per-second", "1000")["time"] is None


def test_a_table_over_numbers_of_devices(capsys):
    words = (*MEDIUM, "micro_batch_size=1", "global_batch_size=64", "layout.zero=1", "--gpu", "H100")
    points = plan(capsys, *words, "--scale", "64,8,100")["points"]
    assert [point["gpus"] for point in points] == [8, 64, 100]
    few, many, none = points
    assert few["layout"] == "dp 8, zero 1, shard 8" and few["batch"] == many["batch"] == 64
    assert few["time"]["total"] > many["time"]["total"] > few["time"]["total"] / 8
    assert none["time"] is None and "global_batch_size 64 is not a multiple" in none["reason"]
    grown = plan(capsys, *words, "--scale", "8,64", "--grow-batch")["points"][1]
    assert grown["batch"] == 512 and grown["time"]["mfu"] > many["time"]["mfu"]
    ramped = (
        "micro_batch_size=16",
        "batch_ramp.start=16",
        "batch_ramp.increment=16",
        "batch_ramp.samples=99",
    )
    even, odd = plan(capsys, *words, *ramped, "--scale", "4,5", "--grow-batch")["points"]
    assert even["time"] and odd["time"]  # of 64 and 80
    _, uneven = plan(capsys, *words, "micro_batch_size=16", "--scale", "8,9", "--grow-batch")["points"]
    assert uneven["reason"] == "a batch of 72 is not a multiple of micro_batch_size 16"
    run(["plan", *words, "--scale", "8,64,100"])
    printed = capsys.readouterr().out
    assert "tokens/s a GPU" in printed and "100 GPUs: global_batch_size 64" in printed


def test_a_table_of_the_fastest_layouts(capsys):
    words = (*MEDIUM, "global_batch_size=16", "--gpu", "L4", "--search")
    alone, two = plan(capsys, *words, "--memory", "8", "--scale", "1,2")["points"]
    assert alone["settings"]["micro_batch_size"] and "layout.dp" in two["settings"]
    assert two["memory"] <= 0.92 * 8 * 2**30 and two["time"]["total"] < alone["time"]["total"]
    (tiny,) = plan(capsys, *words, "--memory", "1", "--scale", "2")["points"]
    assert "layouts fits" in tiny["reason"]
