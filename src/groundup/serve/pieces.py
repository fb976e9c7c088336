"""What is sent of a text: its characters with the tokens that they come from, cut before a stop string."""

import codecs
import dataclasses
from collections import deque
from collections.abc import Callable, Sequence

from groundup.inference.sampler import TokenLogprob
from groundup.inference.sequence import Delta


@dataclasses.dataclass(frozen=True)
class SentToken:
    """A token of a text.

    Attributes:
        number: Its id.
        offset: Characters of the text before it.
        logprob: Of it and of the most probable ones, where that was asked for.
    """

    number: int
    offset: int
    logprob: TokenLogprob | None


@dataclasses.dataclass(frozen=True)
class Piece:
    """What a client gets at once: a text and the tokens that begin in it."""

    text: str
    tokens: tuple[SentToken, ...]

    @classmethod
    def joined(cls, pieces: Sequence["Piece"]) -> "Piece":
        """Returns one piece of those that follow each other."""
        return cls(
            "".join(one.text for one in pieces), tuple(token for one in pieces for token in one.tokens)
        )


class PieceCutter:
    """Turns the deltas of one text into pieces.

    A token is held as long as its first character is: while a stop string may have begun, which is cut off
    with its tokens.

    Args:
        token_bytes: Returns what an id stands for.
        offset: Characters before the text.

    Attributes:
        decoded: Characters of all tokens so far, and those before.
    """

    def __init__(self, token_bytes: Callable[[int], bytes], offset: int = 0) -> None:
        self._token_bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self.decoded = self._sent = offset
        self._held: deque[SentToken] = deque()

    def locate(self, ids: Sequence[int], logprobs: Sequence[TokenLogprob | None]) -> list[SentToken]:
        """Returns the tokens that come next, each with the place where it begins."""
        found = []
        for number, logprob in zip(ids, logprobs, strict=True):
            found.append(SentToken(number, self.decoded, logprob))
            self.decoded += len(self._decoder.decode(self._token_bytes(number)))
        return found

    def cut(self, delta: Delta) -> Piece:
        """Returns what can be sent after a delta."""
        self._held += self.locate(delta.ids, delta.logprobs or (None,) * len(delta.ids))
        self._sent += len(delta.text)
        complete = delta.finished is not None and self._sent >= self.decoded
        ready = []
        while self._held and (complete or self._held[0].offset < self._sent):
            ready.append(self._held.popleft())
        return Piece(delta.text, tuple(ready))
