"""A model with its paged cache over the ranks of a layout: rank 0 tells the plan of each step, all compute.

Each rank has the keys and values of its own layers and heads. Rank 0 gets all logits, and draws.

Shapes: B one row, T its tokens, D model, R rows of which logits are wanted, V true vocabulary.
"""

import contextlib
import dataclasses
import signal
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from groundup.checkpoint.lazy import LoadedModel
from groundup.core.errors import ConfigError
from groundup.inference.device_model import text_vocab_size
from groundup.inference.engine import Engine
from groundup.inference.int8_linear import require_int8
from groundup.inference.paged_cache import PagedCache
from groundup.inference.runner import StepPlan
from groundup.parallel.mesh import ParallelMesh
from groundup.parallel.parallel_model import ParallelModel, head_logits
from groundup.parallel.rank_zero import RankZero
from groundup.parallel.tensor_parallel import kv_heads_of_rank


@dataclasses.dataclass(frozen=True)
class _Allocation:
    num_blocks: int
    block_size: int


REPLICAS = "one engine has one model, without replicas"
NO_REPLICAS = "Leave it out; for more texts a second, start several services."

_Message = StepPlan | _Allocation | None
"""What rank 0 tells: the work of a step, the size of the cache, or that there is no more work."""


class RankModel:
    """This rank's part. ``allocate``, ``compute`` and ``close`` are for rank 0, ``follow`` for all others.

    Args:
        loaded: Its model is a ``ParallelModel``, which is cast to ``dtype``.
        dtype: In which the model computes.
    """

    def __init__(self, loaded: LoadedModel, dtype: torch.dtype) -> None:
        assert isinstance(loaded.model, ParallelModel), "it is spread over ranks"
        self._model = loaded.model.to(dtype)
        self._config = loaded.config
        self._dtype = dtype
        self._mesh = self._model.mesh
        self._vocab_size = text_vocab_size(loaded)
        self._cache: PagedCache | None = None
        self._ranks = RankZero(self._mesh)
        layers: Any = self._model.model.layers
        self._layers = [int(name) for name in layers]
        layout = self._mesh.layout
        self._num_kv_heads = kv_heads_of_rank(self._config, layout.tp, self._mesh.rank % layout.tp)

    @property
    def bytes_per_token(self) -> int:
        """Returns the bytes of a token's keys and values, on the rank that has most of them; collective."""
        size: int = 2 * len(self._layers) * self._num_kv_heads * self._config.head_dim * self._dtype.itemsize
        sizes: list[int] = self._mesh.all_gather(size)
        return max(sizes)

    def allocate(self, num_blocks: int, block_size: int) -> None:
        """Makes room for keys and values."""
        self._do(self._ranks.tell(_Allocation(num_blocks, block_size)))

    def compute(self, plan: StepPlan) -> Tensor:
        """Returns the logits [R, V] of the plan's rows in fp32."""
        return self._do(self._ranks.tell(plan))

    def close(self) -> None:
        """Lets the other ranks go."""
        self._ranks.tell()

    def follow(self) -> None:
        """Does what rank 0 tells until it closes; signals to stop are for rank 0."""
        assert self.bytes_per_token, "rank 0 asks all"
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        while (message := self._ranks.tell()) is not None:
            self._do(message)

    def _do(self, message: _Message) -> Tensor:
        if isinstance(message, _Allocation):
            self._cache = PagedCache(
                layers=self._layers,
                num_kv_heads=self._num_kv_heads,
                head_dim=self._config.head_dim,
                num_blocks=message.num_blocks,
                block_size=message.block_size,
                dtype=self._dtype,
                device=self._model.device,
            )
            return torch.empty(0)
        assert message is not None and self._cache is not None, "allocation comes first"
        return self._compute(message, self._cache)

    def _compute(self, plan: StepPlan, cache: PagedCache) -> Tensor:
        """Computes this rank's part; returns all logits on rank 0, and nothing of use on others."""
        device = self._model.device
        cache.change(cleared=plan.cleared, copies=plan.copies)
        cache.prepare(plan.spans)
        padding = [0] * (-len(plan.tokens) % self._model.tokens_divisor)
        numbers = [[*plan.tokens, *padding], [*plan.positions, *padding]]
        tokens_BT, positions_BT = torch.tensor(numbers, device=device).unsqueeze(1)
        own: list[Tensor] = []

        def finish(part: nn.Module, hidden_BTD: Tensor, number: int) -> None:
            own.append(head_logits(part, hidden_BTD[0, plan.rows], self._vocab_size).values_CV)

        with self._model.evaluation():
            inputs = {"tokens_BT": tokens_BT, "positions_BT": positions_BT, "cache": cache}
            self._model.run([inputs], finish)
            return self._ranks.gather_logits(
                own[0] if own else None,
                num_rows=len(plan.rows),
                config=self._config,
                vocab_size=self._vocab_size,
            )


@contextlib.contextmanager
def engine_on(
    loaded: LoadedModel, mesh: ParallelMesh, *, dtype: torch.dtype, **settings: Any
) -> Iterator[Engine | None]:
    """Gives rank 0 an engine over all ranks of a mesh, while it is entered; others work for it meanwhile.

    The model becomes the engine's, and is of no other use from then on. A rank that fails ends the others:
    their next word to it raises.

    Args:
        loaded: Of ``load_over_ranks``; where the mesh is a single process, any.
        mesh: Of the ranks.
        dtype: In which the model computes.
        settings: Of ``Engine``.

    Yields:
        The engine; None on all ranks but the first, when there is no more to do.

    Raises:
        ConfigError: The layout has replicas, or ranks that share weights of 8 bits.
    """
    if mesh.size == 1:
        yield Engine(loaded, dtype=dtype, owns_model=True, **settings)
        return
    if mesh.num_replicas > 1:
        raise ConfigError(REPLICAS, where="layout.dp", fix=NO_REPLICAS)
    if dtype == torch.int8:
        require_int8(mesh.device, mesh.size)
    model = RankModel(loaded, dtype)
    if mesh.is_first:
        yield Engine(loaded, dtype=dtype, model=model, **settings)
        model.close()
    else:
        model.follow()
        yield None
