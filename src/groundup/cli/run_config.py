"""The config that a command line means for a training run."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from groundup.cli.presets import presets

if TYPE_CHECKING:
    from groundup.core.config import Resolved
    from groundup.core.layers import Layer
    from groundup.train.config import TrainConfig


def run_config(file: Path | None, overrides: Sequence[str]) -> "Resolved[TrainConfig]":
    """The config of presets, a file and overrides; the model is that of ``start.path``, where it is given.

    Raises:
        ConfigError: With all problems found.
        CheckpointError: There is no model at ``start.path``.
    """
    from groundup.core.config import resolve
    from groundup.train.config import TrainConfig

    return resolve(TrainConfig, file=file, overrides=overrides, presets=presets(), derive=_model_of_start)


def _model_of_start(given: Mapping[str, Any]) -> "Layer | None":
    start = given.get("start")
    path = start.get("path") if isinstance(start, Mapping) else None
    if not isinstance(path, str):
        return None
    from groundup.train.start import model_of

    return {"model": model_of(Path(path))}, f"the model of {path}"
