"""Names of the dimensions of a model's parameters."""

import fnmatch
from collections.abc import Mapping
from typing import Literal

Dimension = Literal["vocab", "position", "embed", "heads", "kv_heads", "ffn"]
"""Name of one dimension of a parameter; ``heads`` counts num_heads * head_dim rows, and so on."""

Axes = Mapping[str, tuple[Dimension, ...]]
"""Parameter name pattern (``*`` for a layer number) -> the names of its dimensions."""


def dimensions_of(axes: Axes, name: str) -> tuple[Dimension, ...]:
    """Returns the dimension names of one parameter.

    Raises:
        KeyError: The table has no entry for the parameter; the message names it.
    """
    if name in axes:
        return axes[name]
    for pattern, dimensions in axes.items():
        if fnmatch.fnmatchcase(name, pattern):
            return dimensions
    raise KeyError(f"AXES has no entry for parameter {name!r}")
