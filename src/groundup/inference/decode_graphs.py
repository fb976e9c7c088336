"""CUDA graphs of decoding steps: a step's hundreds of kernels are launched by one call.

A graph is of one number of texts and one number of blocks each, both rounded up to powers of two; a text that
fills up writes to a spare block, and what it computes is dropped. Graphs are captured as they are needed.

Shapes: R texts of a graph, C blocks of each, M tokens, V vocabulary.
"""

import dataclasses
from collections.abc import Callable

import torch
from torch import Tensor

from groundup.inference.paged_cache import PagedCache
from groundup.inference.runner import StepPlan

Forward = Callable[[Tensor, Tensor], Tensor]
"""Computes logits [M, V] of tokens [1, M] at positions [1, M], with the cache as it was prepared."""

_MOST_GATHERED_BYTES = 1 << 28
"""Of a layer's keys or values; longer texts are computed without a graph, for launching is then no matter."""


@dataclasses.dataclass(frozen=True)
class _Graph:
    """A captured step: what it reads, as one tensor and its twin in page-locked memory, and its logits."""

    graph: torch.cuda.CUDAGraph
    numbers: Tensor
    on_host: Tensor
    logits_RV: Tensor


class DecodeGraphs:
    """The graphs of one model and cache.

    Args:
        forward: Of the model.
        cache: In which the model keeps keys and values.
        spare_block: A block of the cache that no text has.
    """

    def __init__(self, forward: Forward, cache: PagedCache, spare_block: int) -> None:
        self._forward = forward
        self._cache = cache
        self._spare = spare_block
        self._memory = torch.cuda.graph_pool_handle()
        self._graphs: dict[tuple[int, int], _Graph] = {}

    def compute(self, plan: StepPlan) -> Tensor | None:
        """Returns the logits [R, V] of a step in which each text has one token; None for any other step."""
        num_texts = len(plan.spans)
        if plan.rows != list(range(len(plan.tokens))) or any(span.num_tokens > 1 for span in plan.spans):
            return None
        size = self._cache.block_size
        texts = _power_of_two(num_texts)
        blocks = _power_of_two(max(-(-span.end // size) for span in plan.spans))
        if texts * blocks * self._cache.block_bytes > _MOST_GATHERED_BYTES:
            return None
        missing = texts - num_texts
        # Where a text has no more blocks, its own first is read: its numbers are finite if the text's are.
        table = [
            block
            for span in plan.spans
            for block in (*span.blocks[:blocks], *(span.blocks[:1] * (blocks - len(span.blocks))))
        ]
        numbers = [*plan.tokens, *[0] * missing, *plan.positions, *[0] * missing]
        numbers += [*(span.blocks[span.start // size] for span in plan.spans), *[self._spare] * missing]
        numbers += [*(span.start % size for span in plan.spans), *[0] * missing]
        numbers += [*(span.end for span in plan.spans), *[1] * missing]
        numbers += [*table, *[self._spare] * (missing * blocks)]
        graph = self._graphs.get((texts, blocks))
        if graph is None:
            graph = self._graphs[texts, blocks] = self._capture(texts, numbers)
        else:
            graph.on_host.copy_(torch.tensor(numbers))
            graph.numbers.copy_(graph.on_host, non_blocking=True)
        graph.graph.replay()
        return graph.logits_RV[:num_texts]

    def _capture(self, texts: int, numbers: list[int]) -> _Graph:
        on_host = torch.tensor(numbers).pin_memory()
        on_device = on_host.to(self._cache.device)

        def step() -> Tensor:
            tokens_R, positions_R, blocks_R, places_R, lengths_R = on_device[: 5 * texts].view(5, texts)
            table_RC = on_device[5 * texts :].view(texts, -1)
            self._cache.prepare_decodes(blocks_R, places_R, table_RC, lengths_R.unsqueeze(1))
            return self._forward(tokens_R.unsqueeze(0), positions_R.unsqueeze(0))

        # Libraries allocate in their first call, which a graph must not; it writes what the graph will.
        warm_up = torch.cuda.Stream()
        warm_up.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(warm_up):
            step()
        torch.cuda.current_stream().wait_stream(warm_up)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._memory, capture_error_mode="thread_local"):
            logits_RV = step()
        return _Graph(graph, on_device, on_host, logits_RV)


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()
