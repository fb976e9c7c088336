"""The config of a training run."""

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from groundup.checkpoint.megatron.copies import MegatronCopies
from groundup.core.config import config
from groundup.core.config_class import NotNegative, NotNegativeFloat, Positive
from groundup.launch.watchdog import WatchdogConfig
from groundup.models import ModelConfig
from groundup.parallel.activation_checkpointing import Recompute
from groundup.parallel.device import LossScaleConfig, PrecisionName
from groundup.parallel.float8_linear import require_float8
from groundup.parallel.layout import Layout
from groundup.tokens.sampling.batch_ramp import BatchRamp, BatchSizes
from groundup.tokens.sampling.data_config import DataConfig
from groundup.train.adamw import AdamW
from groundup.train.ema import EmaConfig
from groundup.train.log_config import LogConfig
from groundup.train.measurements import EvalConfig, SampleConfig, ValidationConfig
from groundup.train.optim import Optimizer
from groundup.train.schedules import LrSchedule
from groundup.train.schedules.cosine import Cosine
from groundup.train.schedules.warmup import LengthIn, ScheduleUnit, Steps, Warmup
from groundup.train.stability.spike_guard import NoSpikeGuard, RollbackGuard, SpikeGuardConfig

if TYPE_CHECKING:
    from groundup.train.learning import Learning


@config
class StartConfig:
    """The weights that a new run begins with.

    Attributes:
        path: A model with the weights: a Hugging Face folder, a run folder or one of its checkpoints.
            Without ``model`` in the config, the architecture is taken from it too.
        state: Restore all that the checkpoint holds: optimizer, step, position in the data, RNG states.
        anew: Begin anew in a run folder whose checkpoints are all damaged; they are set aside with their
            metrics. A run with a sound checkpoint continues from it all the same.
    """

    path: Path | None = None
    state: bool = False
    anew: bool = False

    def __post_init__(self) -> None:
        """Refuses a state without a checkpoint."""
        if self.state and self.path is None:
            raise ValueError("start.state goes with start.path, the checkpoint to go on from")


@config
class CheckpointConfig:
    """When the run's state is saved.

    Attributes:
        interval: Steps between checkpoints; the last step is always saved.
        keep_last: Newest sound checkpoints that stay on disk; damaged ones stay too.
        keep_every: Interval in steps of checkpoints that stay for good; 0 for none.
        asynchronous: Write while training continues; takes host memory for a copy of the state.
        megatron: What is written for Megatron-LM beside them.
    """

    interval: Positive = 1000
    keep_last: Positive = 2
    keep_every: NotNegative = 0
    asynchronous: bool = False
    megatron: MegatronCopies = MegatronCopies()


@config
class TrainConfig:
    """A training run.

    Attributes:
        run_dir: Folder that everything is written to; if it holds a checkpoint, the run continues.
        model: Architecture.
        data: Tokens to train on.
        num_steps: Optimizer steps.
        micro_batch_size: Samples of one forward and backward pass.
        global_batch_size: Samples of one optimizer step; a multiple of the micro-batch.
        batch_ramp: Smaller global batches in the first steps.
        layout: Degrees of parallelism over the ranks.
        optimizer: With its learning rate.
        schedule: Learning rate after the warm-up.
        warmup: Length of the linear warm-up of the learning rate.
        schedule_steps: Horizon of the schedule in steps; 0 for ``num_steps``.
        schedule_samples: Horizon of the schedule in samples, where it counts these; 0 for ``schedule_steps``.
        schedule_unit: What the learning rate of an update is a function of: "steps", its number counted
            from 1; or "samples", those of the updates before it, as in Megatron-LM, whose first update
            takes the rate of 0 samples.
        clip_grad_norm: Largest global norm of gradients; 0 for no clipping.
        precision: Format of matrix products; ``auto`` takes the best of the 16-bit ones that the hardware
            has, else fp32. ``fp8`` is bf16 with the products of layers in 8 bits, on GPUs from Ada and
            Hopper on: quicker for wide models, slower for narrow ones.
        loss_scale: Dynamic loss scale of fp16.
        device: ``auto`` takes a GPU where there is one.
        threads: CPU threads of a step; 0 finds a number while training, but keeps PyTorch's own where
            OMP_NUM_THREADS is set, with several ranks, and in deterministic runs.
        recompute: Activation checkpointing.
        compile: Compile each layer with torch.compile; falls back to eager with a warning. None: on a GPU,
            where no layer is shared among ranks.
        deterministic: Use only kernels whose result is the same in every run.
        seed: Of initial weights, sample order and dropout.
        start: Weights to begin with.
        log: Reporting.
        validation: Held-out loss while training.
        eval: Scores of tasks while training.
        sample: Completions while training.
        checkpoint: Saving.
        ema: Moving average of the weights.
        spike_guard: What becomes of steps whose loss or gradient norm is far above those before.
        watchdog: When to end ranks that make no progress.
    """

    run_dir: Path
    model: ModelConfig
    data: DataConfig
    num_steps: Positive
    micro_batch_size: Positive = 8
    global_batch_size: Positive = 8
    batch_ramp: BatchRamp = BatchRamp()
    layout: Layout = Layout()
    optimizer: Optimizer = AdamW()
    schedule: LrSchedule = Cosine()
    warmup: Warmup = Steps()
    schedule_steps: NotNegative = 0
    schedule_samples: NotNegative = 0
    schedule_unit: ScheduleUnit = "steps"
    clip_grad_norm: NotNegativeFloat = 1.0
    precision: PrecisionName = "auto"
    loss_scale: LossScaleConfig = LossScaleConfig()
    device: Literal["auto", "cpu", "cuda"] = "auto"
    threads: NotNegative = 0
    recompute: Recompute = Recompute()
    compile: bool | None = None
    deterministic: bool = False
    seed: NotNegative = 1234
    start: StartConfig = StartConfig()
    log: LogConfig = LogConfig()
    validation: ValidationConfig = ValidationConfig()
    eval: EvalConfig = EvalConfig()
    sample: SampleConfig = SampleConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    ema: EmaConfig = EmaConfig()
    spike_guard: SpikeGuardConfig = NoSpikeGuard()
    watchdog: WatchdogConfig = WatchdogConfig()

    def __post_init__(self) -> None:
        """Checks the settings against each other."""
        if self.global_batch_size % self.micro_batch_size:
            raise ValueError(
                f"global_batch_size {self.global_batch_size} is not a multiple of"
                f" micro_batch_size {self.micro_batch_size}"
            )
        for size in self.batch_sizes.every:
            if size % self.micro_batch_size:
                raise ValueError(
                    f"batch_ramp has steps of {size} samples, which is not a multiple of micro_batch_size"
                    f" {self.micro_batch_size}"
                )
        if self.precision == "fp8":
            tokens = self.micro_batch_size * self.data.sequence_length // self.layout.cp
            require_float8(self.model, tp=self.layout.tp, tokens=tokens)
        if isinstance(self.spike_guard, RollbackGuard) and self.data.order != "seeded":
            raise ValueError(
                'spike_guard.kind rollback needs data.order "seeded":'
                " Megatron-LM's order ends with the samples that were planned"
            )
        if 0 < self.data.planned_samples < self.num_samples:
            raise ValueError(
                f"data.planned_samples {self.data.planned_samples} is less than the {self.num_samples}"
                f" samples of num_steps {self.num_steps}"
            )
        if self.data.sequence_length > self.model.max_sequence_length:
            raise ValueError(
                f"data.sequence_length {self.data.sequence_length} is longer than"
                f" model.max_sequence_length {self.model.max_sequence_length}"
            )
        if self.sample.interval and self.layout.ranks_of_a_copy > 1:
            raise ValueError("sample.interval needs layout.tp, cp and pp 1: generation runs on one rank yet")
        if self.schedule_samples and self.schedule_unit == "steps":
            raise ValueError("schedule_samples needs schedule_unit samples; else set schedule_steps")
        if self.warmup_length >= self.horizon and self.warmup_length > 0:
            length = f"warmup.{self.warmup.kind}"  # the field of each kind is named as the kind is
            horizons = ("schedule_samples", "schedule_steps", "num_steps")
            horizon = next(name for name in horizons if getattr(self, name))
            raise ValueError(
                f"{length} makes the warm-up {self.warmup_length:g} {self.schedule_unit} long, and the"
                f" schedule ends after {horizon}={getattr(self, horizon)}; lower {length} or raise {horizon}"
            )

    def completed(self) -> "TrainConfig":
        """Returns the config with what model and data decide; that of a fine-tuning decides something."""
        return self

    def learning(self) -> "Learning":
        """Returns the data, the loss and the trainable parameters; a fine-tuning has others."""
        from groundup.train.learning import PRETRAINING

        return PRETRAINING

    @property
    def batch_sizes(self) -> BatchSizes:
        """Global batch size of each step."""
        return BatchSizes(self.global_batch_size, self.batch_ramp)

    @property
    def num_samples(self) -> int:
        """Number of samples of the whole run."""
        return self.batch_sizes.after(self.num_steps)

    @property
    def length_in(self) -> LengthIn:
        """Lengths in the schedule's unit."""
        return LengthIn(self.schedule_unit, self.batch_sizes, self.data.sequence_length)

    @property
    def samples_of_a_validation(self) -> int:
        """Samples that one validation takes; 0 for the whole split."""
        return self.validation.num_batches * self.micro_batch_size

    @property
    def planned_samples(self) -> dict[str, int]:
        """Samples of the whole run by what they are for, as ``open_splits`` takes them."""
        interval, each = self.validation.interval, self.samples_of_a_validation
        return {
            "num_samples": self.num_samples,
            "validation_samples": (self.num_steps // interval + 1) * each if interval else 0,
            "test_samples": each if interval else 0,
        }

    @property
    def whole_length(self) -> float:
        """Length of the run in the schedule's unit: that which was planned, where samples count."""
        planned = self.data.planned_samples if self.schedule_unit == "samples" else 0
        return planned or self.length_in.steps(self.num_steps)

    @property
    def horizon(self) -> float:
        """The position at which the schedule ends, in its unit."""
        if self.schedule_steps and not self.schedule_samples:
            return self.length_in.steps(self.schedule_steps)
        return self.schedule_samples or self.whole_length

    @property
    def warmup_length(self) -> float:
        """Length of the warm-up in the schedule's unit."""
        return self.warmup.length(self.horizon, self.length_in)
