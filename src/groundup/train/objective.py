"""What is minimised: an objective turns final hidden states into a sum, and names what divides it.

Shapes: B rows of a micro-batch, T tokens, D model.
"""

import dataclasses
from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from groundup.models import Model
from groundup.parallel.device import Precision
from groundup.parallel.tensor_parallel import vocabulary_shard
from groundup.train.data_loader import Batch
from groundup.train.loss import linear_cross_entropy


class Objective(Protocol):
    """A loss that is a sum over something countable (targets, pairs, sequences).

    The sum over the micro-batches of all ranks is divided by the sum of their denominators, so that
    accumulation, data parallelism and padding agree exactly with one large batch.
    """

    @property
    def figures(self) -> tuple[str, ...]:
        """Names of what is measured beside the loss; their sums are divided as the loss is."""
        ...

    def denominator(self, batch: Batch) -> int:
        """Counts what the sums of this rank's rows are divided by; rows without targets count 0."""
        ...

    def sums(
        self, model: Model, hidden_BTD: Tensor, batch: Batch, precision: Precision
    ) -> tuple[Tensor, Sequence[Tensor]]:
        """Returns the loss of a micro-batch, a fp32 scalar with its graph, and the figures without one.

        Args:
            model: The whole model, or the last stage of a pipeline: it has ``head``, whose rows may lie on
                the ranks of a tensor-parallel group (``vocabulary_shard``; ``linear_cross_entropy`` knows).
            hidden_BTD: Final hidden states, the same on all ranks of that group.
            batch: The micro-batch with its extra tensors. Rows without targets fill up a share of a
                validation and must add nothing.
            precision: Of products.
        """
        ...


@dataclasses.dataclass(frozen=True)
class LanguageModelling:
    """Cross-entropy of each target token; see ``Objective``."""

    figures: tuple[str, ...] = ()

    def denominator(self, batch: Batch) -> int:
        """Counts targets."""
        return batch.num_targets

    def sums(
        self, model: Model, hidden_BTD: Tensor, batch: Batch, precision: Precision
    ) -> tuple[Tensor, Sequence[Tensor]]:
        """Returns the loss summed over a micro-batch's targets; no figures."""
        assert model.head is not None, "the last part of a model has the head"
        head = vocabulary_shard(model.head.weight)
        with precision.autocast():
            loss = linear_cross_entropy(
                hidden_BTD.flatten(0, 1),
                head.rows_VD,
                batch.targets_BT.flatten(),
                vocab_size=model.config.vocab_size,
                group=head.group,
                vocab_begin=head.vocab_begin,
            )
        return loss, ()


LANGUAGE_MODELLING = LanguageModelling()
