"""What makes a class a config; apart from ``config``, since reading and checking one needs slower imports."""

import dataclasses
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, kw_only_default=True)
def config(cls: type[T]) -> type[T]:
    """Declares a config class: frozen, keyword-only, and strict about unknown keys.

    Bounds of its fields are annotated with ``annotated_types`` or ``pydantic.Field``.
    """
    cls.__pydantic_config__ = {"extra": "forbid"}  # type: ignore[attr-defined]
    return dataclasses.dataclass(frozen=True, kw_only=True)(cls)
