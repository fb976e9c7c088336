"""Runs by Megatron-LM's flags: what they leave behind, and what they go on from."""

import argparse
import shlex
import shutil
from pathlib import Path

import orjson
import pytest
import torch
import yaml

from groundup.checkpoint.formats import open_lazy
from groundup.checkpoint.megatron.loss_scale import loss_scale_entry, read_loss_scale
from groundup.checkpoint.megatron.ranks import RANK_FILE, TRACKER
from groundup.cli.megatron import megatron
from groundup.cli.train import train
from groundup.core.errors import CheckpointError, ConfigError
from tests.runs import losses, make_data

FLAGS = shlex.split(
    "--num-layers 2 --hidden-size 32 --num-attention-heads 2 --max-position-embeddings 32 --seq-length 32"
    " --micro-batch-size 2 --global-batch-size 4 --train-iters 4 --lr 1e-2 --min-lr 1e-3"
    " --lr-decay-style cosine --lr-warmup-iters 1 --attention-dropout 0 --hidden-dropout 0"
    " --log-interval 1 --save-interval 2 --eval-interval 2 --eval-iters 1 --split 80,10,10"
    " --deterministic-mode --data-path data_text_document"
)


def pretrain(*flags: str) -> None:
    megatron("pretrain_gpt", *FLAGS, *flags)


def records(save: str) -> list[dict]:
    return [orjson.loads(line) for line in Path(save, "groundup/metrics.jsonl").read_bytes().splitlines()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Data, and in ``ck`` a run of 4 steps that saved at the second and the fourth."""
    folder = tmp_path_factory.mktemp("megatron")
    make_data(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        pretrain("--save", "ck", "--load", "ck")
    return folder


@pytest.fixture(autouse=True)
def _inside(folder, monkeypatch):
    monkeypatch.chdir(folder)


def copy_of(step: int, name: str) -> str:
    """A folder with one checkpoint for Megatron-LM alone, without a tokenizer."""
    shutil.rmtree(name, ignore_errors=True)
    shutil.copytree(f"ck/iter_{step:07d}", f"{name}/iter_{step:07d}")
    Path(name, TRACKER).write_text(str(step))
    return name


def test_the_folder_holds_what_megatron_would_leave():
    assert Path("ck", TRACKER).read_text() == "4"
    for step in (2, 4):
        with torch.serialization.safe_globals([argparse.Namespace]):
            content = torch.load(f"ck/iter_{step:07d}/mp_rank_00/{RANK_FILE}", weights_only=True)
        assert content["iteration"] == step
        assert content["args"].consumed_train_samples == 4 * step
        assert content["optimizer"]["param_groups"][0]["step"] == step
        assert content["opt_param_scheduler"]["num_steps"] == 4 * step
    assert not list(Path("ck").glob(".groundup*"))
    ours, theirs = open_lazy(Path("ck/groundup")), open_lazy(Path("ck"))
    assert ours.config == theirs.config
    for name, weight in ours.read_weights():
        assert torch.equal(weight, theirs.weights[name].read())


def test_the_first_update_has_the_rate_of_no_samples():
    rates = [record["lr"] for record in records("ck") if record["kind"] == "train"]
    assert rates == pytest.approx([0.0, 1e-2, 7.75e-3, 3.25e-3])


def test_a_checkpoint_of_megatron_goes_on_as_if_it_had_not_stopped():
    pretrain("--save", "on", "--load", copy_of(2, "stopped"))
    whole = losses(records("ck"))
    assert losses(records("on")) == {step: whole[step] for step in (3, 4)}
    assert Path("on", TRACKER).read_text() == "4"


def test_the_folder_that_megatron_left_goes_on_in_place():
    name = copy_of(2, "same")
    with pytest.raises(ConfigError, match=f"Go on from them with --load {name}, or name another --save"):
        pretrain("--save", name)
    pretrain("--save", name, "--load", name)
    assert losses(records(name))[4] == losses(records("ck"))[4]
    assert {path.name for path in Path(name).glob("iter_*")} == {"iter_0000002", "iter_0000004"}


def test_where_both_have_a_checkpoint_ours_goes_on_unless_theirs_is_newer(capsys):
    pretrain("--save", "ck", "--load", "ck", "--print-config")
    assert "run_dir: ck/groundup " in capsys.readouterr().out
    copy_of(4, "newer")
    shutil.copytree("ck/groundup", "newer/groundup")
    shutil.rmtree("newer/groundup/checkpoints/step_0000004")
    pretrain("--save", "newer", "--load", "newer", "--print-config")
    printed = capsys.readouterr().out
    assert "run_dir: newer/groundup_2 " in printed
    assert "path: newer " in printed and "state: true" in printed


def test_a_longer_run_goes_on_as_a_new_one(capsys):
    flags = [*FLAGS, "--save", "ck", "--load", "ck", "--print-config"]
    flags[flags.index("--train-iters") + 1] = "6"
    megatron("pretrain_gpt", *flags)
    printed = yaml.safe_load(capsys.readouterr().out)
    assert printed["run_dir"] == "ck/groundup_2"
    assert printed["start"]["path"] == "ck/groundup/checkpoints/step_0000004"
    assert printed["start"]["state"] is True


def test_finetuning_takes_the_weights_alone(capsys):
    pretrain("--save", "tuned", "--load", "ck", "--finetune", "--print-config")
    assert "state: false" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="--finetune begins a run, and ck holds one"):
        pretrain("--save", "ck", "--load", "ck", "--finetune")


def test_one_checkpoint_of_several_and_the_model_from_it(capsys):
    flags = list(FLAGS)
    for name in ("--num-layers", "--hidden-size", "--max-position-embeddings"):
        place = flags.index(name)
        del flags[place : place + 2]
    load = ["--load", copy_of(2, "given"), "--ckpt-step", "2", "--use-checkpoint-args"]
    megatron("pretrain_gpt", *flags, "--save", "other", *load, "--print-config")
    printed = capsys.readouterr().out
    assert "hidden_size: 32" in printed and "# --use-checkpoint-args (hidden_size)" in printed
    assert "path: given/iter_0000002" in printed
    megatron(
        "pretrain_gpt", *flags, "--save", "ck", "--load", "ck", "--use-checkpoint-args", "--print-config"
    )
    assert "hidden_size: 32" in capsys.readouterr().out


def test_what_is_not_there(capsys, caplog):
    pretrain("--save", "new", "--load", "nowhere", "--print-config")
    assert "path: null" in capsys.readouterr().out
    assert "--load nowhere holds no checkpoint: the run begins with random weights" in caplog.text
    with pytest.raises(CheckpointError, match="--load nowhere: holds no checkpoint"):
        pretrain("--save", "new", "--load", "nowhere", "--exit-on-missing-checkpoint")
    with pytest.raises(CheckpointError, match="holds no usable checkpoint"):
        pretrain("--save", "new", "--load", "data_text_document.idx")
    pretrain("--save", "new", "--load", "nowhere", "--pretrained-checkpoint", "ck", "--print-config")
    assert "state: false" in capsys.readouterr().out


def test_a_checkpoint_without_an_optimizer_begins_at_the_first_step(capsys, caplog):
    name = copy_of(2, "bare")
    path = Path(name, "iter_0000002/mp_rank_00", RANK_FILE)
    with torch.serialization.safe_globals([argparse.Namespace]):
        content = torch.load(path, weights_only=True)
    del content["optimizer"]
    torch.save(content, path)
    pretrain("--save", "new", "--load", name, "--print-config")
    assert "state: false" in capsys.readouterr().out
    assert "holds no state of an optimizer: weights alone, from step 0" in caplog.text


def test_the_printed_config_trains_the_same(capsys):
    pretrain("--save", "again", "--load", "again", "--print-config")
    Path("again.yaml").write_text(capsys.readouterr().out)
    train(Path("again.yaml"))
    assert losses(records("again")) == losses(records("ck"))
    assert Path("again", TRACKER).read_text() == "4"


def test_a_config_of_deepspeed_wins_over_the_flags(capsys):
    given = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 8,
        "zero_optimization": {"stage": 2},
        "gradient_clipping": 0.5,
    }
    Path("ds.json").write_bytes(orjson.dumps(given))
    pretrain("--save", "new", "--deepspeed", "--deepspeed_config", "ds.json", "--print-config")
    printed = yaml.safe_load(capsys.readouterr().out)
    assert (printed["micro_batch_size"], printed["global_batch_size"]) == (1, 8)
    assert (printed["layout"]["zero"], printed["clip_grad_norm"]) == (2, 0.5)
    assert printed["optimizer"]["lr"] == 1e-2


def test_a_loss_scale_goes_there_and_back():
    state = {"scale": 65536.0, "steps_without_overflow": 7, "hysteresis": 1}
    entry = loss_scale_entry(state)
    entry["grad_scaler"]["scale"] = entry["grad_scaler"]["scale"].read()
    assert read_loss_scale({"optimizer": entry}) == state
    assert loss_scale_entry({}) == {}
    for damage in ({"scale": float("nan")}, {"growth_tracker": -1}, {"hysteresis_tracker": None}):
        assert read_loss_scale({"optimizer": {"grad_scaler": entry["grad_scaler"] | damage}}) == {}
