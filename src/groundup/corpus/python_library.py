"""The standard library of the running Python: real code that every machine has, without a download.

Of CPython 3.11 it gives 606 documents and 9.8 MB. Left out are what would teach a model little or
make a held-out loss say nothing: test folders, installed packages, and tables that a program wrote.
"""

import os
import platform
import sysconfig
import tokenize
from collections.abc import Callable, Iterator
from pathlib import Path

from groundup.core.errors import DataError
from groundup.corpus.bad_records import BadRecords
from groundup.corpus.document import Document
from groundup.corpus.sources import SourceFile

_LEFT_OUT_FOLDERS = frozenset(
    {
        *("test", "tests", "idle_test", "__pycache__", "site-packages", "dist-packages", "lib-dynload"),
        "encodings",  # nearly all of it code pages, written by gencodec.py
        "pydoc_data",  # the language reference as one dictionary
        "msilib",  # Windows Installer's schema as tables
    }
)
_LEFT_OUT_FILES = frozenset({"html/entities.py", "stringprep.py", "re/_casefix.py"})
_LEFT_OUT_PREFIXES = ("_sysconfigdata", "_sysconfig_vars")


def find_python_library(folder: Path | None = None) -> list[SourceFile]:
    """The library's files, sorted by relative path.

    Args:
        folder: The library; that of the running Python when left out.

    Raises:
        DataError: It holds no source files (an embedded or stripped Python).
    """
    folder = folder or Path(sysconfig.get_path("stdlib"))
    found: list[SourceFile] = []
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in _LEFT_OUT_FOLDERS)
        for file_name in names:
            path = Path(root, file_name)
            name = path.relative_to(folder).as_posix()
            if path.suffix == ".py" and name not in _LEFT_OUT_FILES and _by_hand(file_name):
                status = path.stat()
                found.append(SourceFile(path, name, status.st_size, status.st_mtime_ns))
    if not found:
        raise DataError(
            "this Python comes without the source of its standard library",
            where=folder,
            fix="Name a folder or file of text to train on instead.",
        )
    return sorted(found, key=lambda file: file.name)


def read_python_library(
    files: list[SourceFile], *, bad_records: BadRecords, on_read: Callable[[int], None] | None = None
) -> Iterator[Document]:
    """Each file as a document: id is its relative path, ``meta`` has ``path`` and ``python`` (version)."""
    python = platform.python_version()
    for file in files:
        try:
            with tokenize.open(file.path) as stream:  # heeds the coding line
                text = stream.read()
        except OSError as error:
            raise DataError(
                f"cannot read the file ({error.strerror})", where=file.path, fix="Make it readable."
            ) from None
        except (SyntaxError, UnicodeDecodeError) as error:
            bad_records.add(str(file.path), "not in its declared encoding", detail=str(error))
            continue
        if on_read:
            on_read(file.size_bytes)
        bad_records.add_good()
        yield Document(file.name, "", text, {"path": file.name, "python": python})


def _by_hand(file_name: str) -> bool:
    return not file_name.startswith(_LEFT_OUT_PREFIXES)
