"""``groundup`` and ``python -m groundup``."""

import atexit
import gc
import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType, TracebackType

from groundup.core.openmp import limit_spinning

_EXTRAS = {
    "torch": "train",
    "safetensors": "train",
    "tensorboard": "tensorboard",
    "wandb": "wandb",
    "mlflow": "mlflow",
    "aiohttp": "crawl",
    "protego": "crawl",
    "fastwarc": "crawl",
    "fastapi": "serve",
    "uvicorn": "serve",
    "prometheus_client": "serve",
    "jinja2": "finetune",
    "huggingface_hub": "hub",
}
"""Module -> the extra of the package that installs it."""

_IMPORTING = "<frozen importlib._bootstrap>"


def main() -> None:
    """Runs the command line: an error that the user can mend ends in one paragraph and exit code 1."""
    limit_spinning(os.environ)
    os.environ.setdefault(
        "OPENBLAS_NUM_THREADS", "1"
    )  # numpy multiplies nothing; without threads we can fork
    atexit.register(gc.freeze)  # a last collection of what ends with the process anyway takes a while
    sys.excepthook = _leave_to_launcher
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not in the background of a script
        signal.signal(signal.SIGINT, _interrupt)
    debug = "--debug" in sys.argv[1:]
    try:
        _run([argument for argument in sys.argv[1:] if argument != "--debug"], debug=debug)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # again while we end: at once
        if debug:
            raise
        _say_interrupted()
        sys.exit(128 + signal.SIGINT)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Ctrl-C: raises KeyboardInterrupt, but ends at once while modules are imported, which may swallow it."""
    above = frame
    while above is not None:
        if above.f_code.co_filename == _IMPORTING:
            _say_interrupted()
            os._exit(128 + number)
        above = above.f_back
    raise KeyboardInterrupt


def _say_interrupted() -> None:
    print("groundup: interrupted; the same command continues or begins again", file=sys.stderr, flush=True)


def _run(arguments: Sequence[str], *, debug: bool) -> None:
    from groundup.cli.app import refused_by_system, run
    from groundup.core import log
    from groundup.core.errors import GroundupError

    log.set_up(debug=debug)
    try:
        run(arguments)
    except GroundupError as error:
        if debug:
            raise
        _end_by(error, error)
    except ModuleNotFoundError as error:
        if debug or error.name not in _EXTRAS:
            raise
        extra = _EXTRAS[error.name]
        print(f"groundup: this needs {error.name}. Type: pip install 'groundup[{extra}]'", file=sys.stderr)
        sys.exit(1)
    except BrokenPipeError:  # the reader of our output has gone, as `head` does
        sys.stderr.close()
        sys.exit(0)
    except OSError as error:
        refusal = refused_by_system(error, arguments)
        if debug or refusal is None:
            raise
        _end_by(error, refusal)


def _end_by(error: BaseException, told: Exception) -> None:
    """Ends the process with what the user is told of an error; of several ranks' the first is shown."""
    if not _recorded(error):
        print(f"groundup: {told}", file=sys.stderr)
    sys.exit(getattr(told, "exit_code", 1))


def _leave_to_launcher(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """An uncaught exception: of several ranks' the first is shown."""
    if not _recorded(error):
        sys.__excepthook__(kind, error, trace)


def _recorded(error: BaseException) -> bool:
    if "GROUNDUP_FAILURES" not in os.environ:  # so that no other command loads what it does not need
        return False
    from groundup.launch.error_handler import record_failure

    return record_failure(error)


if __name__ == "__main__":
    main()
