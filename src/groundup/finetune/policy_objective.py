"""Completions with their advantages as a batch, and what is minimised of it.

Shapes: B completions, T tokens, D model, M tokens of completions.
"""

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from groundup.finetune.policy_loss import policy_loss
from groundup.models import Model
from groundup.parallel.device import Precision
from groundup.parallel.tensor_parallel import vocabulary_shard
from groundup.train.data_loader import Batch
from groundup.train.loss import IGNORE
from groundup.train.token_log_probs import token_log_probs

ROLLOUT_FIGURES = ("reward", "reward_std", "completion_length", "truncated", "bad_rewards")
"""Means over a step's completions, known once these are drawn; ``Batch.extra`` has one in each row."""


def batch_of(texts: Sequence[tuple[Sequence[int], Sequence[int]]], *, num_tokens: int = 0) -> Batch:
    """Makes a batch of prompts with their completions, whose tokens alone are targets.

    Args:
        texts: Ids of prompt and completion.
        num_tokens: T; 0 for that of the longest text.
    """
    longest = max(len(prompt) + len(completion) - 1 for prompt, completion in texts)
    shape = len(texts), num_tokens or longest
    tokens_BT = torch.zeros(shape, dtype=torch.int64)
    targets_BT = torch.full(shape, IGNORE)
    for row, (prompt, completion) in enumerate(texts):
        ids = torch.tensor([*prompt, *completion])
        tokens_BT[row, : len(ids) - 1] = ids[:-1]
        targets_BT[row, len(prompt) - 1 : len(ids) - 1] = ids[len(prompt) :]
    return Batch(tokens_BT=tokens_BT, targets_BT=targets_BT)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PolicyObjective:
    """The loss of GRPO, divided by the number of completions; see ``Objective`` and ``policy_loss``.

    ``Batch.extra`` has of each completion "advantage" and "weight" (of its tokens); of each target "old" and
    "reference", log-probabilities, where they are needed.

    Attributes:
        temperature: At which completions were drawn: the policy is the model at this temperature.
        clip_low: As of ``policy_loss``.
        clip_high: Likewise.
        beta: Likewise.
        weighted_kl: Likewise.
    """

    temperature: float
    clip_low: float
    clip_high: float
    beta: float
    weighted_kl: bool = True
    figures: tuple[str, ...] = (*ROLLOUT_FIGURES, "kl", "clip_fraction")

    def denominator(self, batch: Batch) -> int:
        """Counts completions."""
        return len(batch.tokens_BT)

    def log_probs(self, model: Model, hidden_BTD: Tensor, batch: Batch, precision: Precision) -> Tensor:
        """Returns the log-probability of each target, at the temperature, one behind the other [M]."""
        assert model.head is not None, "the last part of a model has the head"
        head = vocabulary_shard(model.head.weight)
        is_target_BT = batch.targets_BT != IGNORE
        hidden_MD = hidden_BTD[is_target_BT]
        with precision.autocast():
            return token_log_probs(
                hidden_MD if self.temperature == 1 else hidden_MD / self.temperature,
                head.rows_VD,
                batch.targets_BT[is_target_BT],
                vocab_size=model.config.vocab_size,
                group=head.group,
                vocab_begin=head.vocab_begin,
            )

    def sums(
        self, model: Model, hidden_BTD: Tensor, batch: Batch, precision: Precision
    ) -> tuple[Tensor, Sequence[Tensor]]:
        """Returns the loss summed over completions, and the figures."""
        extra, is_target_BT = batch.extra, batch.targets_BT != IGNORE

        def of_targets(name: str) -> Tensor:
            values = extra[name] if extra[name].ndim == 2 else extra[name].unsqueeze(1)
            return values.expand_as(is_target_BT)[is_target_BT]

        found = policy_loss(
            self.log_probs(model, hidden_BTD, batch, precision),
            old_M=of_targets("old") if "old" in extra else None,
            reference_M=of_targets("reference") if "reference" in extra else None,
            advantages_M=of_targets("advantage"),
            weights_M=of_targets("weight"),
            clip_low=self.clip_low,
            clip_high=self.clip_high,
            beta=self.beta,
            weighted_kl=self.weighted_kl,
        )
        known = [extra[name].sum() for name in ROLLOUT_FIGURES]
        return found.loss, [*known, found.kl, found.clipped]
