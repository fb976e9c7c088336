"""Shows a status line at the bottom of a terminal; other output is written above it."""

import os
import sys
import threading
import unicodedata
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self, TextIO

_REFRESH_SECONDS = 0.25
_CLEAR = "\r\x1b[K"
_COLUMNS = 80  # of a terminal that does not tell


class LiveLine:
    """While entered, shows a line on stderr, cut to its width; nothing where that is no terminal.

    Args:
        text: Makes the line; called in a thread, several times a second. Empty for none.
    """

    def __init__(self, text: Callable[[], str]) -> None:
        self._text = text
        self._lock = threading.RLock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._is_shown = False
        self._is_line_begun = False

    @property
    def is_live(self) -> bool:
        """Tells whether stderr is a terminal."""
        return self._thread is not None

    def __enter__(self) -> Self:
        self._stderr, self._stdout = sys.stderr, sys.stdout
        if not self._stderr.isatty() or os.environ.get("TERM") == "dumb":
            return self
        sys.stderr = _Above(self._stderr, self)
        if self._stdout.isatty():
            sys.stdout = _Above(self._stdout, self)
        self._thread = threading.Thread(target=self._refresh, name="live line", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._thread is None:
            return
        self._ended.set()
        self._thread.join()
        self._thread = None
        sys.stderr, sys.stdout = self._stderr, self._stdout
        self._clear()

    def write_above(self, stream: TextIO, text: str) -> int:
        """Writes text in place of the line, which is drawn again below it."""
        with self._lock:
            self._clear()
            self._is_line_begun = bool(text) and not text.endswith("\n")
            return stream.write(text)

    def _refresh(self) -> None:
        while not self._ended.wait(_REFRESH_SECONDS):
            line = cut(self._text(), self._columns() - 1)
            with self._lock:
                if not self._is_line_begun:  # somebody's line is not complete
                    self._clear()
                    self._stderr.write(line)
                    self._stderr.flush()
                    self._is_shown = bool(line)

    def _clear(self) -> None:
        if self._is_shown:
            self._stderr.write(_CLEAR)
            self._stderr.flush()
            self._is_shown = False

    def _columns(self) -> int:
        try:
            return os.get_terminal_size(self._stderr.fileno()).columns or _COLUMNS
        except OSError:
            return _COLUMNS


class _Above:
    """A stream that writes its text above the line."""

    def __init__(self, stream: TextIO, line: LiveLine) -> None:
        self._stream = stream
        self._line = line

    def write(self, text: str) -> int:
        return self._line.write_above(self._stream, text)

    def writelines(self, lines: list[str]) -> None:
        self.write("".join(lines))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def cut(text: str, columns: int) -> str:
    """Cuts a text to a width in columns; wide characters of East Asian scripts take two."""
    widths = [2 if unicodedata.east_asian_width(character) in "WF" else 1 for character in text]
    if sum(widths) <= columns:
        return text
    used, kept = 0, 0
    while kept < len(text) and used + widths[kept] < columns:
        used += widths[kept]
        kept += 1
    return f"{text[:kept]}…"
