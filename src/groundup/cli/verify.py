"""``groundup verify``: is my run right?"""

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import cyclopts

from groundup.cli.presets import presets
from groundup.core.errors import TrainingError
from groundup.core.log import logger

if TYPE_CHECKING:
    from groundup.train.config import TrainConfig

_LAYOUTS = ("dp2", "dp2-zero1", "dp2-zero2", "dp2-zero3", "tp2", "dp2-tp2-zero3")


def parallel(
    config: Path | None = None,
    *overrides: str,
    layouts: Annotated[tuple[str, ...], cyclopts.Parameter(consume_multiple=True)] = _LAYOUTS,
    steps: int = 4,
    shrink: bool = True,
) -> None:
    """Check that a run trains the same model under every layout: losses and gradient norms, step by step.

    Trains a few steps of your own config and data under each layout, in fp32 with plain SGD and without
    dropout, and compares them with one process. Needs no GPU: ranks share this machine. The exit code is 1
    where a layout deviates by more than 1e-5 or does not train.

    For example:

        groundup verify parallel run.yaml
        groundup verify parallel run.yaml --layouts dp4-zero3 tp4 dp2-tp2 --no-shrink --steps 2

    Args:
        config: YAML file of the run (or the first override).
        overrides: Settings as dotted.key=value; they win over the file.
        layouts: What to compare with one process, e.g. dp2-tp2-zero3.
        steps: Steps of each.
        shrink: Make the model small first: two layers, heads of width 8, 64 tokens; the number of heads, the
            vocabulary and everything else stay as they are.
    """
    from groundup.core.config import resolve
    from groundup.train.config import TrainConfig
    from groundup.verify.parallel import ALLOWED, verify_parallel

    file = config
    if config is not None and "=" in str(config):
        overrides, file = (str(config), *overrides), None
    run = resolve(TrainConfig, file=file, overrides=overrides, presets=presets()).value
    width = max(6, *map(len, layouts))
    print(f"{'layout':<{width}}  {'loss':>8}  {'gradient norm':>13}  {'allowed':>8}  verdict")
    wrong = []
    with tempfile.TemporaryDirectory() as scratch:
        deviations = verify_parallel(
            run, layouts, Path(scratch), launch=_train_quietly, num_steps=steps, shrink=shrink
        )
        for found in deviations:
            verdict = found.error or ("right" if found.is_right else "WRONG")
            measured = f"{found.loss:>8.1e}  {found.grad_norm:>13.1e}  {ALLOWED:>8.0e}"
            print(f"{found.layout:<{width}}  {measured}  {verdict}", flush=True)
            if not found.is_right:
                wrong.append(found.layout)
    if wrong:
        raise TrainingError(f"not the same model as one process: {', '.join(wrong)}", where="layouts")


def _train_quietly(config: "TrainConfig", file: Path) -> int:
    """Trains on this machine; what the ranks say is shown where they fail."""
    done = subprocess.run(  # noqa: S603  # this same program
        [sys.executable, "-m", "groundup", "train", str(file)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        logger.error("%s", done.stderr[-3000:])
    return done.returncode
