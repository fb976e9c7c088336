"""``groundup`` and ``python -m groundup``."""

import atexit
import gc
import os
import sys
from types import TracebackType

_EXTRAS = {"torch": "train", "safetensors": "train", "tensorboard": "tensorboard"}
"""Module -> the extra of the package that installs it."""


def main() -> None:
    """Runs the command line: an error that the user can mend ends in one paragraph and exit code 1."""
    atexit.register(gc.freeze)  # a last collection of what ends with the process anyway takes a while
    sys.excepthook = _leave_to_launcher
    debug = "--debug" in sys.argv[1:]
    try:
        _run([argument for argument in sys.argv[1:] if argument != "--debug"], debug=debug)
    except KeyboardInterrupt:  # wherever it comes, while modules are imported too
        if debug:
            raise
        print("groundup: interrupted; the same command continues or begins again", file=sys.stderr)
        sys.exit(130)


def _run(arguments: list[str], *, debug: bool) -> None:
    from groundup.cli.app import run
    from groundup.core import log
    from groundup.core.errors import GroundupError

    log.set_up(debug=debug)
    try:
        run(arguments)
    except GroundupError as error:
        if debug:
            raise
        if not _recorded(error):
            print(f"groundup: {error}", file=sys.stderr)
        sys.exit(1)
    except ModuleNotFoundError as error:
        if debug or error.name not in _EXTRAS:
            raise
        extra = _EXTRAS[error.name]
        print(f"groundup: this needs {error.name}. Type: pip install 'groundup[{extra}]'", file=sys.stderr)
        sys.exit(1)
    except BrokenPipeError:  # the reader of our output has gone, as `head` does
        sys.stderr.close()
        sys.exit(0)


def _leave_to_launcher(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """An uncaught exception: of several ranks' the first is shown."""
    if not _recorded(error):
        sys.__excepthook__(kind, error, trace)


def _recorded(error: BaseException) -> bool:
    if "GROUNDUP_FAILURES" not in os.environ:  # so that no other command loads what it does not need
        return False
    from groundup.parallel.last_words import record_failure

    return record_failure(error)


if __name__ == "__main__":
    main()
