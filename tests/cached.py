"""A model's forward pass by pieces, with the cache of generation."""

from collections.abc import Sequence

import torch
from torch import Tensor

from groundup.inference.paged_cache import PagedCache, Span
from groundup.models import Model

BLOCK_SIZE = 8


def forward_by_pieces(model: Model, tokens_BT: Tensor, lengths: Sequence[int]) -> Tensor:
    """Hidden states [B, T, D]; the rows' blocks lie between each other's."""
    config = model.config
    batch_size, num_tokens = tokens_BT.shape
    num_blocks = -(-num_tokens // BLOCK_SIZE)
    cache = PagedCache(
        layers=range(config.num_layers),
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        num_blocks=batch_size * num_blocks,
        block_size=BLOCK_SIZE,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    found = []
    begin = 0
    for length in lengths:
        blocks = [list(range(row, batch_size * num_blocks, batch_size)) for row in range(batch_size)]
        spans = [Span(begin, length, own[: -(-(begin + length) // BLOCK_SIZE)]) for own in blocks]
        cache.prepare(spans)
        positions_BT = torch.arange(begin, begin + length).repeat(batch_size, 1)
        pieces_BT = tokens_BT[:, begin : begin + length]
        hidden = model(pieces_BT.reshape(1, -1), positions_BT=positions_BT.view(1, -1), cache=cache)
        found.append(hidden.view(batch_size, length, -1))
        begin += length
    assert begin == num_tokens
    return torch.cat(found, 1)
