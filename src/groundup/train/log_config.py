"""How often a run reports, and in which words, as a config."""

from pathlib import Path
from typing import Literal

from groundup.core.config import config
from groundup.core.config_class import Positive

ReportTime = Literal["at_end", "at_validation", "never"]
LogStyle = Literal["groundup", "megatron", "megatron_2023", "megatron_core"]


@config
class LogConfig:
    """How often the run reports, and where.

    Attributes:
        interval: Steps between log lines (and records of ``metrics.jsonl``).
        tensorboard: Also write TensorBoard events to the run folder.
        tensorboard_dir: Also write them, to this folder instead.
        wandb: Also send all records to Weights & Biases; its own variables hold, as WANDB_MODE=offline.
        mlflow: Also send them to MLflow; its own variables hold, as MLFLOW_TRACKING_URI.
        project: Of W&B, and the experiment of MLflow; "" for what their variables or they themselves say.
        run_name: Of the run there; "" for the name of the run folder.
        style: Of the lines of steps, validations and checkpoints: "groundup", on stderr; or to the letter
            those of Megatron-LM, on stdout: "megatron" (2021, with times of phases, which cost some speed on
            a GPU), "megatron_2023" or "megatron_core" (2026).
        report: When ``report.html`` of the run folder is written, as by ``groundup report``: "at_end" of the
            run, also of one that is stopped or fails; "at_validation" at each of these too; or "never".
    """

    interval: Positive = 10
    tensorboard: bool = False
    tensorboard_dir: Path | None = None
    wandb: bool = False
    mlflow: bool = False
    project: str = ""
    run_name: str = ""
    style: LogStyle = "groundup"
    report: ReportTime = "at_end"
