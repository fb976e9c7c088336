"""The key/value cache of generation.

Shapes: B batch, K kv heads, T new tokens, S capacity in tokens, H head dim.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


class KeyValueCache:
    """One pair of buffers [B, K, S, H] a layer, filled from the left; all rows hold ``length`` tokens.

    ``capacity`` is S, the most tokens that a row can hold.
    """

    def __init__(
        self,
        *,
        num_layers: int,
        batch_size: int,
        num_kv_heads: int,
        capacity: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        shape = (num_layers, 2, batch_size, num_kv_heads, capacity, head_dim)
        self._buffer = torch.zeros(shape, dtype=dtype, device=device)
        self.capacity = capacity
        self.length = 0

    def append(self, layer: int, k_BKTH: Tensor, v_BKTH: Tensor) -> tuple[Tensor, Tensor]:
        """Stores a layer's new keys and values, and returns all of that layer so far.

        The length grows when the model's forward calls ``advance``, after its last layer.
        """
        end = self.length + k_BKTH.shape[2]
        assert end <= self.capacity, "the caller sizes the cache"
        keys, values = self._buffer[layer]
        keys[:, :, self.length : end] = k_BKTH
        values[:, :, self.length : end] = v_BKTH
        return keys[:, :, :end], values[:, :, :end]

    def advance(self, num_tokens: int) -> None:
        """Counts the tokens that every layer has just appended."""
        self.length += num_tokens

    def keep(self, rows: Sequence[int]) -> None:
        """Drops all rows but these, which move up in the order given."""
        self._buffer = self._buffer[:, :, list(rows)]
