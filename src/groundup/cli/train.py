"""``groundup train``."""

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

    For example:

        groundup train run.yaml optimizer.lr=3e-4 num_steps=2000

        groundup train preset=tiny run_dir=runs/a data.path=data/code_text_document

    Args:
        config: YAML file of the run (or the first override).
        overrides: Settings as dotted.key=value; they win over the file.
        print_config: Print each setting, with where its value comes from, and stop.
    """
    from groundup.core.config import resolve
    from groundup.train.config import TrainConfig

    file = config
    if config is not None and "=" in str(config):
        overrides, file = (str(config), *overrides), None
    resolved = resolve(TrainConfig, file=file, overrides=overrides, presets=presets())
    if print_config:
        print(resolved.render())
        return
    results = run_training(resolved.value)
    for name, evaluation in results.items():
        print(
            f"{name}: loss {evaluation.loss:.4f}, perplexity {evaluation.perplexity:.2f},"
            f" {evaluation.bits_per_byte:.4f} bits per byte"
        )
    print(f"Next: groundup generate {resolved.value.run_dir} --prompt '...'")


def run_training(config: "TrainConfig") -> "dict[str, Evaluation]":
    """Trains with groundup's own evaluation and generation; returns the evaluation of each split."""
    from groundup.cli.callbacks import complete, evaluate
    from groundup.core.log import also_to_file
    from groundup.train.loop import train as run_loop

    with also_to_file(config.run_dir / "train.log"):
        return run_loop(config, evaluate=evaluate, complete=complete)
