"""What a corpus was made from: the fingerprint of its settings and files, and the files for its manifest."""

from collections.abc import Mapping, Sequence
from typing import Any

from groundup import __version__
from groundup.core.manifest import fingerprint
from groundup.corpus.sources import SourceFile

_LISTED = 1000


def fingerprint_of(settings: Mapping[str, Any], files: Sequence[SourceFile]) -> str:
    """The fingerprint of a corpus: the settings that decide it, and path, size and time of each file."""
    described = [[str(file.path), file.size_bytes, file.mtime_ns] for file in files]
    # As ASCII, so that file names that are not Unicode can be hashed.
    return fingerprint({"version": __version__, "settings": dict(settings), "files": ascii(described)})


def listed(files: Sequence[SourceFile]) -> dict[str, str]:
    """File -> size and time of change; one fingerprint of all where they are many."""
    described = {
        ascii(str(file.path))[1:-1]: f"{file.size_bytes} bytes, changed {file.mtime_ns} ns" for file in files
    }
    if len(described) > _LISTED:
        return {f"{len(described)} files": fingerprint(described)}
    return described
