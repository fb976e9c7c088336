"""Dumps the stacks of this process's threads, and tells whether they wait for other ranks."""

import dataclasses
import sys
import threading
import traceback
from collections.abc import Sequence
from pathlib import PurePath
from traceback import FrameSummary

_COLLECTIVES = "torch/distributed/"
_THROUGH = (
    "torch/_ops.py",
    "torch/_tensor.py",
    "torch/_compile.py",
    "torch/utils/",
    "torch/_dynamo/eval_frame",
)
"""Files whose frames stand between a collective and its wait."""
_LOGGING = "torch/distributed/c10d_logger.py"  # wraps each collective
_COMPILING = ("torch/_dynamo/convert_frame.py", "torch/_inductor/compile_fx.py")
_IDLE_FILES = ("concurrent/futures/thread.py", "torch/utils/data/_utils/pin_memory.py")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StackDump:
    """What the threads of this process are doing.

    Attributes:
        at: Innermost frame of the main thread, e.g. ``result in _base.py:453``.
        collective: The collective in which it waits for other ranks, with its caller; empty for none.
        compiles: Whether torch.compile is at work.
        text: The stacks of all threads but the one that asks.
    """

    at: str
    collective: str
    compiles: bool
    text: str


def dump_stacks() -> StackDump:
    """Returns the stacks of all threads but the one that asks."""
    frames = sys._current_frames()
    main = threading.main_thread().ident
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    own = threading.get_ident()
    stacks = {
        number: traceback.extract_stack(frames[number])
        for number in sorted(frames, key=lambda number: number != main)
        if number != own
    }
    # Threads of C++ that Python does not know are those of the backward pass.
    workers = [stack for number, stack in stacks.items() if number == main or number not in names]
    return StackDump(
        at=_describe(stacks[main][-1]) if main in stacks else "",
        collective=next((found for stack in workers if (found := collective_in(stack))), ""),
        compiles=any(_is_in(frame, *_COMPILING) for stack in workers for frame in stack),
        text="".join(
            f"Thread {names.get(number, 'of C++')}:\n{''.join(traceback.format_list(stack))}"
            for number, stack in stacks.items()
            if not _is_idle(stack)
        ),
    )


def collective_in(stack: Sequence[FrameSummary]) -> str:
    """Returns the collective in which a thread waits for other ranks; empty where it does something else.

    Args:
        stack: The outermost frame first.
    """
    inner = list(stack)
    while inner and _is_in(inner[-1], *_THROUGH):
        inner.pop()
    if not inner or not _is_in(inner[-1], _COLLECTIVES):
        return ""
    collective = inner.pop()
    while inner and (_is_in(inner[-1], _COLLECTIVES, *_THROUGH)):
        frame = inner.pop()
        collective = collective if _is_in(frame, _LOGGING) else frame
    return f"{collective.name}, called by {_describe(inner[-1])}" if inner else collective.name


def _describe(frame: FrameSummary) -> str:
    return f"{frame.name} in {PurePath(frame.filename).name}:{frame.lineno}"


def _is_in(frame: FrameSummary, *files: str) -> bool:
    path = PurePath(frame.filename).as_posix()
    return any(f"/{file}" in path for file in files)


def _is_idle(stack: Sequence[FrameSummary]) -> bool:
    """Whether a thread only waits for work: of no use to a reader."""
    return bool(stack) and _is_in(stack[-1], *_IDLE_FILES)
