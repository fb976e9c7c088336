"""Learning from preferences: of two answers to a prompt, the chosen one becomes the more probable.

Rafailov et al. 2023 (arXiv:2305.18290), without a reward model or sampling: the log-probability of each
answer is compared with that by the weights at the start.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from annotated_types import Interval

from groundup.core.config import config
from groundup.core.config_class import NotNegativeFloat, PositiveFloat
from groundup.core.errors import ConfigError
from groundup.finetune.pair_data import pair_data, plain_tokenize
from groundup.finetune.pair_loss import LossName, PairLoss, PairObjective
from groundup.finetune.pairs import PairFields
from groundup.finetune.reference import fill_reference
from groundup.train.config import TrainConfig
from groundup.train.init_weights import open_start
from groundup.train.learning import Learning
from groundup.train.run_data import RunData
from groundup.train.setup import Run

if TYPE_CHECKING:
    from groundup.finetune.config import FinetuneConfig


@config
class Dpo:
    """Preferences.

    Attributes:
        loss: "sigmoid" is DPO; "sigmoid_norm" the same with log-probabilities per token, so that length is
            no reward; "ipo" a square that does not grow without bound (arXiv:2310.12036), per token;
            "hinge" (arXiv:2309.06657); "simpo" per token and without a reference (arXiv:2405.14734).
        beta: How far answers may go from the reference: the smaller, the further. About 0.1; for "simpo",
            whose rewards are per token, about 2.
        label_smoothing: Share of pairs whose answers are taken for exchanged (conservative DPO).
        target_margin: By which reward the chosen answer is to be ahead, in "simpo" about 1.
        fields: Names of the fields of a record.
        reference_dir: Where reference log-probabilities are kept; None for the run folder. A folder that
            runs share spares all but the first from computing them.
    """

    kind: Literal["dpo"] = "dpo"
    loss: LossName = "sigmoid"
    beta: PositiveFloat = 0.1
    label_smoothing: Annotated[float, Interval(ge=0, lt=0.5)] = 0.0
    target_margin: NotNegativeFloat = 0.0
    fields: PairFields = PairFields()
    reference_dir: Path | None = None

    def __post_init__(self) -> None:
        """Refuses settings that the loss does not have."""
        if self.loss in ("ipo", "hinge") and (self.label_smoothing or self.target_margin):
            raise ValueError(f'loss "{self.loss}" has neither label_smoothing nor target_margin')

    @staticmethod
    def defaults(model: Mapping[str, Any]) -> dict[str, Any]:
        """Returns settings of the run that preferences have another default for."""
        return {"optimizer": {"lr": 1e-6}, "data": {"split": "95,5"}}

    @property
    def pair_loss(self) -> PairLoss:
        """What is minimised."""
        names = [field.name for field in dataclasses.fields(PairLoss)]
        return PairLoss(**{name: getattr(self, name) for name in names})

    def learning(self, run: "FinetuneConfig") -> Learning:
        """Returns what the training loop is given.

        Raises:
            ConfigError: The layout or the order does not fit.
        """
        if run.layout.cp > 1:
            raise ConfigError(
                "the log-probability of an answer is a sum over its tokens, which cp parts among ranks",
                where="layout.cp",
                fix="Use layout.dp, tp, pp or zero.",
            )
        if run.data.order != "seeded":
            raise ConfigError("pairs have no order of Megatron-LM's", where="data.order")

        def begin(present: Run) -> None:
            if self.pair_loss.needs_reference:
                fill_reference(present, self.reference_dir or run.run_dir / "reference")

        return Learning(
            open_data=self._open_data, begin=begin, objective=PairObjective(pair_loss=self.pair_loss)
        )

    def _open_data(self, run: TrainConfig) -> RunData:
        assert run.start.path is not None, "a fine-tuning begins with a model"
        stored = open_start(run.start.path)
        tokenize = plain_tokenize(stored.tokenizer, stored.bos_ids)
        return pair_data(run, self.fields, stored.tokenizer, tokenize)
