"""Attention of texts that decode, each with one new token, to their blocks of the cache.

On a CPU the blocks are read where they are. ``embedding_bag`` adds up rows of a table, each times a weight:
with a head's values as rows and attention as weights it is what attention returns; with a block's keys in one
dimension of a head as a row, and the query as weights, it is their scores (docs/LOG.md has measurements).

Shapes: R texts, C blocks of a text, S tokens of a block, T tokens of all C, N heads, K kv heads, H head dim.
"""

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag, scaled_dot_product_attention


class GatheredAttention:
    """Attention of a group of texts by PyTorch's kernels, to copies of their blocks.

    Args:
        table_RC: Blocks of each text, filled up with any whose numbers are finite if the text's are.
        bias_R1T: Minus infinity where a text has no keys, elsewhere 0.
    """

    def __init__(self, table_RC: Tensor, bias_R1T: Tensor) -> None:
        self._table = table_RC.flatten()
        self._bias_R11T = bias_R1T.unsqueeze(1)

    def attend(self, q_RNH: Tensor, keys_CSKH: Tensor, values_CSKH: Tensor) -> Tensor:
        """Returns attention of the queries to their texts' blocks of a layer [R, N, H]."""
        k_RKTH, v_RKTH = (
            pool.index_select(0, self._table).view(len(q_RNH), -1, *pool.shape[2:]).transpose(1, 2)
            for pool in (keys_CSKH, values_CSKH)
        )
        q_RKGH = q_RNH.unflatten(1, (k_RKTH.shape[1], -1))
        y_RKGH = scaled_dot_product_attention(q_RKGH, k_RKTH, v_RKTH, attn_mask=self._bias_R11T)
        return y_RKGH.flatten(1, 2)


class BagAttention:
    """The same on a CPU; a block's keys lie in memory by head, dimension and then token."""

    def __init__(self, table_RC: Tensor, bias_R1T: Tensor) -> None:
        self._table_RC = table_RC.int()
        self._bias_R1T = bias_R1T
        self._bags: tuple[_Bags, _Bags] | None = None  # all layers have the same

    def attend(self, q_RNH: Tensor, keys_CSKH: Tensor, values_CSKH: Tensor) -> Tensor:
        """Returns attention of the queries to their texts' blocks of a layer [R, N, H]."""
        num_heads, head_dim = q_RNH.shape[1:]
        if self._bags is None:
            self._bags = self._find(num_heads, *values_CSKH.shape[1:])
        of_scores, of_values = self._bags
        num_blocks = self._table_RC.shape[1]
        q_RNCH = (q_RNH * head_dim**-0.5).unsqueeze(2).expand(-1, -1, num_blocks, -1)
        scores = of_scores.sum(keys_CSKH.permute(0, 2, 3, 1).flatten(0, 2), q_RNCH)
        scores_RNT = scores.view(len(q_RNH), num_heads, -1).add_(self._bias_R1T)
        return of_values.sum(values_CSKH.flatten(0, 2), scores_RNT.softmax(-1)).view(q_RNH.shape)

    def _find(
        self, num_heads: int, block_size: int, num_kv_heads: int, head_dim: int
    ) -> tuple["_Bags", "_Bags"]:
        """Returns the bags of scores, and those of what attention returns."""
        of_head, of_token, of_number = (
            torch.arange(count, dtype=torch.int32) for count in (num_heads, block_size, head_dim)
        )
        kv_head_N1 = (of_head // (num_heads // num_kv_heads)).unsqueeze(1)
        heads_RNC = self._table_RC.unsqueeze(1) * num_kv_heads + kv_head_N1
        tokens_RT = (self._table_RC.unsqueeze(2) * block_size + of_token).flatten(1)
        return (
            _Bags(heads_RNC.unsqueeze(3) * head_dim + of_number),
            _Bags(tokens_RT.unsqueeze(1) * num_kv_heads + kv_head_N1),
        )


class _Bags:
    """Which rows of a table are added up: the last dimension is that of a sum."""

    def __init__(self, rows: Tensor) -> None:
        self._rows = rows.flatten()
        self._starts = torch.arange(0, rows.numel(), rows.shape[-1], dtype=rows.dtype)

    def sum(self, table: Tensor, weights: Tensor) -> Tensor:
        """Returns the sums of rows times weights, one behind the other."""
        return embedding_bag(
            self._rows, table, self._starts, mode="sum", per_sample_weights=weights.reshape(-1)
        )
