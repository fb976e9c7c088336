"""Errors of the operating system over a path that the user gave, in a sentence that names its setting."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from groundup.core.errors import MachineError
from groundup.core.files import DISK_IS_FULL


def refused_by_system(error: OSError, arguments: Sequence[str]) -> MachineError | None:
    """What to say of a file that cannot be read, made or written.

    Args:
        error: Of the operating system.
        arguments: The command line, in which the setting is looked for.

    Returns:
        None where it is no matter of a file: then it is a fault of ours.
    """
    is_full = error.errno in DISK_IS_FULL
    if not is_full and not isinstance(error.filename, str):
        return None
    path = str(error.filename or "")
    words = [word for word in (_setting_of(path, arguments), path) if word]
    return MachineError(
        f"{'the disk is full' if is_full else 'the system refuses this path'} ({error.strerror})",
        where=": ".join(dict.fromkeys(words)),
        fix="Free some space, or write elsewhere." if is_full else "Check the path, and who may use it.",
    )


def _setting_of(path: str, arguments: Sequence[str]) -> str:
    """The flag or key whose value is the path, or a folder or the beginning of a name above it."""
    of_value = {value: name for name, value in _settings(arguments) if value}
    found = [value for value in of_value if path and _is_made_from(Path(path), Path(value))]
    return of_value[max(found, key=len)] if found else ""


def _settings(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Name and value: of ``--out DIR``, ``--out=DIR`` and ``run_dir=DIR``; a lone path has no name."""
    flag = ""
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if equals:
            yield name, value
        elif not argument.startswith("-"):
            yield flag, argument
        flag = argument if argument.startswith("-") and not equals else ""


def _is_made_from(path: Path, given: Path) -> bool:
    """Whether it is the given path, above or inside it, or a sibling whose name begins with its name."""
    path, given = path.absolute(), given.absolute()
    begins_alike = path.parent == given.parent and path.name.lstrip(".").startswith(given.name)
    return path == given or path in given.parents or given in path.parents or begins_alike
