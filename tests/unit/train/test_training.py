"""The loop: learning, accumulation, resuming, refusing."""

import dataclasses
import json
import subprocess
import sys
import time

import pytest
import torch

from groundup.checkpoint.native.contents import read_checkpoint_manifest
from groundup.checkpoint.native.load import TensorGroup
from groundup.core.errors import CheckpointError, ConfigError, DataError, TrainingError
from groundup.parallel.compile import why_not_compiled
from groundup.tokens.dataset.dataset_manifest import manifest_path
from groundup.tokens.dataset.indexed import bin_path
from groundup.train.setup import build_run
from tests.runs import losses, make_config, make_data, run
from tests.tiny import tiny_tokenizer


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("data"))


def test_a_model_learns_and_the_run_folder_tells(data, tmp_path):
    config = make_config(data, tmp_path / "run", "num_steps=60", "optimizer.lr=1e-2", "log.interval=20")
    records = run(config)
    assert records[0]["loss"] > 3.0
    assert records[2]["loss"] < 2.5
    first = records[0]
    assert first["tokens"] == 20 * 4 * 32
    assert first["epoch"] == pytest.approx(80 / build_run(config).data.train.num_samples)
    for key in ("grad_norm", "lr", "tokens_per_second", "flops_per_second", "loss_scale", "memory_bytes"):
        assert first[key] > 0, key
    assert (tmp_path / "run" / "config.yaml").is_file()


@pytest.mark.parametrize(
    "overrides",
    [
        ("optimizer.kind=adamw", "model.dropout=0.1", "model.attention_dropout=0.1"),
        ("optimizer.kind=muon",),
        ("optimizer.kind=sgd", "optimizer.momentum=0.9"),
    ],
    ids=lambda overrides: overrides[0],
)
def test_kill_and_resume_gives_bit_identical_losses(data, tmp_path, overrides):
    whole = losses(run(make_config(data, tmp_path / "whole", *overrides)))
    first = make_config(data, tmp_path / "cut", *overrides)
    stopped = {}

    def kill_after_step_four(run_):  # after the checkpoint of step 3
        if run_.state.step == 4:
            stopped["at"] = run_.state.step
            raise KeyboardInterrupt
        return [""]

    with pytest.raises(KeyboardInterrupt):
        run(
            dataclasses.replace(first, sample=dataclasses.replace(first.sample, interval=1)),
            complete=kill_after_step_four,
        )
    assert stopped["at"] == 4
    assert losses(run(first)) == whole
    torch.manual_seed(7)  # a finished run, opened again, changes nothing
    assert losses(run(first)) == whole


def test_fp16_resumes_with_its_loss_scale(data, tmp_path, monkeypatch):
    monkeypatch.setattr("groundup.parallel.device.lacks", lambda name, device: "")
    overrides = ("precision=fp16", "loss_scale.window=2", "loss_scale.initial=1024")
    whole = run(make_config(data, tmp_path / "whole", *overrides))
    assert [record["loss_scale"] for record in whole if record["kind"] == "train"][-1] == 8192
    run(make_config(data, tmp_path / "cut", *overrides, "num_steps=3", "schedule_steps=6"))
    resumed = run(make_config(data, tmp_path / "cut", *overrides, "schedule_steps=6"))
    assert losses(resumed) == losses(whole)


def test_fp16_overflow_skips_the_step(data, tmp_path, monkeypatch):
    monkeypatch.setattr("groundup.parallel.device.lacks", lambda name, device: "")
    config = make_config(
        data, tmp_path / "run", "precision=fp16", "loss_scale.initial=1e30", "loss_scale.hysteresis=1"
    )
    before = {name: p.clone() for name, p in build_run(config).state.model.named_parameters()}
    run(dataclasses.replace(config, num_steps=2))
    folder = tmp_path / "run/checkpoints/step_0000002"
    state = read_checkpoint_manifest(folder).counts
    assert state.skipped_steps == 2
    assert state.samples == 8
    embedding = TensorGroup(folder, "model").read("embed.tokens.weight")
    assert torch.equal(embedding, before["embed.tokens.weight"][:300])


def test_every_factorization_of_the_global_batch_is_the_same_step(data, tmp_path):
    curves = [
        losses(
            run(
                make_config(
                    data,
                    tmp_path / str(size),
                    f"micro_batch_size={size}",
                    "optimizer.kind=sgd",
                    "optimizer.lr=0.5",
                )
            )
        )
        for size in (1, 2, 4)
    ]
    for curve in curves[1:]:
        assert curve == pytest.approx(curves[0], rel=1e-6)
    assert curves[0][6] < curves[0][1] - 0.1


def test_sigkill_loses_at_most_one_interval(data, tmp_path):
    """A real process is killed while it trains and saves; what is left resumes to the same losses."""
    whole = losses(run(make_config(data, tmp_path / "whole", "num_steps=40", "checkpoint.interval=2")))
    config = make_config(data, tmp_path / "run", "num_steps=40", "checkpoint.interval=2")
    code = (
        "import sys; from pathlib import Path; from tests.runs import make_config, run;"
        "run(make_config(Path(sys.argv[1]), Path(sys.argv[2]), 'num_steps=40', 'checkpoint.interval=2'))"
    )
    process = subprocess.Popen([sys.executable, "-c", code, data, tmp_path / "run"])
    while not list((tmp_path / "run").glob("checkpoints/step_*")):
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.wait()
    resumed = run(config)
    assert losses(resumed) == whole


def test_a_damaged_checkpoint_is_passed_over_by_name(data, tmp_path, caplog):
    config = make_config(data, tmp_path / "run")
    whole = losses(run(config))
    newest = tmp_path / "run/checkpoints/step_0000006/model.safetensors"
    content = bytearray(newest.read_bytes())
    content[-1] ^= 1
    newest.write_bytes(content)
    with caplog.at_level("WARNING", logger="groundup"):
        assert losses(run(config)) == whole
    assert "step_0000006: model.safetensors does not match its checksum" in caplog.text


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (("model.hidden_size=64",), "model.hidden_size was 32 and is 64"),
        (("seed=2",), "seed was 1234 and is 2"),
        (("optimizer.kind=sgd",), "optimizer.kind=sgd keeps nothing"),
        (("data.order=megatron",), "data.order was seeded and is megatron"),
        (("data.sequence_length=16",), "data.sequence_length was 32 and is 16"),
    ],
)
def test_a_run_folder_of_another_run_is_refused(data, tmp_path, overrides, expected):
    run(make_config(data, tmp_path / "run"))
    with pytest.raises(CheckpointError, match=expected):
        run(make_config(data, tmp_path / "run", *overrides))


def test_a_run_in_megatrons_order_resumes_and_keeps_its_length(data, tmp_path):
    whole = losses(run(make_config(data, tmp_path / "whole", "data.order=megatron")))
    assert whole != losses(run(make_config(data, tmp_path / "seeded")))
    config = make_config(data, tmp_path / "cut", "data.order=megatron")

    def stop(run_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(make_config(data, tmp_path / "cut", "data.order=megatron", "sample.interval=4"), complete=stop)
    assert losses(run(config)) == whole
    with pytest.raises(CheckpointError, match="num_steps was 6 and is 7"):
        run(make_config(data, tmp_path / "cut", "data.order=megatron", "num_steps=7"))


def test_data_without_a_manifest_needs_its_tokenizer_named(tmp_path):
    data = make_data(tmp_path)
    with_manifest = losses(run(make_config(data, tmp_path / "with")))
    manifest_path(data).unlink()
    with pytest.raises(DataError, match=r"data\.tokenizer"):
        run(make_config(data, tmp_path / "without"))
    named = f"data.tokenizer={tmp_path / 'data_tokenizer'}"
    assert losses(run(make_config(data, tmp_path / "named", named))) == with_manifest


def test_a_token_beyond_the_vocabulary_is_named(tmp_path):
    data = make_data(tmp_path)
    tokens = bytearray(bin_path(data).read_bytes())
    tokens[200:202] = (5000).to_bytes(2, "little")
    bin_path(data).write_bytes(tokens)
    config = make_config(data, tmp_path / "run", "num_steps=400")  # more than one epoch: it must come
    with pytest.raises(DataError, match=r"token 5000 at position \d+ of sample \d+ is outside the vocab"):
        run(config)


def test_another_tokenizer_than_the_manifests_is_refused(tmp_path):
    data = make_data(tmp_path)
    tiny_tokenizer().save(tmp_path / "other")
    with pytest.raises(DataError, match="was built with"):
        run(make_config(data, tmp_path / "run", f"data.tokenizer={tmp_path / 'other'}"))


def test_another_vocabulary_is_refused_with_the_right_one(data, tmp_path):
    with pytest.raises(ConfigError, match=r"Set model\.vocab_size=300"):
        run(make_config(data, tmp_path / "run", "model.vocab_size=301"))


def test_an_impossible_plan_is_refused_before_training(data, tmp_path):
    with pytest.raises(DataError, match=r"data\.max_epochs="):
        run(make_config(data, tmp_path / "run", "num_steps=100000", "data.max_epochs=1"))
    assert not (tmp_path / "run").exists()


def test_a_loss_that_is_not_finite_ends_the_run_and_names_the_step(data, tmp_path):
    with pytest.raises(TrainingError, match=r"step \d+, samples \d+ to \d+: the gradient norm is"):
        run(
            make_config(data, tmp_path / "run", "optimizer.kind=sgd", "optimizer.lr=1e30", "clip_grad_norm=0")
        )


def test_fp16_overflow_at_the_minimum_scale_ends_the_run(data, tmp_path, monkeypatch):
    monkeypatch.setattr("groundup.parallel.device.lacks", lambda name, device: "")
    scale = ("precision=fp16", "loss_scale.initial=1e30", "loss_scale.minimum=1e30")
    with pytest.raises(TrainingError, match=r"the gradient norm is (inf|nan) at loss scale 1e\+30"):
        run(make_config(data, tmp_path / "run", *scale))


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (("micro_batch_size=3",), "global_batch_size 4 is not a multiple of micro_batch_size 3"),
        (
            ("data.sequence_length=64",),
            r"data.sequence_length 64 is longer than model.max_sequence_length 32",
        ),
        (
            ("warmup.steps=6",),
            r"warmup.steps makes the warm-up 6 steps long, and the schedule ends after num_steps=6;"
            " lower warmup.steps or raise num_steps",
        ),
        (
            ("warmup.kind=tokens", "warmup.tokens=1280", "schedule_steps=5"),
            r"warmup.tokens makes the warm-up 10 steps long, and the schedule ends after schedule_steps=5;"
            " lower warmup.tokens or raise schedule_steps",
        ),
    ],
)
def test_contradicting_settings_are_refused(data, tmp_path, overrides, expected):
    with pytest.raises(ConfigError, match=expected):
        make_config(data, tmp_path / "run", *overrides)


def test_checkpoints_are_pruned_and_described(data, tmp_path):
    config = make_config(data, tmp_path / "run", "checkpoint.interval=1", "checkpoint.keep_last=2")
    run(config)
    folders = sorted(path.name for path in (tmp_path / "run/checkpoints").iterdir())
    assert folders == ["latest", "step_0000005", "step_0000006"]
    manifest = read_checkpoint_manifest(tmp_path / "run/checkpoints/latest")
    assert manifest.counts.step == 6
    assert manifest.counts.tokens == 6 * 4 * 32
    assert manifest.about.config["model"]["hidden_size"] == 32
    written = json.loads((tmp_path / "run/checkpoints/latest/manifest.json").read_text())
    assert written["counts"].keys() == {"step", "samples", "tokens", "skipped_steps"}
    assert written["about"].keys() == {"config", "tokenizer", "torch", "data", "bos_ids"}


def test_compile_gives_the_same_curve(data, tmp_path):
    eager = losses(run(make_config(data, tmp_path / "eager")))
    compiled = losses(run(make_config(data, tmp_path / "compiled", "compile=true", "deterministic=false")))
    assert compiled == pytest.approx(eager, rel=1e-4)


def test_without_a_compiler_training_goes_on_in_eager(data, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("shutil.which", lambda name: None)
    why_not_compiled.cache_clear()
    try:
        with caplog.at_level("WARNING", logger="groundup"):
            run(make_config(data, tmp_path / "run", "compile=true"))
    finally:
        why_not_compiled.cache_clear()
    assert "training without torch.compile: no C++ compiler is on the PATH" in caplog.text
