"""What is minimised over pairs of answers, of which one was chosen and the other rejected.

Shapes: B rows of a micro-batch, T tokens, S sequences of a row (the chosen and the rejected answer of each
pair in turn), P pairs, M target tokens, D model.
"""

import dataclasses
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from groundup.models import Model
from groundup.parallel.device import Precision
from groundup.parallel.tensor_parallel import vocabulary_shard
from groundup.train.data_loader import Batch
from groundup.train.loss import IGNORE
from groundup.train.token_log_probs import token_log_probs

REFERENCE = "reference_BT"
"""Extra tensor of a batch: the reference log-probability of a sequence, at its first token; else 0."""

LossName = Literal["sigmoid", "sigmoid_norm", "ipo", "hinge", "simpo"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class PairLoss:
    """How two answers are compared; the settings are those of ``Dpo``."""

    loss: LossName = "sigmoid"
    beta: float = 0.1
    label_smoothing: float = 0.0
    target_margin: float = 0.0

    @property
    def needs_reference(self) -> bool:
        """Whether log-probabilities are compared with those of the reference model."""
        return self.loss != "simpo"

    def rewards(self, log_probs: Tensor, reference: Tensor, lengths: Tensor) -> Tensor:
        """Returns the implicit reward of each answer.

        Args:
            log_probs: Of whole answers; any shape, the same for all.
            reference: The same by the reference model.
            lengths: Tokens of each answer.
        """
        scores = log_probs - reference if self.needs_reference else log_probs
        if self.loss in ("sigmoid_norm", "ipo", "simpo"):
            scores = scores / lengths
        return self.beta * scores

    def of_margins(self, margin_P: Tensor) -> Tensor:
        """Returns the loss of each pair by the chosen answer's reward less the rejected one's."""
        if self.loss == "ipo":
            return (margin_P / self.beta - 1 / (2 * self.beta)).square()
        if self.loss == "hinge":
            return torch.relu(1 - margin_P)
        margin_P = margin_P - self.target_margin
        flipped = self.label_smoothing
        return -(1 - flipped) * logsigmoid(margin_P) - flipped * logsigmoid(-margin_P)


@dataclasses.dataclass(frozen=True)
class PairObjective:
    """The loss summed over pairs; see ``Objective``."""

    pair_loss: PairLoss
    figures: tuple[str, ...] = (
        "reward_chosen",
        "reward_rejected",
        "reward_margin",
        "reward_accuracy",
        "log_prob_chosen",
        "log_prob_rejected",
    )

    def denominator(self, batch: Batch) -> int:
        """Counts pairs."""
        return int((_lengths(batch) > 0).all(-1).sum())

    def sums(
        self, model: Model, hidden_BTD: Tensor, batch: Batch, precision: Precision
    ) -> tuple[Tensor, Sequence[Tensor]]:
        """Returns the loss and the figures summed over a micro-batch's pairs."""
        log_probs_BP2 = sequence_log_probs(model, hidden_BTD, batch, precision)
        lengths_BP2 = _lengths(batch)
        is_pair_BP = (lengths_BP2 > 0).all(-1)
        reference_BP2 = _of_sequences(batch.extra[REFERENCE], batch)
        rewards_BP2 = self.pair_loss.rewards(log_probs_BP2, reference_BP2, lengths_BP2.clamp_min(1))
        chosen_BP, rejected_BP = rewards_BP2.unbind(-1)
        losses_BP = self.pair_loss.of_margins(chosen_BP - rejected_BP)
        with torch.no_grad():
            found = (
                chosen_BP,
                rejected_BP,
                chosen_BP - rejected_BP,
                (chosen_BP > rejected_BP).to(chosen_BP.dtype),
                *log_probs_BP2.unbind(-1),
            )
            figures = [values_BP.where(is_pair_BP, 0.0).sum() for values_BP in found]
        return losses_BP.where(is_pair_BP, 0.0).sum(), figures


def sequence_log_probs(model: Model, hidden_BTD: Tensor, batch: Batch, precision: Precision) -> Tensor:
    """Returns the log-probability of each answer, [B, S / 2, 2] in fp32; 0 where a row has no more."""
    assert model.head is not None, "the last part of a model has the head"
    head = vocabulary_shard(model.head.weight)
    chosen_M = (batch.targets_BT != IGNORE).flatten().nonzero().squeeze(1)  # prompts need no logits
    with precision.autocast():
        found_M = token_log_probs(
            hidden_BTD.flatten(0, 1)[chosen_M],
            head.rows_VD,
            batch.targets_BT.flatten()[chosen_M],
            vocab_size=model.config.vocab_size,
            group=head.group,
            vocab_begin=head.vocab_begin,
        )
    flat = found_M.new_zeros(batch.targets_BT.numel()).index_copy(0, chosen_M, found_M)
    return _of_sequences(flat.view_as(batch.targets_BT), batch)


def _lengths(batch: Batch) -> Tensor:
    """Number of targets of each sequence, [B, S / 2, 2]."""
    return _of_sequences((batch.targets_BT != IGNORE).float(), batch)


def _of_sequences(values_BT: Tensor, batch: Batch) -> Tensor:
    """Sums over the tokens of each sequence: [B, S / 2, 2], with room for as many as there are tokens."""
    assert batch.documents_BT is not None, "each answer is a document of its own"
    rows, length = values_BT.shape
    sums_BS = values_BT.new_zeros(rows, length + length % 2)
    return sums_BS.scatter_add(1, batch.documents_BT.long(), values_BT).view(rows, -1, 2)
