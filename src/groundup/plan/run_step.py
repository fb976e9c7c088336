"""From the config of a run to the step that is planned."""

import dataclasses
from typing import Literal

from groundup.core.errors import ConfigError
from groundup.parallel.device import choose_device, choose_precision
from groundup.parallel.layout import Layout
from groundup.plan.device_table import ACCELERATORS, Accelerator
from groundup.plan.layer_memory import FP32, MicroBatch
from groundup.plan.rank_memory import Step
from groundup.train.config import TrainConfig

PrecisionOf = Literal["fp32", "bf16", "fp16"]
_CAME_WITH = {"bf16": "Ampere", "fp8": "Ada and Hopper"}


def planned_precision(config: TrainConfig, device: Accelerator | None) -> PrecisionOf:
    """Returns the format of matrix products on the planned device, which need not be here.

    A run in fp8 is planned as in bf16: it takes less memory, and in wide models less time.

    Raises:
        ConfigError: The device has no such format.
        MachineError: The run is for this CPU, which has no such format.
    """
    name = config.precision
    if config.device == "cpu":
        name = choose_precision(name, choose_device("cpu")).name
    if name == "auto":
        return "bf16" if device is None or device.has_bf16 else "fp16"
    if device and name in _CAME_WITH:
        _require(device, name)
    return "bf16" if name == "fp8" else name


def _require(device: Accelerator, name: str) -> None:
    def has(one: Accelerator) -> bool:
        return one.has_fp8 if name == "fp8" else one.has_bf16

    if not has(device):
        others = ", ".join(one.name for one in ACCELERATORS if has(one))
        raise ConfigError(
            f"{device.name} has no {name} units (they came with {_CAME_WITH[name]})",
            where=f"precision {name}",
            fix=f"Set precision=auto. With {name}: {others}.",
        )


def step_of_run(config: TrainConfig, layout: Layout, precision: PrecisionOf) -> Step:
    """Returns the step of most of a run, after any ramp of its batch.

    Args:
        config: Of the run.
        layout: Resolved, and checked by ``validate_layout``.
        precision: Of matrix products.
    """
    return Step(
        model=config.model,
        optimizer=config.optimizer,
        layout=layout,
        recompute=config.recompute,
        batch=MicroBatch(
            rows=config.micro_batch_size,
            length=config.data.sequence_length,
            tp=layout.tp,
            cp=layout.cp,
            itemsize=FP32 if precision == "fp32" else 2,
            on_gpu=config.device != "cpu",
            masks_documents=config.data.mask_documents,
        ),
        num_micro_batches=config.global_batch_size // config.micro_batch_size // layout.dp,
        averages=config.ema.decay > 0,
    )


def with_layout(step: Step, layout: Layout, *, rows: int, global_batch_size: int) -> Step:
    """Returns a step of the same global batch under another layout, or with other micro-batches."""
    return dataclasses.replace(
        step,
        layout=layout,
        batch=dataclasses.replace(step.batch, rows=rows, tp=layout.tp, cp=layout.cp),
        num_micro_batches=global_batch_size // rows // layout.dp,
    )
