"""The model of a step's time against what others have published of their runs, each with its source."""

import importlib.util
import json
import math
import statistics
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"


def _benchmark():
    spec = importlib.util.spec_from_file_location("plan_scale", BENCHMARKS / "plan_scale.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


BENCHMARK = _benchmark()
PUBLISHED = BENCHMARK.published()
RESULTS = json.loads((BENCHMARKS / "results/plan_scale.json").read_text())
SOURCES = list(PUBLISHED["sources"])


@pytest.fixture(scope="module")
def rows():
    return [BENCHMARK.compare(run) for run in PUBLISHED["runs"]]


def test_what_is_committed_is_what_the_model_predicts(rows):
    for row, committed in zip(rows, RESULTS["rows"], strict=True):
        assert (row["source"], row["what"], row["gpus"]) == (
            committed["source"],
            committed["what"],
            committed["gpus"],
        )
        assert row["ratio"] == pytest.approx(committed["ratio"], rel=0.005)


def test_predictions_are_off_by_a_sixth_on_average_and_lean_to_no_side(rows):
    logs = [math.log(row["ratio"]) for row in rows if not row["chosen_by"]]
    assert len(logs) > 30
    assert statistics.fmean(abs(log) for log in logs) < math.log(1.17)
    assert abs(statistics.median(logs)) < math.log(1.06)


@pytest.mark.parametrize("source", SOURCES)
def test_no_source_is_far_off(source, rows):
    """Those on slower devices than the data sheet's, or that overlap what ours waits for, by a third."""
    ratios = [row["ratio"] for row in rows if row["source"] == source]
    middle = math.exp(statistics.fmean(math.log(ratio) for ratio in ratios))
    assert 1 / 1.35 < middle < 1.35
    assert all(0.65 < ratio < 1.65 for ratio in ratios)


def test_every_run_names_a_source_that_tells_what_is_different():
    assert {run["source"] for run in PUBLISHED["runs"]} == set(SOURCES)
    for source in PUBLISHED["sources"].values():
        assert source["url"].startswith("https://") and source["differences"] and source["devices"]


def test_published_units_are_converted_by_the_papers_formulas():
    """Narayanan et al. 2021 say 502 petaFLOP/s for 1T on 3,072 GPUs, 84 days for 450 billion tokens."""
    (trillion,) = (
        run for run in PUBLISHED["runs"] if (run["source"], run["what"]) == ("megatron-2021", "1T")
    )
    days = 450e9 / (BENCHMARK.measured_tokens(trillion) * trillion["gpus"]) / 86400
    assert days == pytest.approx(84, rel=0.02)
    (llm_c,) = (run for run in PUBLISHED["runs"] if run["source"] == "llm.c")
    assert BENCHMARK.measured_tokens(llm_c) * 8 * 2.8 == 1024 * 1024


def test_scaling_plans_cover_7b_to_70b_on_8_to_4096_devices():
    for points in RESULTS["plans"].values():
        assert [point["gpus"] for point in points] == [8, 64, 512, 4096]
    assert {"7B", "8B", "13B", "70B"} == set(RESULTS["plans"])
