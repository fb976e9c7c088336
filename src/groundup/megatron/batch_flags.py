"""From Megatron-LM's flags of ranks, batches, length and learning rate to ours, by its own rules."""

from groundup.launch.env import RankInfo
from groundup.megatron.setting_tree import Settings, refusal
from groundup.tokens.sampling.batch_ramp import BatchRamp, BatchSizes

_SHARDING = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
_STYLES = {"linear": "linear", "cosine": "cosine", "inverse-square-root": "inverse_sqrt", "WSD": "wsd"}
_WSD_SHAPES = {"exponential": "exponential", "linear": "linear", "cosine": "cosine", "minus_sqrt": "sqrt"}


def put_layout(settings: Settings, rank: RankInfo | None) -> int:
    """Sets the layout over the ranks; returns the number of data-parallel ones.

    Args:
        settings: With the flags.
        rank: Of this process; None where ranks are started from here.

    Raises:
        ConfigError: The ranks do not divide.
    """
    given = settings.given
    tp, pp, cp = (given[f"{name}_parallel_size"] for name in ("tensor_model", "pipeline_model", "context"))
    asked = given["nproc_per_node"]
    if rank and asked not in (None, rank.local_world_size):
        raise refusal(
            f"--nproc-per-node {asked}: torchrun or srun has started {rank.local_world_size} here",
            "Leave it out.",
        )
    world_size = rank.world_size if rank else asked or tp * pp * cp
    if min(tp, pp, cp) < 1 or world_size % (tp * pp * cp):
        raise refusal(
            f"{world_size} ranks do not divide by tensor {tp} x pipeline {pp} x context {cp} parallel ones",
            "Start as many as their product, or a multiple: torchrun --nproc-per-node,"
            " or --nproc-per-node without torchrun.",
        )
    dp: int = world_size // (tp * pp * cp)
    settings.put("layout.dp", dp, "nproc_per_node", "tensor_model_parallel_size")
    zero = 1 if given["use_distributed_optimizer"] else given["zero_stage"] or 0
    zero = _SHARDING.get(given["data_parallel_sharding_strategy"] or "", zero)
    fsdp = ("use_torch_fsdp2", "use_megatron_fsdp", "use_custom_fsdp")
    if any(given[name] for name in fsdp) and "data_parallel_sharding_strategy" not in given:
        zero = 3
    settings.put(
        "layout.zero",
        zero,
        "use_distributed_optimizer",
        "zero_stage",
        "data_parallel_sharding_strategy",
        *fsdp,
    )
    if given["grad_reduce_in_bf16"]:
        settings.put("layout.reduce_dtype", "bf16", "grad_reduce_in_bf16")
    return dp


def put_batches(settings: Settings, dp: int) -> tuple[BatchSizes, int]:
    """Sets batch sizes and length; returns the sizes and the number of steps.

    Raises:
        ConfigError: A flag is missing, or two contradict each other.
    """
    given = settings.given
    micro: int | None = given["micro_batch_size"]
    if not micro or micro < 1:
        raise refusal("--micro-batch-size is missing, or less than 1", "Give it, 1 or more.")
    full: int = given["global_batch_size"] or micro * dp
    if full % (micro * dp):
        raise refusal(
            f"--global-batch-size {full} is not a multiple of {micro} (--micro-batch-size) times {dp}"
            " data-parallel ranks",
        )
    settings.put("global_batch_size", full, "global_batch_size", "micro_batch_size")
    ramp = BatchRamp()
    if words := given["rampup_batch_size"]:
        ramp = _ramp(words)
        for name in ("start", "increment", "samples"):
            settings.put(f"batch_ramp.{name}", getattr(ramp, name), "rampup_batch_size")
    try:
        sizes = BatchSizes(full, ramp)
    except ValueError as error:
        raise refusal(f"--rampup-batch-size: {error}") from None
    steps, samples = given["train_iters"], given["train_samples"]
    if bool(steps) == bool(samples):
        raise refusal(
            f"{'both' if steps else 'neither'} of --train-iters and --train-samples given", "Give one."
        )
    if not steps:
        steps = sizes.steps_within(samples)
        settings.put("num_steps", steps, "train_samples", "global_batch_size")
        if given["dataloader_type"] != "cyclic":
            settings.put("data.planned_samples", samples, "train_samples")
    _put_pipeline(settings, micro_batches=full // (micro * dp))
    return sizes, steps


def put_schedule(settings: Settings, sizes: BatchSizes, num_steps: int) -> None:
    """Sets the learning rate with its schedule and warm-up, counted in samples as there.

    Raises:
        ConfigError: ``--lr`` is missing, or flags contradict each other.
    """
    given = settings.given
    if not given["lr"]:
        raise refusal("--lr is missing, or 0", "Give it, for example --lr 1.5e-4.")
    for unit, other in (("iters", "samples"), ("samples", "iters")):
        stray = [f"lr_{part}_{other}" for part in ("decay", "warmup", "wsd_decay")]
        if given[f"train_{unit}"] and (found := [name for name in stray if given[name]]):
            raise refusal(
                f"--train-{unit} with {', '.join(given.typed[name] for name in found)}",
                f"Count all lengths in {unit}.",
            )
    settings.put("schedule_unit", "samples", "lr_decay_style")
    style = given["lr_decay_style"]
    if style == "exponential":
        raise refusal("--lr-decay-style exponential is of 2019", f"Choose of {', '.join(_STYLES)}, constant.")
    settings.put("schedule.kind", _STYLES.get(style, "constant"), "lr_decay_style")
    if style != "constant":
        settings.put("schedule.min_ratio", given["min_lr"] / given["lr"], "min_lr", "lr")
    if given["lr_decay_iters"]:
        settings.put("schedule_steps", given["lr_decay_iters"], "lr_decay_iters")
    elif samples := given["lr_decay_samples"] or given["train_samples"]:
        settings.put("schedule_samples", samples, "lr_decay_samples", "train_samples")
    _put_warmup(settings)
    if style == "WSD":
        _put_stable_phase(settings, sizes, num_steps)


def _put_warmup(settings: Settings) -> None:
    given = settings.given
    lengths = [given[f"lr_warmup_{kind}"] for kind in ("fraction", "iters", "samples")]
    if given["lr_warmup_fraction"] is not None and (lengths[1] or lengths[2]):
        raise refusal("the warm-up is given twice: --lr-warmup-fraction and another", "Give one.")
    fraction, steps, samples = lengths
    if fraction is not None:
        settings.put("warmup.kind", "fraction", "lr_warmup_fraction")
        settings.put("warmup.fraction", fraction, "lr_warmup_fraction")
    elif samples:
        settings.put("warmup.kind", "samples", "lr_warmup_samples")
        settings.put("warmup.samples", samples, "lr_warmup_samples")
    else:
        settings.put("warmup.kind", "steps", "lr_warmup_iters")
        settings.put("warmup.steps", steps, "lr_warmup_iters")


def _put_stable_phase(settings: Settings, sizes: BatchSizes, num_steps: int) -> None:
    """The decay at the end, which Megatron-LM counts back from the end of the schedule."""
    given = settings.given
    horizon = given["lr_decay_samples"] or given["train_samples"]
    horizon = horizon or sizes.after(given["lr_decay_iters"] or num_steps)
    decay = given["lr_wsd_decay_samples"] or sizes.full * (given["lr_wsd_decay_iters"] or 0)
    if not decay:
        raise refusal("--lr-decay-style WSD wants --lr-wsd-decay-iters or --lr-wsd-decay-samples")
    warmup = given["lr_warmup_samples"] or sizes.full * given["lr_warmup_iters"]
    if given["lr_warmup_fraction"] is not None:
        warmup = given["lr_warmup_fraction"] * horizon
    if not 0 < decay <= horizon - warmup:
        raise refusal(f"the decay of WSD, {decay} samples, does not fit between warm-up and end")
    settings.put(
        "schedule.decay_fraction",
        decay / (horizon - warmup),
        "lr_wsd_decay_iters" if given["lr_wsd_decay_iters"] else "lr_wsd_decay_samples",
    )
    settings.put("schedule.shape", _WSD_SHAPES[given["lr_wsd_decay_style"]], "lr_wsd_decay_style")


def _put_pipeline(settings: Settings, *, micro_batches: int) -> None:
    given = settings.given
    pp = given["pipeline_model_parallel_size"]
    stages = given["num_virtual_stages_per_pipeline_rank"]
    if layers := given["num_layers_per_virtual_pipeline_stage"]:
        per_rank = (given["num_layers"] or 0) // pp
        if not per_rank or per_rank % layers:
            raise refusal(f"{layers} layers a virtual stage do not divide the {per_rank} of a pipeline rank")
        stages = per_rank // layers
    if pp == 1:
        return
    if stages and stages > 1:
        virtual = ("num_layers_per_virtual_pipeline_stage", "num_virtual_stages_per_pipeline_rank")
        settings.put("layout.pipeline.schedule", "interleaved", *virtual)
        settings.put("layout.pipeline.stages_per_rank", stages, *virtual)
    elif micro_batches < pp:  # which 1F1B would need to keep its stages busy; the result is the same
        settings.put("layout.pipeline.schedule", "gpipe", "global_batch_size", "micro_batch_size")


def _ramp(words: list[str]) -> BatchRamp:
    try:
        start, increment, samples = (int(word) for word in words)
        return BatchRamp(start=start, increment=increment, samples=samples)
    except ValueError as error:
        raise refusal(
            f"--rampup-batch-size {' '.join(words)}: {error}",
            "It takes start, increment and samples, for example 16 8 300000.",
        ) from None
