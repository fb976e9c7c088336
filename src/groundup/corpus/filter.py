"""What a filter is: one small config class that edits a document or drops it with a reason.

A filter is a ``@config`` class with a ``kind`` literal and ``apply``. Its verdict depends on the document
alone, never on the others: so filters run in any order of documents and in any number of processes. The
reasons it may give stand in the return type, ``Document | Drop[Literal["too short", "too long"]]``, so
that the type checker knows them and ``drop_reasons`` lists them.
"""

import dataclasses
import types
import typing
from typing import Any, Generic, TypeVar

ReasonT_co = TypeVar("ReasonT_co", bound=str, covariant=True)


@dataclasses.dataclass(frozen=True, slots=True)
class Drop(Generic[ReasonT_co]):
    """The verdict that a document is left out, and why.

    Attributes:
        reason: One of a small set.
        detail: What is particular to this one and worth counting, such as its language.
    """

    reason: ReasonT_co
    detail: str = ""


def drop_reasons(filter_class: type) -> tuple[str, ...]:
    """The reasons with which a filter may drop a document, from the return type of its ``apply``."""
    returned = typing.get_type_hints(filter_class.apply)["return"]  # type: ignore[attr-defined]
    members = typing.get_args(returned) if isinstance(returned, types.UnionType) else _members(returned)
    return tuple(
        reason
        for member in members
        if typing.get_origin(member) is Drop
        for reason in typing.get_args(typing.get_args(member)[0])
    )


def _members(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint) if typing.get_origin(hint) is typing.Union else (hint,)
