"""What makes a class a config; apart from ``config``, since reading and checking one needs slower imports."""

import dataclasses
from typing import Annotated, TypeVar, dataclass_transform

from annotated_types import Ge, Gt, Le, Lt

T = TypeVar("T")

_LARGEST = 2**63 - 1

NotNegative = Annotated[int, Ge(0), Le(_LARGEST)]
Positive = Annotated[int, Ge(1), Le(_LARGEST)]
Size = Annotated[int, Ge(1), Lt(2**31)]
"""A dimension of a model."""
NotNegativeFloat = Annotated[float, Ge(0)]
PositiveFloat = Annotated[float, Gt(0)]
Ratio = Annotated[float, Ge(0), Le(1)]
Probability = Annotated[float, Ge(0), Lt(1)]
"""Of dropout and of averages: at 1 nothing would be left."""


@dataclass_transform(frozen_default=True, kw_only_default=True)
def config(cls: type[T]) -> type[T]:
    """Declares a config class: frozen, keyword-only, and strict about unknown keys; its floats are finite.

    Bounds of its fields are annotated with the types above, ``annotated_types`` or ``pydantic.Field``.
    """
    cls.__pydantic_config__ = {"extra": "forbid", "allow_inf_nan": False}  # type: ignore[attr-defined]
    return dataclasses.dataclass(frozen=True, kw_only=True)(cls)
