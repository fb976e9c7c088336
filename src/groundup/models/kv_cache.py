"""What attention needs of a key/value cache; who generates text has one.

Shapes: B batch, N heads, K kv heads, T new tokens, H head dim.
"""

from typing import Protocol

from torch import Tensor


class KeyValueCache(Protocol):
    """Keeps the keys and values of earlier tokens of each layer."""

    def attend(self, layer: int, q_BNTH: Tensor, k_BKTH: Tensor, v_BKTH: Tensor) -> Tensor:
        """Stores a layer's new keys and values; returns attention to these and those before [B, N, T, H]."""
        ...
