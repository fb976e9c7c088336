"""Attention of texts that decode, each with one new token, to their blocks of the cache.

On a CPU the blocks are read where they are. ``embedding_bag`` adds up rows of a table, each times a weight:
with a head's values as rows and attention as weights it is what attention returns; with a block's keys in one
dimension of a head as a row, and the query as weights, it is their scores (docs/LOG.md has measurements).

Shapes: R texts, C blocks of a text, S tokens of a block, T tokens of all C, N heads, K kv heads, H head dim.
"""

import dataclasses

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from groundup.inference.layer_blocks import LayerBlocks


class GatheredAttention:
    """Attention of a group of texts by PyTorch's kernels, to copies of their blocks.

    Args:
        table_RC: Blocks of each text, filled up with any whose numbers are finite if the text's are.
        bias_R1T: Minus infinity where a text has no keys, elsewhere 0.
    """

    def __init__(self, table_RC: Tensor, bias_R1T: Tensor) -> None:
        self._table = table_RC.flatten()
        self._bias_R11T = bias_R1T.unsqueeze(1)

    def attend(self, q_RNH: Tensor, blocks: LayerBlocks) -> Tensor:
        """Returns attention of the queries to their texts' blocks of a layer [R, N, H]."""
        k_RKTH, v_RKTH = (
            pool.index_select(0, self._table).view(len(q_RNH), -1, *pool.shape[2:]).transpose(1, 2)
            for pool in (blocks.keys_CSKH, blocks.values_CSKH)
        )
        q_RKGH = q_RNH.unflatten(1, (k_RKTH.shape[1], -1))
        y_RKGH = scaled_dot_product_attention(q_RKGH, k_RKTH, v_RKTH, attn_mask=self._bias_R11T)
        return y_RKGH.flatten(1, 2)


class BagAttention:
    """The same on a CPU, by as few operators as possible: amid large matrices each is slow to start."""

    def __init__(self, table_RC: Tensor, bias_R1T: Tensor) -> None:
        self._table_RC = table_RC.int()
        self._bias_R1T = bias_R1T
        self._bags: _Bags | None = None  # all layers have the same

    def attend(self, q_RNH: Tensor, blocks: LayerBlocks) -> Tensor:
        """Returns attention of the queries to their texts' blocks of a layer [R, N, H]."""
        num_heads, head_dim = q_RNH.shape[1:]
        bags = self._bags = self._bags or self._find(num_heads, *blocks.values_CSKH.shape[1:])
        q = q_RNH.reshape(-1, head_dim).index_select(0, bags.queries).view(-1)
        scores = _sums(blocks.key_rows, bags.key_rows, bags.key_starts, q)
        scores_RNT = scores.view(len(q_RNH), num_heads, -1)
        weights_RNT = torch.add(self._bias_R1T, scores_RNT, alpha=head_dim**-0.5).softmax(-1)
        y = _sums(blocks.value_rows, bags.value_rows, bags.value_starts, weights_RNT.view(-1))
        return y.view(q_RNH.shape)

    def _find(self, num_heads: int, block_size: int, num_kv_heads: int, head_dim: int) -> "_Bags":
        num_texts, num_blocks = self._table_RC.shape
        of_head, of_token, of_number = (
            torch.arange(count, dtype=torch.int32) for count in (num_heads, block_size, head_dim)
        )
        kv_head_N1 = (of_head // (num_heads // num_kv_heads)).unsqueeze(1)
        block_R1C1 = self._table_RC.view(num_texts, 1, num_blocks, 1)
        within_N1H = (kv_head_N1 * head_dim + of_number).unsqueeze(1)
        key_rows = torch.add(within_N1H, block_R1C1, alpha=num_kv_heads * head_dim).flatten()
        within_N1S = (kv_head_N1 + of_token * num_kv_heads).unsqueeze(1)
        value_rows = torch.add(within_N1S, block_R1C1, alpha=num_kv_heads * block_size).flatten()
        return _Bags(
            torch.arange(num_texts * num_heads).repeat_interleave(num_blocks),
            key_rows,
            torch.arange(0, len(key_rows), head_dim, dtype=torch.int32),
            value_rows,
            torch.arange(0, len(value_rows), num_blocks * block_size, dtype=torch.int32),
        )


@dataclasses.dataclass(frozen=True)
class _Bags:
    """Which rows of a layer's blocks are added up, and where each sum's begin.

    Attributes:
        queries: Of each text, head and block: the row of the queries [R * N, H] with the weights of its sum.
        key_rows: Of each text, head, block and number of a head.
        key_starts: Of each text, head and block.
        value_rows: Of each text, head, block and token.
        value_starts: Of each text and head.
    """

    queries: Tensor
    key_rows: Tensor
    key_starts: Tensor
    value_rows: Tensor
    value_starts: Tensor


def _sums(table: Tensor, rows: Tensor, starts: Tensor, weights: Tensor) -> Tensor:
    """Returns the sums of rows times weights, one behind the other."""
    by_frequency, mode, sparse = False, 0, False  # 0 is "sum"; the function in torch.nn checks all again
    return torch.embedding_bag(table, rows, starts, by_frequency, mode, sparse, weights)[0]
