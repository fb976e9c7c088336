"""What a service needs of an engine."""

from typing import Protocol

from groundup.inference.sequence import Delta, Request


class TextEngine(Protocol):
    """Continues many texts at once; for one thread.

    Attributes:
        context: Tokens that the model can see at once.
    """

    context: int

    @property
    def max_batch_size(self) -> int:
        """Returns how many texts are worked on together at most."""
        ...

    def check(self, request: Request) -> None:
        """Refuses what cannot be generated.

        Raises:
            DataError, ConfigError: It cannot.
        """
        ...

    def add(self, request: Request) -> int:
        """Queues a request and returns the number of its text.

        Raises:
            DataError, ConfigError: As ``check``.
        """
        ...

    def abort(self, number: int) -> None:
        """Ends a text, of which no more deltas come; nothing if it has ended."""
        ...

    def step(self) -> list[Delta]:
        """Continues the texts in work, of which there are some; returns what was added to them."""
        ...
