"""Learning from preferences: of two answers to a prompt, the chosen one becomes the more probable.

Rafailov et al. 2023 (arXiv:2305.18290), without a reward model or sampling: the log-probability of each
answer is compared with that by the weights at the start.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Interval

from groundup.checkpoint.lazy import LazyModel
from groundup.core.config import config
from groundup.core.config_class import NotNegative, NotNegativeFloat, PositiveFloat
from groundup.core.errors import ConfigError
from groundup.core.log import quiet
from groundup.finetune.pair_loss import LossName, PairLoss, PairObjective
from groundup.finetune.pair_split import PairFormat, PairSplit
from groundup.finetune.pairs import PairFields
from groundup.finetune.record_data import (
    ConfigT,
    open_stored,
    record_data,
    record_defaults,
    require_records,
    show_examples,
    with_steps,
)
from groundup.finetune.reference import fill_reference
from groundup.finetune.sft import encode_question
from groundup.finetune.templates import with_template
from groundup.train.config import TrainConfig
from groundup.train.learning import Learning
from groundup.train.run_data import RunData
from groundup.train.setup import Run


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
        template: As of ``Sft``; "none" for texts as they are, which "" takes too where the model has none.
        fields: Names of the fields of a record.
        epochs: Passes over the pairs, where num_steps is not given.
        examples: Pairs that are shown before the first step, with the answers in brackets.
        reference_dir: Where reference log-probabilities are kept; None for the run folder. A folder that
            runs share spares all but the first from computing them.
    """

    kind: Literal["dpo"] = "dpo"
    loss: LossName = "sigmoid"
    beta: PositiveFloat = 0.1
    label_smoothing: Annotated[float, Interval(ge=0, lt=0.5)] = 0.0
    target_margin: NotNegativeFloat = 0.0
    template: str = ""
    fields: PairFields = PairFields()
    epochs: PositiveFloat = 1.0
    examples: NotNegative = 1
    reference_dir: Path | None = None

    def __post_init__(self) -> None:
        """Refuses settings that the loss does not have."""
        if self.loss in ("ipo", "hinge") and (self.label_smoothing or self.target_margin):
            raise ValueError(f'loss "{self.loss}" has neither label_smoothing nor target_margin')

    @staticmethod
    def defaults(tree: Mapping[str, Any]) -> dict[str, Any]:
        """Returns settings of the run that this stage has another default for."""
        return record_defaults(tree, Dpo.kind) | {"optimizer": {"kind": "adamw", "lr": 1e-6}}

    def completed(self, run: ConfigT) -> ConfigT:
        """Returns the config with what model and data decide: the vocabulary, and the number of steps."""
        require_records(run, self.kind)
        if run.layout.cp > 1:
            raise ConfigError(
                "the log-probability of an answer is a sum over its tokens, which cp parts among ranks",
                where="layout.cp",
                fix="Use layout.dp, tp, pp or zero.",
            )
        with quiet():
            stored = self._changed(open_stored(run))
        return with_steps(run, stored, lambda run: self._open(run, stored), epochs=self.epochs)

    @property
    def pair_loss(self) -> PairLoss:
        """What is minimised."""
        names = [field.name for field in dataclasses.fields(PairLoss)]
        return PairLoss(**{name: getattr(self, name) for name in names})

    def learning(self, run: TrainConfig) -> Learning:
        """Returns what the training loop is given."""
        require_records(run, self.kind)
        with quiet():  # what is said of the model is said where the run begins with it
            stored = self._changed(open_stored(run))

        def begin(present: Run) -> None:
            show_examples(present, self.examples)
            if self.pair_loss.needs_reference:
                fill_reference(present, self.reference_dir or run.run_dir / "reference")

        return Learning(
            open_data=lambda _: self._open(run, stored),
            change_start=self._changed,
            begin=begin,
            objective=PairObjective(pair_loss=self.pair_loss),
            encode_prompt=encode_question if self._has_template(stored) else None,
        )

    def _has_template(self, stored: LazyModel) -> bool:
        return bool(self.template or stored.companions.chat_template) and self.template != "none"

    def _changed(self, stored: LazyModel) -> LazyModel:
        return with_template(stored, self.template) if self._has_template(stored) else stored

    def _open(self, run: TrainConfig, stored: LazyModel) -> RunData:
        """Opens the pairs of a run.

        Raises:
            DataError: They cannot be read, or none is left for training.
        """
        template = None
        if self._has_template(stored):
            from groundup.inference.chat_template import read_chat_template

            template = read_chat_template(stored.companions, stored.tokenizer.special_tokens)
        how = PairFormat(
            tokenizer=stored.tokenizer,
            template=template,
            template_source=(stored.companions.chat_template or "") if template else "",
            bos_ids=stored.bos_ids,
            fields=self.fields,
            max_tokens=run.data.sequence_length,
        )
        return record_data(run, how, PairSplit, row_length=2 * run.data.sequence_length)
