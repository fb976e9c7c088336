"""What a page may cost, and how it fails where it costs more."""

from groundup.core.config_class import Positive, PositiveFloat, config


@config
class ExtractionLimits:
    """What a page may cost.

    Attributes:
        seconds: Of wall-clock time for a page; its worker is killed.
        memory_bytes: Address space of a worker, beyond which it gets no more.
        pages_per_worker: After so many a worker is replaced: the libraries leak.
    """

    seconds: PositiveFloat = 20.0
    memory_bytes: Positive = 2 << 30
    pages_per_worker: Positive = 500


class ExtractionFailure(Exception):
    """A page that could not be taken apart.

    Attributes:
        reason: "extraction time limit", "... out of memory", "... crashed" or "... error".
        detail: What is particular to this one.
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail
