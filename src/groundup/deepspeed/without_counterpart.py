"""Settings of DeepSpeed that groundup has not: which of them are harmless, and what there is instead.

The keys are those of its documentation (docs/_pages/config-json.md) and of ``zero/config.py``.
"""

import difflib
from collections.abc import Iterator, Mapping
from typing import Any

from groundup.core.config_sources import leaves
from groundup.core.errors import ConfigError
from groundup.deepspeed.deepspeed_settings import Settings

_BUFFERS = "sizes and timing of exchanges are PyTorch's own (FSDP2)"
_REPORTS = "metrics.jsonl and the log always hold losses, rates, memory and TFLOP/s"
_CHECKPOINTS = "a checkpoint loads into any layout, and is checked"
_SAME = "does not change what is trained"

_HARMLESS = {
    "zero_optimization": {
        _BUFFERS: "allgather_partitions allgather_bucket_size reduce_scatter reduce_bucket_size overlap_comm"
        " contiguous_gradients round_robin_gradients sub_group_size prefetch_bucket_size"
        " stage3_prefetch_bucket_size param_persistence_threshold stage3_param_persistence_threshold"
        " stage3_model_persistence_threshold max_live_parameters stage3_max_live_parameters"
        " max_reuse_distance stage3_max_reuse_distance stage3_module_granularity_threshold"
        " stage3_use_all_reduce_for_fetch_params stage3_allgather_sequential"
        " stage3_partition_stream_chunk_size model_persistence_threshold module_granularity_threshold"
        " use_all_reduce_for_fetch_params allgather_sequential partition_stream_chunk_size"
        " use_multi_rank_bucket_allreduce memory_efficient_linear"
        " legacy_stage1 mics_hierarchical_params_gather cpu_offload_use_pin_memory parameter_alignment"
        " compute_grad_norm",
        _CHECKPOINTS: "elastic_checkpoint load_from_fp32_weights pipeline_loading_checkpoint"
        " gather_16bit_weights_on_model_save stage3_gather_16bit_weights_on_model_save"
        " stage3_gather_fp16_weights_on_model_save",
        _SAME: "ignore_unused_parameters override_module_apply log_trace_cache_warnings enable_sanity_checks"
        " leaf_module save_muon_momentum_buffer_in_memory zero_quantized_nontrainable_weights",
    },
    "fp16": {_SAME: "auto_cast fused_mode"},
    "bf16": {_SAME: "immediate_grad_update auto_cast check_grad_overflow"},
    "torch_autocast": {_SAME: "lower_precision_safe_modules"},
    "optimizer": {_SAME: "legacy_fusion"},
    "optimizer.params": {_SAME: "torch_adam fused foreach bias_correction set_grad_none capturable"},
    "scheduler.params": {_SAME: "last_batch_iteration"},
    "activation_checkpointing": {
        "recomputed activations are kept as PyTorch keeps them": "contiguous_memory_optimization"
        " number_checkpoints synchronize_checkpoint_boundary profile partition_activations"
    },
    "tensorboard": {"events lie in the run folder": "output_path job_name"},
    "wandb": {"W&B's variables hold (WANDB_ENTITY, WANDB_RUN_GROUP, WANDB_BASE_URL)": "team group host"},
    "": {
        _REPORTS: "wall_clock_breakdown memory_breakdown dump_state flops_profiler comms_logger csv_monitor"
        " comet monitor timers",
        _CHECKPOINTS: "checkpoint nebula load_universal_checkpoint use_node_local_storage",
        _BUFFERS: "prescale_gradients gradient_predivide_factor disable_allgather allgather_size"
        " sparse_gradients seq_parallel_comm_data_type seq_parallel_communication_data_type aio"
        " graph_harvesting",
        _SAME: "zero_allow_untested_optimizer zero_force_ds_cpu_optimizer dataloader_drop_last"
        " use_data_before_expert_parallelism hybrid_engine managed_gradient_accumulation vocabulary_size"
        " gradient_accumulation_dtype",
    },
}
"""Section -> what there is instead -> names."""

_OFFLOAD = (
    "weights and optimizer state stay on the device; layout.zero, layout.tp and layout.pp spread them, and"
    " optimizer.state_dtype=bf16 halves AdamW's"
)
_MATTERS = {
    "zero_optimization.offload_optimizer": _OFFLOAD,
    "zero_optimization.offload_param": _OFFLOAD,
    "zero_optimization.cpu_offload": _OFFLOAD,
    "zero_optimization.cpu_offload_param": _OFFLOAD,
    "zero_optimization.zenflow": _OFFLOAD,
    "zero_optimization.zero_quantized_weights": "weights travel unquantized",
    "zero_optimization.zero_quantized_gradients": "gradients travel unquantized",
    "zero_optimization.zeropp_loco_param": "gradients travel unquantized",
    "zero_optimization.zero_hpz_partition_size": "see layout.shard, which keeps weights within so many ranks",
    "fp16.consecutive_hysteresis": "hysteresis is restored after a window without overflow",
    "fp16.fp16_master_weights_and_grads": "weights and their gradients are kept in fp32",
    "bf16.bf16_master_weights_and_grads": "weights and their gradients are kept in fp32",
    "activation_checkpointing.cpu_checkpointing": "kept activations stay on the device",
    "optimizer.params.freeze_step": "there is no 1-bit optimizer",
    "optimizer.params.amsgrad": "there is no AMSGrad",
    "gradient_allreduce_op": "gradients are averaged",
    "pipeline": "a pipeline is layout.pp, with layout.pipeline",
    "amp": "precision decides (fp16 or bf16)",
    "elasticity": "global_batch_size is the same on any number of ranks that divides it",
    "autotuning": "`groundup autotune` measures layouts and micro-batches",
    "curriculum_learning": "samples have one length",
    "data_efficiency": "samples have one length and all layers see all tokens",
    "progressive_layer_drop": "all layers are trained",
    "compression_training": "there is no compression while training",
    "quantize_training": "there is no compression while training",
    "weight_quantization": "there is no compression while training",
    "sparse_attention": "attention is dense",
    "eigenvalue": "there is no such measure",
    "compile": "compile: true compiles each layer by torch.compile",
}
"""What matters: key or section -> what there is instead."""

TRANSLATED = (
    *("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"),
    *("gradient_clipping", "steps_per_print", "communication_data_type", "fp32_allreduce"),
    *("optimizer.type", "optimizer.params.lr", "optimizer.params.betas", "optimizer.params.eps"),
    *("optimizer.params.weight_decay", "optimizer.params.momentum", "optimizer.params.adam_w_mode"),
    *("optimizer.params.nesterov", "optimizer.params.dampening"),
    "optimizer.params.max_grad_norm",
    *("scheduler.type", "scheduler.params.warmup_min_lr", "scheduler.params.warmup_max_lr"),
    *("scheduler.params.warmup_num_steps", "scheduler.params.warmup_type"),
    *("scheduler.params.total_num_steps", "scheduler.params.warmup_min_ratio"),
    "scheduler.params.cos_min_ratio",
    *("fp16.enabled", "fp16.loss_scale", "fp16.initial_scale_power", "fp16.loss_scale_window"),
    *("fp16.hysteresis", "fp16.min_loss_scale", "bf16.enabled", "bf16.bf16_optimizer_states"),
    *("torch_autocast.enabled", "torch_autocast.dtype"),
    *("zero_optimization.stage", "zero_optimization.mics_shard_size"),
    *("activation_checkpointing.partition_activations", "activation_checkpointing.cpu_checkpointing"),
    *("activation_checkpointing.number_checkpoints", "tensorboard.enabled"),
    *("wandb.enabled", "wandb.project"),
    *("tensor_parallel.autotp_size", "sequence_parallel_size", "data_types.grad_accum_dtype"),
)
"""Keys that become settings of ours."""


def note_the_rest(settings: Settings) -> None:
    """Notes every key that was not read; refuses those that DeepSpeed does not know either.

    Raises:
        ConfigError: With all of those, each with the nearest known key.
    """
    harmless = {
        f"{section}.{name}".lstrip("."): text
        for section, texts in _HARMLESS.items()
        for text, names in texts.items()
        for name in names.split()
    }
    known = {*harmless, *_MATTERS, *TRANSLATED}
    unknown, seen = [], set()
    for key, value in leaves(settings.given):
        if key in TRANSLATED and key not in settings.read and key.startswith(("optimizer.", "scheduler.")):
            settings.note(key, "has no effect with this type", is_harmless=True)
        if key in TRANSLATED or (key in settings.read and key not in harmless):
            continue
        found = next((prefix for prefix in _prefixes(key) if prefix in harmless or prefix in _MATTERS), "")
        if not found:
            if value != {} and not key.startswith("_"):  # as people write remarks
                unknown.append(f"{settings.where(key)}: unknown key {key}. {_nearest(key, known)}".rstrip())
        elif found not in seen and found not in settings.read:
            seen.add(found)
            if not _is_off(settings.value(found)):
                text = harmless.get(found) or _MATTERS[found]
                settings.note(found, text, is_harmless=found in harmless)
    if unknown:
        raise ConfigError(
            unknown[0] if len(unknown) == 1 else "\n  ".join([f"{len(unknown)} unknown keys:", *unknown])
        )


def _prefixes(key: str) -> Iterator[str]:
    while key:
        yield key
        key = key.rpartition(".")[0]


def _is_off(value: Any) -> bool:
    """Whether a feature is switched off: false, 0, 1 rank, "none", ``{"enabled": false}``, no device."""
    if isinstance(value, Mapping):
        return value.get("enabled") is False or value.get("device", "cpu") in ("none", None)
    return value in (False, None, 0, 1, "none", "None", "mean") and value is not True


def _nearest(key: str, known: set[str]) -> str:
    """Asks for the known key of the same section, else of any, that is most like this one."""
    section, _, name = key.rpartition(".")
    siblings = {other for other in known if other.rpartition(".")[0] == section}
    found = difflib.get_close_matches(key, siblings, n=1, cutoff=0.6)
    if not found:
        same_name = [other for other in sorted(known) if other.rpartition(".")[2] == name]
        found = same_name[:1] or difflib.get_close_matches(key, known, n=1, cutoff=0.6)
    return f"Did you mean {found[0]}?" if found else ""
