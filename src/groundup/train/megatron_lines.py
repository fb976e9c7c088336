"""What Megatron-LM prints while it trains, on stdout and to the letter, for scripts that read its logs.

Three generations: "megatron" is the first, that of DeepSpeedExamples (2021, commit bdf8e59), whose line ends
with the fields that later ones have added; "megatron_2023" is that of commit 992da75; "megatron_core" that
of 2026, commit d98e8a6. Megatron-LM prints the learning rate of the next update, and so do these lines
where ``schedule_unit`` is "samples".
"""

import dataclasses
import datetime
import math
import sys
from collections.abc import Mapping
from pathlib import Path

import torch

from groundup.parallel.device import peak_memory_bytes
from groundup.train.log_config import LogStyle

_MEGABYTE = 1 << 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class Interval:
    """The iterations since the last line.

    Attributes:
        iteration: Number of the last one.
        num_iterations: Of the run.
        samples: Position in the data.
        seconds: Of one iteration.
        lr: Learning rate.
        batch_size: Samples of the last iteration.
        loss: Mean over the iterations that were not skipped; None where all were.
        loss_scale: After the last one.
        grad_norm: Of the last one, before clipping.
        skipped: Iterations without an update.
        nan: Those of them whose loss was not finite.
    """

    iteration: int
    num_iterations: int
    samples: int
    seconds: float
    lr: float
    batch_size: int
    loss: float | None
    loss_scale: float
    grad_norm: float
    skipped: int
    nan: int


def training_line(style: LogStyle, one: Interval, now: datetime.datetime) -> str:
    """The line of an interval."""
    iteration = f" iteration {one.iteration:8d}/{one.num_iterations:8d} |"
    samples = f" consumed samples: {one.samples:12d} |"
    elapsed = f" elapsed time per iteration (ms): {one.seconds * 1000:.1f} |"
    batch_size = f" global batch size: {one.batch_size:5d} |"
    norm = f" grad norm: {one.grad_norm:.3f} |" if math.isfinite(one.grad_norm) else ""
    skipped = f" number of skipped iterations: {one.skipped:3d} | number of nan iterations: {one.nan:3d} |"
    if style == "megatron":
        loss = "" if one.loss is None else f" lm loss {one.loss:.6E} |"
        rate = f" learning rate {one.lr:.3E} |"
        scale = f" loss scale {one.loss_scale:.1f} |"
        return iteration + elapsed + rate + loss + scale + samples + batch_size + norm + skipped
    loss = "" if one.loss is None else f" lm loss: {one.loss:.6E} |"
    scale = f" loss scale: {one.loss_scale:.1f} |"
    rest = batch_size + loss + scale + norm + skipped
    if style == "megatron_2023":
        return f"{iteration}{samples}{elapsed} learning rate: {one.lr:.3E} |{rest}"
    return f" [{now:%Y-%m-%d %H:%M:%S.%f}]{iteration}{samples}{elapsed} learning rate: {one.lr:.6E} |{rest}"


def validation_lines(style: LogStyle, loss: float, *, split: str, iteration: int, is_last: bool) -> str:
    """The lines of a validation.

    Args:
        style: Of the lines.
        loss: Nats a token.
        split: "validation" or "test".
        iteration: After which it was.
        is_last: Whether the training has ended.
    """
    at = f"iteration {iteration}"
    if is_last and style == "megatron_core":
        at += f" on {split} set"
    elif is_last:
        at = f"the end of training for {'val' if split == 'validation' else split} data"
    perplexity = math.exp(min(20.0, loss))
    line = f" validation loss at {at} | lm loss value: {loss:.6E} | lm loss PPL: {perplexity:.6E} | "
    rule = "-" * (len(line) + 1)
    return f"{rule}\n{line}\n{rule}"


def memory_line(style: LogStyle, iteration: int, device: torch.device) -> str:
    """The line of memory in MB, after the first interval; on a CPU the process's peak stands for each."""
    figures = [peak_memory_bytes(device)] * 4
    if device.type == "cuda":
        cuda = torch.cuda
        figures = [cuda.memory_allocated(), figures[0], cuda.memory_reserved(), cuda.max_memory_reserved()]
    kept = "cached" if style == "megatron" else "reserved"
    names = ("allocated", "max allocated", kept, f"max {kept}")
    shown = "".join(f" | {name}: {figure / _MEGABYTE}" for name, figure in zip(names, figures, strict=True))
    after = f"after {iteration} iterations"
    return f"{after if style == 'megatron' else f'[Rank 0] ({after})'} memory (MB){shown}"


def phases_line(seconds: Mapping[str, float], num_iterations: int) -> str:
    """The line of the times of an iteration's phases."""
    each = (f" | {name}: {total / num_iterations * 1000:.2f}" for name, total in seconds.items())
    return f"time (ms){''.join(each)}"


def saving_line(iteration: int, folder: Path) -> str:
    """The line before a checkpoint is written."""
    return f"saving checkpoint at iteration {iteration:7d} to {folder}"


def saved_line(iteration: int, folder: Path) -> str:
    """The line after it."""
    return f"  successfully saved checkpoint at iteration {iteration:7d} to {folder}"


def write_line(line: str) -> None:
    """Writes one or several lines to stdout, where Megatron-LM prints them."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
