"""Text that can be shown while its tokens come."""

import codecs
from collections.abc import Sequence


class TextStream:
    """Turns bytes of tokens into text that can be shown at once: whole characters, no part of a stop string.

    Bytes that are not UTF-8 become U+FFFD.
    """

    def __init__(self, stop: Sequence[str] = ()) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._stop = tuple(filter(None, stop))
        self._held = ""
        self.stopped = False

    def feed(self, data: bytes, *, final: bool = False) -> str:
        """Returns the text that follows for certain; sets ``stopped`` when it ends before a stop string."""
        self._held += self._decoder.decode(data, final=final)
        found = [at for at in (self._held.find(stop) for stop in self._stop) if at >= 0]
        self.stopped = bool(found)
        if found:
            return self._release(min(found))
        return self._release(len(self._held) if final else len(self._held) - self._open_stop_length())

    def _open_stop_length(self) -> int:
        """Characters at the end that may be the beginning of a stop string."""
        longest = 0
        for stop in self._stop:
            for length in range(min(len(stop) - 1, len(self._held)), longest, -1):
                if self._held.endswith(stop[:length]):
                    longest = length
                    break
        return longest

    def _release(self, length: int) -> str:
        text, self._held = self._held[:length], self._held[length:]
        return text
