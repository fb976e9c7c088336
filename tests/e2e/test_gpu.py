"""What only a GPU shows: its formats, kernels and graphs beside the CPU's, on the same weights and data."""

import os
import subprocess
import sys

import orjson
import pytest
import torch

from groundup.inference.engine import Engine
from groundup.inference.sampler import Sampling
from groundup.models import evaluating, lm_head
from groundup.parallel.device import choose_device, lacks
from tests.runs import losses, make_config, make_data, run
from tests.tiny import tiny_model
from tests.unit.finetune import preferences

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no usable GPU")


HAS_FP8 = pytest.mark.skipif(bool(lacks("fp8", choose_device("auto"))), reason="this GPU has no fp8 units")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("data"))


def trained(data, run_dir, *overrides):
    return losses(run(make_config(data, run_dir, "device=cuda", "deterministic=false", *overrides)))


@pytest.mark.parametrize(
    ("overrides", "tolerance"),
    [
        ((), 1e-5),
        (("data.mask_documents=true",), 1e-5),
        (("precision=bf16",), 0.03),
        (("precision=bf16", "data.mask_documents=true"), 0.03),
        (("precision=fp16",), 0.01),
        pytest.param(("precision=fp8",), 0.03, marks=HAS_FP8),
        pytest.param(("precision=fp8", "compile=true"), 0.03, marks=HAS_FP8),
        pytest.param(("precision=fp8", "compile=true", "recompute.mode=selective"), 0.03, marks=HAS_FP8),
        (("precision=bf16", "compile=true"), 0.03),
        (("compile=true",), 1e-5),
        (("compile=true", "data.mask_documents=true", "precision=bf16"), 0.03),
        (("optimizer.kind=muon", "optimizer.lr=0.01"), 1e-3),
        (("optimizer.state_dtype=bf16",), 1e-3),
        (("recompute.mode=full",), 1e-5),
        (("optimizer.kind=sgd",), 1e-5),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else str(value),
)
def test_training_is_that_of_the_cpu(data, tmp_path, overrides, tolerance):
    plain = tuple(one for one in overrides if not one.startswith(("precision", "compile", "recompute")))
    expected = losses(run(make_config(data, tmp_path / "cpu", *plain)))
    found = trained(data, tmp_path / "gpu", *overrides)
    assert found.keys() == expected.keys()
    for step, loss in found.items():
        assert loss == pytest.approx(expected[step], rel=tolerance), step


def test_a_run_goes_on_to_the_bit(data, tmp_path):
    settings = ("device=cuda", "precision=bf16", "optimizer.kind=muon", "optimizer.lr=0.01")
    whole = losses(run(make_config(data, tmp_path / "whole", *settings)))
    trained_half = make_config(data, tmp_path / "half", *settings, "num_steps=3", "schedule_steps=6")
    run(trained_half)
    found = losses(run(make_config(data, tmp_path / "half", *settings, "schedule_steps=6")))
    assert {step: found[step] for step in (4, 5, 6)} == {step: whole[step] for step in (4, 5, 6)}


def test_torchrun_starts_a_rank_on_a_gpu(data, tmp_path):
    from groundup.core.config import to_yaml

    config = make_config(data, tmp_path / "run", "device=cuda", "deterministic=false")
    (tmp_path / "run.yaml").write_text(to_yaml(config))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1"]
    command += ["-m", "groundup", "train", str(tmp_path / "run.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=os.environ, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = (tmp_path / "run" / "metrics.jsonl").read_bytes().splitlines()
    found = losses([orjson.loads(line) for line in lines])
    expected = trained(data, tmp_path / "alone")
    assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("name", ["gpt2", "llama", "stablelm"])
def test_greedy_texts_are_those_of_the_cpu(name):
    prompts = [[1, 2, 3], [40, 41, 42, 43, 44, 45, 46], [7], list(range(100, 130))]
    sampling = Sampling(temperature=0)
    expected = Engine(tiny_model(name)).generate(prompts, sampling=sampling, max_new_tokens=24)
    loaded = tiny_model(name)
    loaded.model.cuda()
    engine = Engine(loaded)
    found = engine.generate(prompts, sampling=sampling, max_new_tokens=24)
    assert [one.ids for one in found] == [one.ids for one in expected]
    for prompt, one in zip(prompts, found, strict=True):  # alone, and without a cache
        assert engine.generate([prompt], sampling=sampling, max_new_tokens=24)[0].ids == one.ids
        ids = list(prompt)
        with torch.inference_mode(), evaluating(loaded.model):
            for expected_id in one.ids:
                hidden_D = loaded.model(torch.tensor([ids], device="cuda"))[0, -1:]
                ids.append(int(lm_head(loaded.model, hidden_D, 300).argmax()))
                assert ids[-1] == expected_id


def test_half_precision_generates_on_a_gpu():
    loaded = tiny_model("llama")
    loaded.model.cuda()
    for dtype in (torch.bfloat16, torch.float16):
        found = Engine(loaded, dtype=dtype).generate(
            [[1, 2, 3]] * 5, sampling=Sampling(temperature=0), max_new_tokens=8
        )
        assert len({tuple(one.ids) for one in found}) == 1 and len(found[0].ids) == 8


@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-4), ("bf16", 0.05)])
def test_preferences_are_learned_as_on_a_cpu(tmp_path, precision, tolerance):
    preferences.write_base_and_pairs(tmp_path)
    settings = ("num_steps=4", "validation.interval=4")
    on_cpu = preferences.train(preferences.config(tmp_path, tmp_path / "cpu", *settings))
    on_gpu = preferences.train(
        preferences.config(
            tmp_path,
            tmp_path / "gpu",
            *settings,
            "device=cuda",
            "deterministic=false",
            f"precision={precision}",
        )
    )
    assert [record["kind"] for record in on_gpu] == [record["kind"] for record in on_cpu]
    for expected, found in zip(on_cpu, on_gpu, strict=True):
        for name in ("loss", "log_prob_chosen", "log_prob_rejected"):
            assert found[name] == pytest.approx(expected[name], rel=tolerance), (found["step"], name)
