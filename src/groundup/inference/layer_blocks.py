"""One layer's keys and values, in blocks.

Shapes: C blocks, S tokens of a block, M new tokens, T tokens of a text, K kv heads, H head dim.
"""

from torch import Tensor


class LayerBlocks:
    """Blocks of keys and of values; on a CPU also as tables of rows, as attention reads them there.

    Args:
        keys: Memory of all blocks [C, S * K * H], as are the values.
        values: Of the same device.
        block_size: S.
        num_kv_heads: K.

    Attributes:
        keys_CSKH: Keys. On a CPU those of a block lie in memory by head, dimension and then token.
        values_CSKH: Values.
        key_rows: On a CPU, one number of a head of all tokens of a block as a row [C * K * H, S].
        value_rows: On a CPU, a head of a token as a row [C * S * K, H].
    """

    def __init__(self, keys: Tensor, values: Tensor, *, block_size: int, num_kv_heads: int) -> None:
        self.values_CSKH = values.view(len(values), block_size, num_kv_heads, -1)
        if keys.device.type == "cpu":
            self.keys_CSKH = keys.view(len(keys), num_kv_heads, -1, block_size).permute(0, 3, 1, 2)
            self.key_rows = keys.view(-1, block_size)
            self.value_rows = values.view(-1, self.values_CSKH.shape[-1])
        else:
            self.keys_CSKH = keys.view(self.values_CSKH.shape)

    def store(self, places: tuple[Tensor, ...], k_MKH: Tensor, v_MKH: Tensor) -> None:
        """Stores new keys and values; ``places`` are the block, and where in it, of each token."""
        self.keys_CSKH.index_put_(places, k_MKH)
        self.values_CSKH.index_put_(places, v_MKH)

    def of_text(self, table_C: Tensor, num_tokens: int) -> tuple[Tensor, Tensor]:
        """Returns copies of a text's first keys and values [1, K, T, H], of which it has these blocks."""
        k_1KTH, v_1KTH = (
            pool_CSKH[table_C].flatten(0, 1)[:num_tokens].transpose(0, 1).unsqueeze(0)
            for pool_CSKH in (self.keys_CSKH, self.values_CSKH)
        )
        return k_1KTH, v_1KTH
