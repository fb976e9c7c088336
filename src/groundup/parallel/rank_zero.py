"""Ranks that work for rank 0: it tells them what to do, and they bring it the logits of their vocabulary.

Shapes: R rows, V vocabulary.
"""

import datetime
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from groundup.core.vocabulary import padded_vocab_size
from groundup.models import ModelConfig
from groundup.parallel.mesh import ParallelMesh
from groundup.parallel.tensor_parallel import first_vocabulary_row

_FOREVER = datetime.timedelta(days=3650)
"""For which ranks wait to be told; the end of rank 0 ends the waiting at once, with an error."""


class RankZero:
    """What ranks hear from rank 0, and bring to it; all methods are collective.

    Args:
        mesh: Of several ranks, without replicas.
    """

    def __init__(self, mesh: ParallelMesh) -> None:
        assert mesh.device_mesh is not None and mesh.num_replicas == 1, "the ranks are one model"
        self._mesh = mesh
        self._heads: list[int] = mesh.device_mesh.mesh[-1].flatten().tolist()
        self._group = dist.new_group(backend="gloo", timeout=_FOREVER)

    def tell(self, message: Any = None) -> Any:
        """Returns rank 0's message, on all ranks."""
        messages = [message]
        dist.broadcast_object_list(messages, src=0, group=self._group, device=torch.device("cpu"))
        return messages[0]

    def gather_logits(
        self, own_RV: Tensor | None, *, num_rows: int, config: ModelConfig, vocab_size: int
    ) -> Tensor:
        """Returns the logits of the whole vocabulary on rank 0, and none elsewhere.

        Args:
            own_RV: Of a rank of the last stage: those of its vocabulary.
            num_rows: R.
            config: Of the model.
            vocab_size: Ids from here on have no logits.
        """
        rows = padded_vocab_size(config.vocab_size)
        parts: list[Tensor] = []
        for index, rank in enumerate(self._heads):
            begin, end = (first_vocabulary_row(rows, len(self._heads), at) for at in (index, index + 1))
            width = min(end, vocab_size) - begin
            if not num_rows or width <= 0:
                continue
            if rank == 0 == self._mesh.rank:
                assert own_RV is not None, "it has the head"
                parts.append(own_RV)
            elif rank == self._mesh.rank:
                assert own_RV is not None, "it has the head"
                dist.send(own_RV.contiguous(), dst=0)
            elif self._mesh.is_first:
                parts.append(torch.empty(num_rows, width, device=self._mesh.device))
                dist.recv(parts[-1], src=rank)
        return torch.cat(parts, dim=1) if parts else torch.empty(0, vocab_size, device=self._mesh.device)
