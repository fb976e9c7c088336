"""Continued pretraining: the data are token files, the loss is language modelling."""

from collections.abc import Mapping
from typing import Any, Literal

from groundup.core.config import config
from groundup.finetune.record_data import ConfigT
from groundup.train.config import TrainConfig
from groundup.train.learning import PRETRAINING, Learning


@config
class Pretrain:
    """Continued pretraining, with the settings of ``groundup train`` alone."""

    kind: Literal["pretrain"] = "pretrain"

    @staticmethod
    def defaults(tree: Mapping[str, Any]) -> dict[str, Any]:
        """Returns settings of the run that this stage has another default for: none."""
        return {}

    def completed(self, run: ConfigT) -> ConfigT:
        """Returns the config with what model and data decide: as it is."""
        return run

    def learning(self, run: TrainConfig) -> Learning:
        """Returns what the training loop is given."""
        return PRETRAINING
