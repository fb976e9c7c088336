"""The state of an AdamW as Megatron-LM's Adam keeps it, so that it goes on where the run stopped.

Parameters are numbered in the order in which Megatron-LM's modules name them, first those with weight decay
(``get_param_groups`` in megatron/optimizer/__init__.py); in 16-bit training the weights in fp32 stand beside
the state (``Float16OptimizerWithFloat16Params.state_dict`` in megatron/optimizer/optimizer.py). Both apex's
and PyTorch's Adam load it: the one wants the number of updates by group, the other by parameter. So it is
in the last versions with legacy modules; of the newer megatron.core the order is not vouched for, so nothing
is written under its names.
"""

from collections.abc import Mapping
from typing import Any

import torch

from groundup.checkpoint.lazy import LazyModel, LazyTensor, in_memory
from groundup.checkpoint.megatron.optimizer import ENTRIES
from groundup.checkpoint.megatron.parameter_names import Naming

_KINDS = {*ENTRIES, "step"}

Share = Mapping[str, LazyTensor]
"""What one rank holds, by their names."""


def why_without_moments(stored: LazyModel, naming: Naming) -> str:
    """Why the optimizer's state of a model cannot be written; empty where it can."""
    if naming != "legacy":
        return f"Megatron-LM's optimizers number parameters, in an order that is not known for {naming} names"
    entries = {name.rpartition("/")[2] for name in stored.moments}
    if entries - _KINDS:
        return f"the optimizer was not AdamW: it keeps {', '.join(sorted(entries))}"
    lacking = [name for name in stored.weights for kind in _KINDS if f"{name}/{kind}" not in stored.moments]
    if lacking:
        return f"some weights have no moments, such as {lacking[0]}"
    if not stored.step:
        return "the number of training steps is not known, without which Megatron-LM loads weights alone"
    if len({int(stored.moments[f"{name}/step"].read()) for name in stored.weights}) > 1:
        return "weights were updated in different numbers of steps"
    return ""


def adam_args(stored: LazyModel) -> dict[str, Any]:
    """The arguments by which Megatron-LM builds the same Adam: the run's own, or else its defaults."""
    ours = {"lr": "lr", "adam_beta1": "beta1", "adam_beta2": "beta2", "adam_eps": "eps"}
    ours["weight_decay"] = "weight_decay"
    defaults = {"lr": 0.0, "adam_beta1": 0.9, "adam_beta2": 0.999, "adam_eps": 1e-8, "weight_decay": 0.01}
    values = {
        theirs: stored.optimizer.get(name, stored.megatron_args.get(theirs, defaults[theirs]))
        for theirs, name in ours.items()
    }
    return {**values, "optimizer": "adam", "use_distributed_optimizer": False}


def optimizer_entry(
    *, weights: Share, moments: Mapping[str, Share], masters: Share, step: int, args: Mapping[str, Any]
) -> dict[str, Any]:
    """The ``optimizer`` of one rank's file.

    Args:
        weights: Its parameters in their order.
        moments: Of the same, by "exp_avg" and "exp_avg_sq".
        masters: Its parameters in fp32; empty where they are that already.
        step: Updates done.
        args: See ``adam_args``.
    """
    decayed = [name for name in weights if len(weights[name].shape) > 1 and not name.endswith(".bias")]
    groups = [decayed, [name for name in weights if name not in set(decayed)]]
    groups = [group for group in groups if group]
    order = [name for group in groups for name in group]
    state = {
        number: {
            "step": in_memory(torch.tensor(float(step))),
            **{kind: moments[kind][name] for kind in ENTRIES},
        }
        for number, name in enumerate(order)
    }
    param_groups = []
    for names in groups:
        decays = float(names is groups[0] and bool(decayed))
        param_groups.append(
            {
                "lr": args["lr"],
                "bias_correction": True,
                "betas": (args["adam_beta1"], args["adam_beta2"]),
                "eps": args["adam_eps"],
                "weight_decay": args["weight_decay"] * decays,
                "wd_mult": decays,
                "lr_mult": 1.0,
                "step": step,
                "params": [order.index(name) for name in names],
            }
        )
    inner = {"state": state, "param_groups": param_groups}
    if not masters:
        return inner
    return {
        "optimizer": inner,
        "fp32_from_fp16_params": [[masters[name] for name in group] for group in groups],
    }


def scheduler_entry(stored: LazyModel, args: Mapping[str, Any]) -> dict[str, Any]:
    """The ``opt_param_scheduler``: where it stands. The rest is the new run's, by its --override option."""
    total = max(stored.samples, 1)
    kept = stored.megatron_args
    return {
        "max_lr": args["lr"],
        "lr_warmup_steps": 0,
        "num_steps": stored.samples,
        "lr_decay_style": kept.get("lr_decay_style", "constant"),
        "lr_decay_steps": total,
        "min_lr": kept.get("min_lr", 0.0),
        "start_wd": args["weight_decay"],
        "end_wd": args["weight_decay"],
        "wd_incr_style": "constant",
        "wd_incr_steps": total,
    }
