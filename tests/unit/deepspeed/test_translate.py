"""DeepSpeed's configs, as they are published, as settings of a run."""

import json

import pytest
import yaml

from groundup.cli.app import run
from groundup.cli.run_config import run_config
from groundup.core.config import to_dict
from groundup.core.errors import ConfigError
from groundup.deepspeed.translate import translate

MEGATRON = """{
  // as of DeepSpeedExamples' Megatron-LM
  "train_batch_size": 64,
  "train_micro_batch_size_per_gpu": 4,
  "steps_per_print": 100,
  "zero_optimization": {"stage": 2, "reduce_bucket_size": 5e8, "overlap_comm": true, "cpu_offload": true},
  "optimizer": {"type": "Adam", "params": {"lr": 1.5e-4, "max_grad_norm": 0.5, "betas": [0.9, 0.95]}},
  "fp16": {"enabled": true, "loss_scale": 0, "initial_scale_power": 12, "loss_scale_window": 500},
  /* not all
     of it */
  "activation_checkpointing": {"partition_activations": true, "profile": false},
  "wall_clock_breakdown": true,
  "tensorboard": {"enabled": true, "output_path": "out"}
}"""

TRAINER = """{
\t"fp16": {"enabled": "auto", "loss_scale": 0, "initial_scale_power": 16},
\t"bf16": {"enabled": "auto"},
\t"optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto",
\t                                          "weight_decay": "auto"}},
\t"scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": "auto", "warmup_min_lr": "auto",
\t              "warmup_max_lr": "auto", "warmup_num_steps": "auto"}},
\t"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"},
\t                      "offload_param": {"device": "none"},
\t                      "stage3_max_live_parameters": 1e9, "reduce_bucket_size": "auto"},
\t"gradient_accumulation_steps": "auto", "gradient_clipping": "auto", "train_batch_size": "auto",
\t"train_micro_batch_size_per_gpu": "auto", "steps_per_print": 2000, "wall_clock_breakdown": false
}"""


@pytest.fixture
def translated(tmp_path):
    def translated(content, ranks=None):
        path = tmp_path / "ds.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return translate(path, ranks=ranks)

    return translated


def test_a_config_of_megatron_with_deepspeed(translated, tmp_path):
    settings = translated(MEGATRON)
    assert settings.tree == {
        "micro_batch_size": 4,
        "global_batch_size": 64,
        "precision": "fp16",
        "loss_scale": {"initial": 4096.0, "minimum": 1, "window": 500, "hysteresis": 2},
        "layout": {"zero": 2},
        "optimizer": {
            "kind": "adamw",
            "lr": 1.5e-4,
            "beta1": 0.9,
            "beta2": 0.95,
            "eps": 1e-8,
            "weight_decay": 0.0,
        },
        "clip_grad_norm": 0.5,
        "log": {"interval": 100, "tensorboard": True},
        "recompute": {"mode": "full"},
    }
    file = tmp_path / "ds.json"
    assert settings.origins["layout.zero"] == f"{file}:6 (zero_optimization.stage)"
    assert settings.origins["loss_scale.hysteresis"] == f"{file}:8 (fp16.hysteresis: DeepSpeed's default)"
    assert settings.origins["recompute.mode"].startswith(f"{file}:11")
    harmless = {note.key for note in settings.notes if note.is_harmless}
    assert harmless == {
        *("zero_optimization.reduce_bucket_size", "zero_optimization.overlap_comm", "wall_clock_breakdown"),
        "tensorboard.output_path",
    }
    (offload,) = [note for note in settings.notes if not note.is_harmless]
    assert str(offload).startswith(
        f"{file}:6: zero_optimization.cpu_offload: weights and optimizer state stay"
    )


def test_what_the_trainer_would_fill_in_stays_open(translated):
    settings = translated(TRAINER)
    assert settings.tree["layout"] == {"zero": 3}
    assert settings.tree["optimizer"] == {"kind": "adamw"}
    assert settings.tree["schedule"] == {"kind": "linear", "min_ratio": 0.0}
    assert "warmup" not in settings.tree and "precision" not in settings.tree
    assert settings.left_open["optimizer.lr"] == "scheduler.params.warmup_max_lr"
    assert {"global_batch_size", "micro_batch_size", "precision", "warmup.steps", "clip_grad_norm"} <= set(
        settings.left_open
    )
    (offload,) = [note for note in settings.notes if not note.is_harmless and "offload" in note.key]
    assert offload.key == "zero_optimization.offload_optimizer"  # offload_param is off


@pytest.mark.parametrize(
    ("wandb", "expected", "left"),
    [
        ({"enabled": True, "group": "zoo"}, {"wandb": True, "project": "deepspeed"}, {"wandb.group"}),
        ({"enabled": True, "project": "cats"}, {"wandb": True, "project": "cats"}, set()),
        ({"project": "cats"}, None, set()),
    ],
)
def test_weights_and_biases(translated, wandb, expected, left):
    """As DeepSpeed names the project; what its own variables say is noted."""
    settings = translated({"wandb": wandb})
    assert settings.tree.get("log") == expected
    assert {note.key for note in settings.notes if "wandb" in note.key} == left


@pytest.mark.parametrize(
    ("scheduler", "expected"),
    [
        (
            {"type": "WarmupLR", "params": {"warmup_max_lr": 0.002, "warmup_num_steps": 10}},
            {"schedule": {"kind": "constant"}, "warmup": {"kind": "steps", "steps": 10}, "lr": 0.002},
        ),
        (
            {"type": "WarmupDecayLR", "params": {"total_num_steps": 500, "warmup_type": "linear"}},
            {
                "schedule": {"kind": "linear", "min_ratio": 0.0},
                "warmup": {"kind": "steps", "steps": 1000},
                "schedule_steps": 500,
                "lr": 0.001,
            },
        ),
        (
            {"type": "WarmupCosineLR", "params": {"total_num_steps": 500, "warmup_num_steps": 7}},
            {
                "schedule": {"kind": "cosine", "min_ratio": 1e-4},
                "warmup": {"kind": "steps", "steps": 7},
                "schedule_steps": 500,
                "lr": 0.001,
            },
        ),
    ],
)
def test_schedulers(translated, scheduler, expected):
    content = {"optimizer": {"type": "AdamW", "params": {"lr": 0.001}}, "scheduler": scheduler}
    settings = translated(content)
    found = {name: settings.tree.get(name) for name in ("schedule", "warmup", "schedule_steps")}
    assert {**found, "lr": settings.tree["optimizer"]["lr"]} == {"schedule_steps": None, **expected}
    by_log = [note for note in settings.notes if note.key.endswith("warmup_type")]
    assert len(by_log) == (scheduler["params"].get("warmup_type") != "linear")


@pytest.mark.parametrize(
    ("total", "micro", "accumulation", "ranks", "expected"),
    [
        (64, 4, 2, None, (64, 4, 8)),
        (64, 4, 2, 8, (64, 4, 8)),
        (64, 4, None, None, (64, 4, None)),
        (64, None, 4, 2, (64, 8, None)),
        (None, 4, 2, 8, (64, 4, None)),
        (None, 4, None, 1, (4, 4, None)),
        (64, None, None, 2, (64, 32, None)),
        ("auto", 4, "auto", None, (None, 4, None)),
    ],
)
def test_two_batch_sizes_give_the_third(translated, total, micro, accumulation, ranks, expected):
    names = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    given = zip(names, (total, micro, accumulation), strict=True)
    tree = translated({name: value for name, value in given if value}, ranks).tree
    found = (tree.get("global_batch_size"), tree.get("micro_batch_size"), tree.get("layout", {}).get("dp"))
    assert found == expected


BATCH = '"train_batch_size": 64, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": '


@pytest.mark.parametrize(
    ("content", "ranks", "message"),
    [
        (
            "{" + BATCH + "3}",
            None,
            "64 is not 4 x 3 x any number of them. Make train_batch_size a multiple of 12",
        ),
        ("{" + BATCH + "2}", 4, "64 is not 4 x 2 x 4 but 8. Start 8 data-parallel ranks (layout.dp=8)"),
        ('{"train_batch_size": 64, "train_micro_batch_size_per_gpu": 5}', 1, "64 is no multiple of 5 x 1"),
        ('{"train_batch_size": 64}', None, "Give the number of data-parallel ranks: --ranks N"),
        ('{"train_batch_size": -1}', 1, "train_batch_size is -1, and should be a number of at least 1"),
        ('{\n"fp16": {"enabled" true}}', 1, "ds.json:2: not valid JSON: expecting ':' delimiter (column 20)"),
        ('{"fp16": {}, \n"fp16": {}}', 1, "ds.json:2: fp16 is given twice, first on line 1"),
        ('{"gradient_acumulation_steps": 2}', 1, "Did you mean gradient_accumulation_steps?"),
        ('{"zero_optimization": {"stge": 2}}', 1, "Did you mean zero_optimization.stage?"),
        ('{"a": 1,\n"b": 2}', 1, "2 unknown keys:"),
        ('{"zero_optimization": {"stage": 4}}', 1, "is 4, and should be 0, 1, 2 or 3"),
        ('{"fp16": {"enabled": true}, "bf16": {"enabled": true}}', 1, "are both true. Choose one"),
        ('{"optimizer": {"type": "OneBitAdam"}}', 1, "no counterpart with the same updates"),
        ('{"optimizer": {"type": "Adam", "params": {"weight_decay": 0.1, "adam_w_mode": false}}}', 1, "L2"),
        ('{"scheduler": {"type": "WarmupDecay"}}', 1, "Did you mean 'WarmupDecayLR'?"),
        ('{"scheduler": {"type": "WarmupDecayLR", "params": {}}}', 1, "total_num_steps is missing"),
        ('{"fp16": true}', 1, "fp16 is True, and should be an object"),
        ("[]", 1, "one object"),
    ],
)
def test_what_cannot_be_is_refused_with_its_place(translated, content, ranks, message):
    with pytest.raises(ConfigError) as refused:
        translated(content, ranks)
    assert message in str(refused.value)
    assert "ds.json" in str(refused.value)


def test_a_fixed_loss_scale(translated):
    settings = translated({"fp16": {"enabled": True, "loss_scale": 128}})
    assert settings.tree["loss_scale"] == {"initial": 128.0, "minimum": 128.0, "window": 2**62}
    assert [note.key for note in settings.notes if not note.is_harmless] == [
        "fp16.loss_scale",
        "gradient_clipping",
    ]


def test_complete_batch_sizes_tell_the_ranks_to_start(tmp_path, monkeypatch):
    words = ["preset=tiny", f"run_dir={tmp_path}", "data.path=x"]
    path = tmp_path / "ds.json"
    path.write_text("{" + BATCH + "2}")
    assert run_config(None, words, deepspeed=path).value.layout.dp == 8
    path.write_text("{" + BATCH + "16}")
    assert run_config(None, words, deepspeed=path).value.layout.dp == 1
    with pytest.raises(ConfigError, match="64 is not 4 x 16 x 2 but 1"):
        run_config(None, [*words, "layout.dp=2"], deepspeed=path)
    path.write_text('{"train_micro_batch_size_per_gpu": 4, "tensor_parallel": {"autotp_size": 2}}')
    assert run_config(None, words, deepspeed=path).value.global_batch_size == 4
    assert run_config(None, [*words, "layout.dp=2"], deepspeed=path).value.global_batch_size == 8
    for name, value in {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 8, "LOCAL_WORLD_SIZE": 8}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "29500")
    assert run_config(None, words, deepspeed=path).value.global_batch_size == 16  # dp 4 x tp 2


def test_settings_of_another_kind_are_named(translated):
    content = {
        "optimizer": {"type": "AdamW", "params": {"momentum": 0.9}},
        "fp16": {"enabled": False, "initial_scale_power": 16},
        "gradient_clipping": 1,
    }
    settings = translated(content)
    assert [str(note).partition(": ")[2] for note in settings.notes] == [
        "optimizer.params.momentum: has no effect with this type"
    ]
    assert "loss_scale" not in settings.tree


def test_the_printed_yaml_is_the_config_that_trains(tmp_path, capsys):
    (tmp_path / "ds.json").write_text(MEGATRON)
    base = [f"run_dir={tmp_path / 'run'}", "preset=gpt2-124m", "data.path=x", "num_steps=1000"]
    direct = run_config(None, base, deepspeed=tmp_path / "ds.json")
    with pytest.raises(SystemExit) as ended:
        run(["deepspeed-config", str(tmp_path / "ds.json")])
    assert not ended.value.code
    out, err = capsys.readouterr()
    (tmp_path / "printed.yaml").write_text(out)
    printed = run_config(tmp_path / "printed.yaml", base)
    assert to_dict(direct.value) == to_dict(printed.value)
    assert yaml.safe_load(out)["layout"] == {"zero": 2}
    assert "no counterpart: " in err and "left out, harmless: wall_clock_breakdown" in err
    assert direct.origins["clip_grad_norm"].endswith("ds.json:7 (optimizer.params.max_grad_norm)")


def test_it_wins_over_the_file_and_overrides_win_over_it(tmp_path):
    (tmp_path / "ds.json").write_text('{"gradient_clipping": 0.5, "steps_per_print": 7}')
    (tmp_path / "run.yaml").write_text(
        "preset: tiny\nrun_dir: r\ndata: {path: x}\nclip_grad_norm: 2\nlog: {interval: 3}\nnum_steps: 4\n"
    )
    found = run_config(tmp_path / "run.yaml", ["log.interval=9"], deepspeed=tmp_path / "ds.json")
    assert (found.value.clip_grad_norm, found.value.log.interval, found.value.num_steps) == (0.5, 9, 4)
    assert found.origins["log.interval"] == "command line (log.interval=9)"
    assert found.origins["clip_grad_norm"].endswith("ds.json:1 (gradient_clipping)")
