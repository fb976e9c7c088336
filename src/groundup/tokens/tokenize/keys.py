"""Which fields of which files can be tokenized."""

from collections.abc import Sequence

from groundup.core.errors import ConfigError
from groundup.corpus.sources import SourceFile, form_of


def require_keys(keys: Sequence[str]) -> None:
    """Refuses what is no list of fields.

    Raises:
        ConfigError: It is empty, names a field twice, or one that can be in no file's name.
    """
    if not keys or len(set(keys)) != len(keys) or any(not key or "/" in key for key in keys):
        raise ConfigError(
            f"{' '.join(keys) or 'nothing'} is not a list of different field names",
            where="--key",
            fix="Give e.g. --key text.",
        )


def require_forms(files: Sequence[SourceFile], keys: Sequence[str]) -> None:
    """Refuses several fields of what has none.

    Raises:
        ConfigError: Names the first such file.
    """
    for file in files:
        if form_of(file.path) in ("text", "html", "warc") and len(keys) > 1:
            raise ConfigError(
                "a text file or page has no keys, and several were given",
                where=file.path,
                fix="Give one key, or leave text files out.",
            )
