"""Errors that the user can correct: they are printed as one paragraph, without a traceback."""


class GroundupError(Exception):
    """An error that the user can correct.

    The message is one paragraph: *where*: *what happened*. *what to do*.

    Args:
        what: What was found and which rule it breaks.
        where: The file (``path:line`` where there is a line), config key or command it concerns.
        fix: What to type or change.

    Attributes:
        exit_code: That of a process that ends by it.
    """

    exit_code = 1

    def __init__(self, what: str, *, where: object = "", fix: str = "") -> None:
        self.what = what
        self.where = str(where)
        self.fix = fix
        head = f"{self.where}: {what}" if self.where else what
        if fix:
            head = head.rstrip(".") + (" " if head.endswith("?") else ". ") + fix
        super().__init__(head)


class ConfigError(GroundupError):
    """A setting is unknown, of the wrong type, out of range, or contradicts another."""


class DataError(GroundupError):
    """A data file is missing, unreadable, malformed, empty or does not match its index."""


class CheckpointError(GroundupError):
    """A checkpoint is missing, incomplete, damaged or of another model."""


class MachineError(GroundupError):
    """The machine lacks what was asked for: a GPU, a precision, disk space, a compiler."""


class TrainingError(GroundupError):
    """Training cannot go on: the loss is not finite, or the loss scale is at its minimum."""
