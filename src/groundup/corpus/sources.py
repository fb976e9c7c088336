"""Which files a list of files, folders and globs means."""

import collections
import dataclasses
import os
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePath
from typing import Literal

from groundup.core.errors import DataError
from groundup.core.log import logger
from groundup.core.manifest import fingerprint
from groundup.corpus.corpus_manifest import MANIFEST, find_corpus_manifest
from groundup.corpus.dataset_folder import ARROW_ENDING, names_of_documents

JSON_ENDINGS = frozenset({".jsonl", ".json", ".ndjson"})
_PROSE = (".txt", ".text", ".md", ".markdown", ".rst", ".tex", ".org", ".adoc", ".log")
_CODE = (
    ".py",
    ".pyi",
    ".ipynb",
    ".c",
    ".h",
    ".cc",
    ".cpp",
    ".hpp",
    ".cu",
    ".rs",
    ".go",
    ".java",
    ".kt",
    ".scala",
    ".js",
    ".ts",
    ".jsx",
    ".tsx",
    ".rb",
    ".php",
    ".pl",
    ".lua",
    ".sh",
    ".sql",
    ".r",
    ".jl",
    ".hs",
    ".ml",
    ".lisp",
    ".el",
    ".clj",
    ".swift",
    ".cs",
)
_MARKUP = (".css", ".xml", ".yaml", ".yml", ".toml", ".ini", ".cfg", ".csv", ".tsv", ".srt")
TEXT_ENDINGS = frozenset({*_PROSE, *_CODE, *_MARKUP})
PARQUET_ENDING = ".parquet"
HTML_ENDINGS = frozenset({".html", ".htm", ".xhtml"})
WARC_ENDINGS = frozenset({".warc", ".wet"})
_TABLE_ENDINGS = frozenset({PARQUET_ENDING, ARROW_ENDING})
_PAGE_ENDINGS = HTML_ENDINGS | WARC_ENDINGS
_READ_ENDINGS = TEXT_ENDINGS | JSON_ENDINGS | _TABLE_ENDINGS | _PAGE_ENDINGS
COMPRESSED_ENDINGS = frozenset({".gz", ".zst"})
_UNREADABLE_ENDINGS = {".zip": "zip", ".tar": "tar", ".xz": "xz"}
_MAGIC = frozenset("*?[")
_LISTED = 1000

Form = Literal["lines", "text", "rows", "html", "warc"]
"""How a file is read."""


_LOOKED_FOR = {
    False: (
        "text, JSONL, Parquet, Arrow, WARC or HTML",
        "Looked for *.txt, *.md, *.py and other text, *.jsonl, *.json, *.ndjson, *.html, *.warc, each also "
        "with .gz or .zst, *.parquet, *.arrow; to read a file of another ending as text, name it or a glob.",
    ),
    True: (
        "WARC or HTML",
        "Looked for *.warc, *.wet, *.html, *.htm and *.xhtml, each also with .gz or .zst.",
    ),
}


@dataclasses.dataclass(frozen=True, slots=True)
class SourceFile:
    """A file to read.

    Attributes:
        path: As reached from the source the user gave.
        name: Relative to that source: the stem of its documents' ids. Valid Unicode.
        size_bytes: On disk.
        mtime_ns: Time of its last change.
    """

    path: Path
    name: str
    size_bytes: int
    mtime_ns: int


def content_ending(path: PurePath) -> str:
    """The ending that says what a file holds, in lower case: ``.jsonl`` of ``a.jsonl.zst``."""
    inner = path.with_suffix("") if path.suffix.lower() in COMPRESSED_ENDINGS else path
    return inner.suffix.lower()


def form_of(path: Path) -> Form:
    """How a file is read: JSON lines, one text, the rows of Parquet or Arrow, or one page or several.

    Raises:
        DataError: It is of a kind that is not read.
    """
    ending = content_ending(path)
    kind = _UNREADABLE_ENDINGS.get(ending) or _UNREADABLE_ENDINGS.get(path.suffix.lower())
    if ending in _TABLE_ENDINGS and path.suffix.lower() != ending:
        kind = f"compressed {ending[1:].capitalize()}"
    if kind:
        raise DataError(
            f"{kind} files are not read",
            where=path,
            fix="Convert it to JSONL, one object with the text a line, to Parquet, or to text files.",
        )
    if ending in _PAGE_ENDINGS:
        return "warc" if ending in WARC_ENDINGS else "html"
    if ending in _TABLE_ENDINGS:
        return "rows"
    return "lines" if ending in JSON_ENDINGS else "text"


def find_files(sources: Sequence[Path]) -> list[Path]:
    """The files that ``find_source_files`` finds, as paths."""
    return [source.path for source in find_source_files(sources)]


def find_source_files(
    sources: Sequence[Path], *, leave_out: Path | None = None, only_pages: bool = False
) -> list[SourceFile]:
    """The files that the sources mean, each once, in the order of the sources.

    A folder means the text, JSONL, Parquet, Arrow, WARC and HTML files in it and in its subfolders, sorted by
    relative path; hidden ones, ``__pycache__`` and ``manifest.json`` are passed over, and so are files with
    other endings (a log line counts them), and what describes a Hugging Face dataset. A folder of a corpus or
    a crawl, wherever it lies, means its documents. A glob (``*``, ``?``, ``[...]``, ``**``) means the files
    it matches, sorted; a file means itself, whatever its ending.

    Args:
        sources: Files, folders and globs.
        leave_out: A folder whose files are not taken (the output folder, when it lies in a source).
        only_pages: Of folders, take WARC and HTML files and nothing else.

    Raises:
        DataError: A source is missing, unreadable or of no use, with what was looked for.
    """
    if not sources:
        raise DataError("no source was given", fix="Name at least one file, folder or glob.")
    hidden_from = leave_out.resolve() if leave_out else None
    found: list[SourceFile] = []
    seen: set[Path] = set()
    for source in sources:
        try:
            for path, name in _files_of(Path(source).expanduser(), only_pages):
                real = path.resolve()
                if real in seen or (hidden_from and real.is_relative_to(hidden_from)):
                    continue
                seen.add(real)
                status = path.stat()
                found.append(SourceFile(path, _unicode(name), status.st_size, status.st_mtime_ns))
        except OSError as error:
            raise DataError(
                f"cannot look into it ({error.strerror})",
                where=error.filename or source,
                fix="Make it readable or leave it out.",
            ) from None
    if not found:
        raise DataError(
            f"nothing to read: the only files are in the output folder {leave_out}",
            where=", ".join(str(source) for source in sources),
            fix="Name another source or another output folder.",
        )
    return found


def _files_of(source: Path, only_pages: bool) -> Iterator[tuple[Path, str]]:
    """Each file of one source and its name within it."""
    if source.is_dir():
        yield from _files_in(source, only_pages)
    elif source.is_file():
        yield source, source.name
    elif source.exists():
        raise DataError(
            "neither a file nor a folder", where=source, fix="Write its content to a file and name that file."
        )
    elif _MAGIC & set(str(source)):
        fixed = list(_fixed_parts(source))
        base = Path(*fixed) if fixed else Path()
        pattern = str(source.relative_to(base))
        matches = sorted(path for path in base.glob(pattern) if path.is_file()) if base.is_dir() else []
        if not matches:
            raise DataError(
                f"no file matches the pattern {pattern!r} in {base.absolute()}", where=source, fix="Check it."
            )
        for path in matches:
            yield path, path.relative_to(base).as_posix()
    else:
        nearest = next((parent for parent in source.absolute().parents if parent.exists()), Path("/"))
        raise DataError(
            f"no such file or folder (looked for {source.absolute()}; {nearest} exists)",
            where=source,
            fix="Check the path.",
        )


def _files_in(folder: Path, only_pages: bool) -> Iterator[tuple[Path, str]]:
    taken: list[tuple[str, Path]] = []
    others: collections.Counter[str] = collections.Counter()
    visited: set[str] = set()

    def refuse(error: OSError) -> None:  # os.walk would pass over a folder that it cannot list
        raise error

    for root, folders, names in os.walk(folder, onerror=refuse, followlinks=True):
        real = os.path.realpath(root)
        if real in visited:  # a link back up
            folders.clear()
            continue
        visited.add(real)
        is_crawl = ".crawl" in folders and any(name.startswith("documents-") for name in names)
        if is_crawl and not only_pages:  # its documents; in warc are the same pages, as served
            folders.clear()
        folders[:] = sorted(name for name in folders if not _passed_over(name))
        if MANIFEST in names and (corpus := find_corpus_manifest(Path(root))):
            folders.clear()
            names = corpus.documents
        for name in names_of_documents(Path(root), names):
            path = Path(root, name)
            if _passed_over(name) or not path.is_file():
                continue
            if content_ending(path) in (_PAGE_ENDINGS if only_pages else _READ_ENDINGS):
                taken.append((path.relative_to(folder).as_posix(), path))
            else:
                others[content_ending(path) or "no ending"] += 1
    listed = ", ".join(f"{_unicode(ending)}: {count:,}" for ending, count in others.most_common(5))
    if not taken:
        raise DataError(
            f"no {_LOOKED_FOR[only_pages][0]} file in the folder"
            + (f" (other endings: {listed})" if others else ""),
            where=folder,
            fix=_LOOKED_FOR[only_pages][1],
        )
    if others:
        logger.info("%s: %s files with other endings passed over (%s)", folder, sum(others.values()), listed)
    for name, path in sorted(taken):
        yield path, name


def _passed_over(name: str) -> bool:
    return name.startswith(".") or name in ("__pycache__", "manifest.json")


def _fixed_parts(pattern: Path) -> Iterator[str]:
    """The leading parts of a pattern that hold no wildcard."""
    for part in pattern.parts:
        if _MAGIC & set(part):
            return
        yield part


def printable(path: Path) -> str:
    """A path as valid Unicode."""
    return str(path).encode("utf-8", "replace").decode()


def _unicode(name: str) -> str:
    """A file name as valid Unicode: bytes that are not UTF-8 become the replacement character."""
    return os.fsencode(name).decode("utf-8", "replace")


def describe_sources(files: Sequence[SourceFile]) -> dict[str, str]:
    """File -> size and time of change; one fingerprint of all where they are many."""
    described = {
        ascii(str(file.path))[1:-1]: f"{file.size_bytes} bytes, changed {file.mtime_ns} ns" for file in files
    }
    if len(described) > _LISTED:
        return {f"{len(described)} files": fingerprint(described)}
    return described
