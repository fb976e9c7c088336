"""Runs a dumped step again on one process: is the outcome the same, and what is wrong with it?"""

import dataclasses
import math
from pathlib import Path

import torch
from torch import Tensor

from groundup.checkpoint.native.load import TensorGroup, load_into
from groundup.models import Model, build_model, evaluating
from groundup.parallel.apply import parallelize
from groundup.parallel.compile import is_compiled
from groundup.parallel.device import Precision, PrecisionName, choose_device, choose_precision
from groundup.parallel.float8_linear import changes_for
from groundup.parallel.grad_norm import total_norm
from groundup.parallel.layout import Layout
from groundup.parallel.mesh import ParallelMesh, init_distributed
from groundup.train.cpu import keep_freed_memory
from groundup.train.data_loader import Batch
from groundup.train.forward_backward import add_gradients, add_micro_batch_gradients
from groundup.train.optim import build_optimizers
from groundup.train.stability.nan_debug import Finding, find_not_finite, largest_weight
from groundup.train.stability.step_dump import StepDump, read_dump
from groundup.train.state import TrainState, random_states

ALLOWED = {"fp32": 1e-5, "bf16": 1e-2, "fp16": 1e-2, "fp8": 5e-2}
"""Largest relative difference of a loss or gradient norm of the same step elsewhere: by other kernels, or by
sums over ranks in another order."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SampleResult:
    """The outcome of one sample alone, without dropout.

    Attributes:
        index: Of the sample in the data.
        loss: Mean over its targets.
        grad_norm: Norm of the gradient of that mean.
    """

    index: int
    loss: float
    grad_norm: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Replay:
    """The outcome of a step that was run again.

    Attributes:
        loss: Mean over its targets.
        grad_norm: Before clipping.
        findings: First numbers that are not finite, of the weights and of each micro-batch.
        num_micro_batches: Of the step.
        largest_gradient: Its size and the parameter's name; empty where a gradient is not finite.
        largest_weight: Likewise.
    """

    loss: float
    grad_norm: float
    findings: list[Finding]
    num_micro_batches: int
    largest_gradient: str
    largest_weight: str


class Replayer:
    """The model and the batch of a step dump, ready to run.

    Args:
        dump: The step.
        device: Where to compute.
        precision: Instead of the run's; None for the run's.

    Raises:
        MachineError: The device or the precision is not here.
        CheckpointError: The weights are damaged.
    """

    def __init__(self, dump: StepDump, *, device: torch.device, precision: PrecisionName | None) -> None:
        if device.type == "cpu":
            keep_freed_memory()
        config = dump.config
        torch.use_deterministic_algorithms(config.deterministic)
        self.dump = dump
        self.precision: Precision = choose_precision(precision or dump.about.precision, device)  # type: ignore[arg-type]
        self._mesh: ParallelMesh = init_distributed(Layout(), None, device)
        self._model: Model = build_model(config.model, device=device).train()
        load_into(TensorGroup(dump.before, "model"), self._model.named_parameters(), config.model)
        parallelize(
            self._model,
            self._mesh,
            recompute=config.recompute,
            compile=is_compiled(config.compile, config.layout, device),
            precision=self.precision.autocast,
            adapt=changes_for(self.precision),
        )
        self._state = TrainState(
            model=self._model, optimizers=build_optimizers(self._model, config.optimizer), scaler=None
        )

    def run(self) -> Replay:
        """The step as it was, the shares of the run's data-parallel ranks one after the other."""
        facts, config = self.dump.about.facts, self.dump.config
        scale = facts.loss_scale / max(1, self.dump.batch.num_targets)
        total = torch.zeros((), device=self.precision.device)
        for share, rank in self._shares():
            random_states(self.dump.before, rank).restore()
            total += add_gradients(self._state, share, config, self.precision, self._mesh, scale=scale)[0]
        grad_norm = self._grad_norm() / facts.loss_scale
        sizes = {
            name: float(parameter.grad.abs().max()) / facts.loss_scale
            for name, parameter in self._model.named_parameters()
            if parameter.grad is not None
        }
        largest = max(sizes, key=sizes.__getitem__)
        self._model.zero_grad(set_to_none=True)
        findings = [] if math.isfinite(grad_norm) else self._findings(scale)
        shares = len(self._shares())
        size, name = largest_weight(self._model)
        return Replay(
            loss=float(total) / max(1, self.dump.batch.num_targets),
            grad_norm=grad_norm,
            findings=findings,
            num_micro_batches=shares * -(-facts.num_samples // shares // config.micro_batch_size),
            largest_gradient=f"{sizes[largest]:.3g} in {largest}"
            if all(map(math.isfinite, sizes.values()))
            else "",
            largest_weight=f"{size:.3g} in {name}",
        )

    def samples(self) -> list[SampleResult]:
        """Runs each sample of the step by itself."""
        results = []
        with evaluating(self._model):
            for number, sample in enumerate(self.dump.batch.split(1)):
                targets = max(1, sample.num_targets)
                loss = self._add(sample.to(self.precision.device), 1 / targets)
                results.append(
                    SampleResult(
                        index=self.dump.about.facts.first_sample + number,
                        loss=float(loss) / targets,
                        grad_norm=self._grad_norm(),
                    )
                )
                self._model.zero_grad(set_to_none=True)
        return results

    def _shares(self) -> list[tuple[Batch, int]]:
        """Those of the run's data-parallel ranks, each with the number of a rank that had it."""
        layout = self.dump.about.layout
        share = self.dump.about.facts.num_samples // layout["dp"]
        ranks_of_a_share = layout["cp"] * layout["tp"]
        return [
            (batch.to(self.precision.device), number * ranks_of_a_share)
            for number, batch in enumerate(self.dump.batch.split(share))
        ]

    def _findings(self, scale: float) -> list[Finding]:
        findings: list[Finding] = []
        first_sample = self.dump.about.facts.first_sample
        for number, (share, rank) in enumerate(self._shares()):
            random_states(self.dump.before, rank).restore()
            findings += find_not_finite(
                self._model,
                list(share.split(self.dump.config.micro_batch_size)),
                lambda batch: self._add(batch, scale),
                first_sample=first_sample,
                share=number,
                rank=rank,
            )
            first_sample += len(share.tokens_BT)
        return findings

    def _add(self, batch: Batch, scale: float) -> Tensor:
        return add_micro_batch_gradients(self._state, batch, self.precision, self._mesh, scale=scale)

    def _grad_norm(self) -> float:
        return total_norm([p.grad for p in self._model.parameters() if p.grad is not None])


def agreement(replay: Replay, dump: StepDump, precision: Precision) -> str:
    """How the replay is as the run was: "exactly", "within N", or empty where it is not."""
    pairs = [(replay.loss, dump.about.facts.loss), (replay.grad_norm, dump.about.facts.grad_norm)]
    if all(now == then or (math.isnan(now) and math.isnan(then)) for now, then in pairs):
        return "exactly"
    allowed = ALLOWED[precision.name]
    if all(
        abs(now - then) <= allowed * abs(then)
        if math.isfinite(now) and math.isfinite(then)
        else not math.isfinite(now) and not math.isfinite(then)
        for now, then in pairs
    ):
        return f"within {allowed:g}"
    return ""


def open_replayer(folder: Path, *, device: str, precision: PrecisionName | None) -> Replayer:
    """Opens a step dump to run its step again.

    Raises:
        CheckpointError: It is no step dump, or damaged.
        MachineError: The device or the precision is not here.
    """
    return Replayer(read_dump(folder), device=choose_device(device), precision=precision)  # type: ignore[arg-type]
