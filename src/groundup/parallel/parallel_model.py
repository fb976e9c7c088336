"""A model over the ranks of a mesh, for forward passes without gradients: evaluation under any layout.

Data-parallel ranks take other micro-batches. So do those that share a sequence's tokens in training, which
hold the same weights: a caller's mask stands in place of theirs. The ranks of a pipeline, and of tensor
parallelism, work on one micro-batch together.

Shapes: B rows, T tokens, C tokens of a chunk, D model, V vocabulary of this rank, P ranks that share it.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.nn.functional import linear

from groundup.models import Model, evaluating, lm_head
from groundup.parallel.fsdp import without_gathering
from groundup.parallel.layout import Layout
from groundup.parallel.mesh import ParallelMesh
from groundup.parallel.pipeline_parallel import Inputs, Pipeline
from groundup.parallel.tensor_parallel import vocabulary_shard


class ParallelModel(nn.Module):
    """A model, or this rank's part of one, with all that a forward pass needs of the ranks.

    Args:
        model: The whole model, or what ``parallelize`` left of it.
        mesh: Of the ranks; None for one process.
        pipeline: What ``parallelize`` returned.
        on_forward: Called before each round of micro-batches.
    """

    def __init__(
        self,
        model: nn.Module,
        mesh: ParallelMesh | None = None,
        pipeline: Pipeline | None = None,
        on_forward: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__()
        self.model = model
        self.training = model.training
        self.device = next(model.parameters()).device
        self.mesh = mesh or ParallelMesh(
            rank=0, size=1, layout=Layout(dp=1), device=self.device, device_mesh=None
        )
        self.pipeline = pipeline
        self._on_forward = on_forward

    @property
    def num_replicas(self) -> int:
        """Number of ranks, or groups of them, that take other micro-batches."""
        return self.mesh.num_replicas

    @property
    def replica(self) -> int:
        """Index of this rank's replica."""
        return self.mesh.dp_rank * self.mesh.layout.cp + self.mesh.cp_rank

    @property
    def micro_batches_at_once(self) -> int:
        """Micro-batches that keep all stages of a pipeline busy."""
        return self.mesh.layout.pp

    @property
    def tokens_divisor(self) -> int:
        """What the tokens of a row must be a multiple of."""
        return self.mesh.layout.tp

    @property
    def is_independent(self) -> bool:
        """Whether the forward pass of a rank waits for no other rank, so that each may fail alone."""
        return self.mesh.layout.tp == self.mesh.layout.pp == 1 and not self.shares_weights

    @property
    def shares_sequences(self) -> bool:
        """Whether the model's own mask is over the tokens of several ranks, so that it needs another."""
        return self.mesh.layout.cp > 1

    @property
    def shares_weights(self) -> bool:
        """Whether replicas gather each other's weights, and so compute equally often."""
        return self.mesh.layout.zero > 0

    @property
    def tells(self) -> bool:
        """Whether this rank tells the others what its replica has found: the first that shares its heads."""
        return self.mesh.rank % self.mesh.layout.tp == 0

    @contextlib.contextmanager
    def evaluation(self) -> Iterator[None]:
        """Evaluation mode without gradients within the block; afterwards weights are sharded as before."""
        # Sharded weights that are gathered in inference mode could not be trained on.
        no_gradients = torch.inference_mode if self.mesh.size == 1 else torch.no_grad
        with evaluating(self), no_gradients(), without_gathering([self, *self._parts]):
            yield

    def run(self, micro_batches: Sequence[Inputs], finish: Callable[[Model, Tensor, int], None]) -> None:
        """Runs the forward pass of micro-batches; collective over replicas where weights are sharded.

        Args:
            micro_batches: As many on all ranks, and the same within a replica; with a mask where
                ``shares_sequences``.
            finish: Called where the head is, with the part that has it, the final hidden states [B, T, D]
                and the number of the micro-batch.
        """
        self._on_forward()
        if self.pipeline:
            self.pipeline.forward(micro_batches, finish)
            return
        for number, inputs in enumerate(micro_batches):
            finish(self.model, self.model(**inputs), number)  # type: ignore[arg-type]  # a model's class

    @property
    def _parts(self) -> list[Model]:
        return list(self.pipeline.parts.values()) if self.pipeline else []


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeadLogits:
    """This rank's logits of some tokens.

    Attributes:
        values_CV: In fp32; without columns on a rank that has only rows of padding.
        first_id: Id of the first column.
        group: Ranks that have the other columns; None where this one has all.
    """

    values_CV: Tensor
    first_id: int = 0
    group: ProcessGroup | None = None

    def of_all_ranks(self, *values_C: Tensor) -> Sequence[Tensor]:
        """Returns values of each token from all ranks [P, C], in fp64, which holds ids exactly."""
        assert self.group is not None, "one rank has nothing to gather"
        ours = torch.stack([value_C.double() for value_C in values_C])
        every = [torch.empty_like(ours) for _ in range(self.group.size())]
        dist.all_gather(every, ours, group=self.group)
        return torch.stack(every, 1).unbind()


def head_logits(part: nn.Module, hidden_CD: Tensor, vocab_size: int) -> HeadLogits:
    """Returns the logits of final hidden states, as ``lm_head``, of this rank's part of the vocabulary."""
    assert isinstance(part.head, nn.Linear), "the last part of a model has the head"
    shard = vocabulary_shard(part.head.weight)
    if shard.group is None:
        return HeadLogits(values_CV=lm_head(part, hidden_CD, vocab_size))
    rows_VD = shard.rows_VD[: max(0, vocab_size - shard.vocab_begin)]
    values_CV = linear(hidden_CD, rows_VD).float()
    return HeadLogits(values_CV=values_CV, first_id=shard.vocab_begin, group=shard.group)
