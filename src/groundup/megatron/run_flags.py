"""From Megatron-LM's flags of a run (optimizer, precision, memory, reports, checkpoints) to ours."""

from typing import Any

from groundup.megatron.begin_from import Beginning
from groundup.megatron.data_flags import has_validation
from groundup.megatron.model_flags import legacy_or_core
from groundup.megatron.setting_tree import Settings, refusal
from groundup.models import ModelConfig

_STYLES = {2021: "megatron", 2023: "megatron_2023", 2026: "megatron_core"}
_DTYPES = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "fp8": "bfloat16"}


def put_optimizer(settings: Settings) -> None:
    """Sets optimizer, weight decay, precision and loss scale.

    Raises:
        ConfigError: Flags contradict each other.
    """
    given = settings.given
    settings.put("optimizer.kind", "adamw" if given["optimizer"] == "adam" else "sgd", "optimizer")
    settings.put("optimizer.lr", given["lr"], "lr")
    if given["optimizer"] == "sgd":
        if given.values.get("weight_decay"):
            raise refusal("--weight-decay: SGD here has none", "Give --weight-decay 0, or --optimizer adam.")
        settings.put("optimizer.momentum", given["sgd_momentum"], "sgd_momentum")
    else:
        for name in ("beta1", "beta2", "eps"):
            settings.put(f"optimizer.{name}", given[f"adam_{name}"], f"adam_{name}")
        _put_weight_decay(settings)
    _put_precision(settings)
    settings.put("loss_scale.window", int(given["loss_scale_window"]), "loss_scale_window")
    if scale := given["loss_scale"]:
        settings.put("loss_scale.initial", scale, "loss_scale")
        settings.put("loss_scale.minimum", scale, "loss_scale")
        settings.put("loss_scale.window", 1 << 40, "loss_scale")  # steps, after which it would grow


def _put_precision(settings: Settings) -> None:
    given = settings.given
    if given["fp16"] and given["bf16"]:
        raise refusal("--fp16 and --bf16 are both given", "Give one.")
    precision = next((name for name in ("fp16", "bf16") if given[name]), "fp32")
    settings.put("precision", precision, "fp16", "bf16")
    if not given["fp8_format"] and not given["fp8_hybrid"]:
        return
    if given["fp8_format"] == "e4m3":
        raise refusal("--fp8-format e4m3: gradients here are e5m2", "Give --fp8-format hybrid.")
    if given["fp8_recipe"] not in ("delayed", "tensorwise"):
        raise refusal(
            f"--fp8-recipe {given['fp8_recipe']}: a tensor has one scale here",
            "Give --fp8-recipe tensorwise.",
        )
    if precision != "bf16":
        raise refusal("--fp8-format: what is not in fp8 is in bf16 here", "Give --bf16 with it.")
    settings.put("precision", "fp8", "fp8_format", "fp8_hybrid", "fp8_recipe")


def put_memory(settings: Settings) -> None:
    """Sets what is recomputed."""
    given = settings.given
    mode = "full" if given["checkpoint_activations"] else given["recompute_granularity"]
    mode = mode or ("selective" if given["recompute_activations"] else "none")
    names = ("recompute_granularity", "recompute_activations", "checkpoint_activations")
    if given["recompute_method"] == "block" and mode == "full":
        per_stage = max(1, (given["num_layers"] or 1) // given["pipeline_model_parallel_size"])
        chosen = given["recompute_num_layers"]
        mode = mode if chosen else "none"
        settings.put(
            "recompute.every",
            max(1, round(per_stage / chosen)) if chosen else 1,
            "recompute_num_layers",
            "recompute_method",
        )
    settings.put("recompute.mode", mode, *names)


def put_reports(settings: Settings) -> None:
    """Sets validation, log and trackers."""
    given = settings.given
    interval = given["eval_interval"] if given["eval_iters"] and has_validation(settings) else 0
    settings.put("validation.interval", interval or 0, "eval_interval", "eval_iters", "split")
    tree = settings.tree
    micro_batches = tree["global_batch_size"] // tree["micro_batch_size"]
    batches = 0 if given["full_validation"] else given["eval_iters"] * micro_batches
    settings.put("validation.num_batches", batches, "eval_iters", "global_batch_size", "full_validation")
    settings.put("log.style", _STYLES[given.generation], source=given.of_generation)
    if project := given["wandb_project"]:
        settings.put("log.wandb", True, "wandb_project")
        settings.put("log.project", project, "wandb_project")
        settings.put("log.run_name", given["wandb_exp_name"] or "", "wandb_exp_name")


def put_checkpoints(settings: Settings, model: ModelConfig, beginning: Beginning, num_steps: int) -> None:
    """Sets the run folder, what the run begins with, and what is written for Megatron-LM."""
    given = settings.given
    settings.put("run_dir", beginning.run_dir, "save")
    if beginning.path is not None:
        settings.put("start.path", beginning.path, "load", "pretrained_checkpoint")
        settings.put("start.state", beginning.state, "load", "finetune", "no_load_optim")
    settings.put("checkpoint.interval", given["save_interval"] or num_steps, "save_interval")
    if keep := given["save_retain_interval"]:
        settings.put("checkpoint.keep_every", keep, "save_retain_interval")
    copies: dict[str, tuple[Any, ...]] = {
        "tp": (given["tensor_model_parallel_size"], "tensor_model_parallel_size"),
        "pp": (given["pipeline_model_parallel_size"], "pipeline_model_parallel_size"),
        "names": (legacy_or_core(model), "num_layers"),
        "dtype": (_DTYPES[settings.tree["precision"]], "fp16", "bf16"),
        "moments": (not given["no_save_optim"], "no_save_optim"),
        "vocab_multiple": (given["make_vocab_size_divisible_by"], "make_vocab_size_divisible_by"),
    }
    for key, (value, *names) in copies.items():
        settings.put(f"checkpoint.megatron.{key}", value, *names)


def _put_weight_decay(settings: Settings) -> None:
    given = settings.given
    style = given["weight_decay_incr_style"]
    start, end = given["start_weight_decay"], given["end_weight_decay"]
    if style == "constant":
        if start is not None or end is not None:
            raise refusal(
                "--start-weight-decay and --end-weight-decay without --weight-decay-incr-style",
                "Add linear or cosine of the latter, or give --weight-decay alone.",
            )
        settings.put("optimizer.weight_decay", given["weight_decay"], "weight_decay")
        return
    if start is None or end is None:
        raise refusal(f"--weight-decay-incr-style {style} wants --start-weight-decay and --end-weight-decay")
    settings.put("optimizer.weight_decay", end, "end_weight_decay")
    settings.put("optimizer.weight_decay_start", start, "start_weight_decay")
    settings.put("optimizer.weight_decay_shape", style, "weight_decay_incr_style")
