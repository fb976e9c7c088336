"""``groundup train``."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from groundup.cli.presets import presets

if TYPE_CHECKING:
    from groundup.train.config import TrainConfig
    from groundup.train.loop import Evaluation


def train(
    config: Path | None = None,
    *overrides: str,
    print_config: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Train a model, or continue a run from its newest sound checkpoint.

    A config is a YAML file, dotted overrides, or both; `preset: gpt2-124m` (also gpt2-345m, gpt2-774m,
    gpt2-1558m, codeparrot-110m, tiny) in either gives everything a value but `run_dir` and `data.path`.
    The run folder receives the resolved config, metrics.jsonl, a log and the checkpoints. Ctrl-C saves
    and stops; the same command continues.

    A layout of several ranks starts them on this machine, unless torchrun or Slurm's srun has.

    For example:

        groundup train run.yaml optimizer.lr=3e-4 num_steps=2000

        groundup train preset=tiny run_dir=runs/a data.path=data/code_text_document

        groundup train run.yaml layout.dp=2 layout.tp=2

    Args:
        config: YAML file of the run (or the first override).
        overrides: Settings as dotted.key=value; they win over the file.
        print_config: Print each setting, with where its value comes from, and stop.
    """
    from groundup.core.config import resolve
    from groundup.parallel.launched import launched
    from groundup.train.config import TrainConfig

    if config is not None and "=" in str(config):
        overrides, config = (str(config), *overrides), None
    resolved = resolve(TrainConfig, file=config, overrides=overrides, presets=presets())
    if print_config:
        print(resolved.render())
        return
    rank = launched()
    if rank is None and resolved.value.layout.num_ranks > 1:
        raise SystemExit(_run_ranks(resolved.value, *([str(config)] if config else []), *overrides))
    if rank is not None:
        os.environ.update(rank.environment())  # what Slurm says in its own words
    results = run_training(resolved.value)
    if rank is not None and rank.rank > 0:
        return
    for name, evaluation in results.items():
        print(
            f"{name}: loss {evaluation.loss:.4f}, perplexity {evaluation.perplexity:.2f},"
            f" {evaluation.bits_per_byte:.4f} bits per byte"
        )
    print(f"Next: groundup generate {resolved.value.run_dir} --prompt '...'")


def _run_ranks(config: "TrainConfig", *arguments: str) -> int:
    from groundup.parallel.launch import run_ranks
    from groundup.parallel.layout import require_layout

    world_size = config.layout.num_ranks
    require_layout(  # once, before anything starts
        config.layout,
        config.model,
        sequence_length=config.data.sequence_length,
        global_batch_size=config.global_batch_size,
        micro_batch_size=config.micro_batch_size,
        world_size=world_size,
        is_fixed=False,
    )
    debug = ["--debug"] if "--debug" in sys.argv else []
    return run_ranks(world_size, ["train", *arguments, *debug], folder=config.run_dir / "ranks")


def run_training(config: "TrainConfig") -> "dict[str, Evaluation]":
    """Trains with groundup's own evaluation and generation; returns the evaluation of each split."""
    from groundup.cli.callbacks import complete, evaluate
    from groundup.core.log import also_to_file
    from groundup.train.loop import train as run_loop

    with also_to_file(config.run_dir / "train.log"):
        return run_loop(config, evaluate=evaluate, complete=complete)
