"""Official files of the evaluation tasks, downloaded from where their authors put them, and checked."""

import contextlib
import dataclasses
import fnmatch
import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path, PurePosixPath
from typing import IO

import yaml

from groundup.core.config_sources import nearest
from groundup.core.errors import ConfigError, DataError, GroundupError, MachineError
from groundup.core.files import atomic_write, checksum, require_free_space
from groundup.core.lock import locked
from groundup.core.object_store import Download, ObjectStore, name_of
from groundup.core.progress import Progress
from groundup.eval.tasks import TASKS
from groundup.eval.tasks.multiple_choice import MultipleChoice

_FORMS = {"storycloze": "https://cs.rochester.edu/nlp/rocstories/"}
"""Tasks whose authors send their files only to those who fill in a form."""
_UNFINISHED = ".eval-fetch-"


@dataclasses.dataclass(frozen=True, kw_only=True)
class OfficialFiles:
    """Says where the files of a task are, and what they are known by.

    Attributes:
        urls: Tried in turn.
        size: Bytes that they serve.
        sha256: Of these.
        recorded: Who recorded size and sha256.
        files: Path below the folder -> glob of the member of the archive, empty where no archive is served; a
            path that ends in / takes all members that match, by their own names.
        items: That the first of the files must hold.
    """

    urls: Sequence[str]
    size: int
    sha256: str
    recorded: str
    files: Mapping[str, str]
    items: int


def official_files() -> dict[str, OfficialFiles]:
    """Returns what can be downloaded, by task; ``wikitext`` is WikiText-103, ``wikitext2`` the other."""
    text = resources.files("groundup.eval").joinpath("official_files.yaml").read_text()
    return {name: OfficialFiles(**row) for name, row in yaml.safe_load(text).items()}


def fetch_official_files(
    names: Sequence[str], folder: Path, known: Mapping[str, OfficialFiles]
) -> dict[str, list[Path]]:
    """Downloads the files of tasks into a folder; those that are there and right are left alone.

    A file appears whole and checked or not at all; what several tasks need is downloaded once.

    Returns:
        Task -> files that were downloaded now; none where they were there.

    Raises:
        ConfigError: A task has no such files.
        DataError: What arrived, or what is there, is another file.
        MachineError: A library is missing, no server can be reached, or the disk is too small.
    """
    for name in names:
        _require_known(name, known)
    with (
        locked(folder / f"{_UNFINISHED}lock", what=f"the fetch into {folder}"),
        contextlib.ExitStack() as end,
    ):
        end.callback((folder / f"{_UNFINISHED}lock").unlink)
        for left_over in folder.glob(f"{_UNFINISHED}*/"):  # by a process that was killed
            shutil.rmtree(left_over)
        missing = {name: known[name] for name in names if not _is_there(name, known[name], folder)}
        sources = {row.sha256: row for row in missing.values()}
        total = sum(row.size for row in sources.values())
        require_free_space(folder, 2 * total, "fetching")
        found: dict[str, list[Path]] = {name: [] for name in names}
        with Progress("fetch", total, "B") as progress:
            for sha256, source in sources.items():
                # Removed whatever happens: an archive has much that no task reads.
                with tempfile.TemporaryDirectory(prefix=_UNFINISHED, dir=folder) as temporary:
                    arrived = _download(source, Path(temporary), progress)
                    for name, row in missing.items():
                        if row.sha256 == sha256:
                            found[name] = _put(name, row, arrived, Path(temporary) / "files", folder)
    return found


def _require_known(name: str, known: Mapping[str, OfficialFiles]) -> None:
    if name in _FORMS:
        raise ConfigError(
            f"the authors of {name} give its files only to those who fill in the form at {_FORMS[name]}",
            where="groundup eval fetch",
            fix="Put the CSV that they send you into the folder of --data.",
        )
    if name not in known:
        raise ConfigError(
            f"{name!r} has no official files; there are {', '.join(known)}",
            where="groundup eval fetch",
            fix=nearest(name, known),
        )


def _is_there(name: str, row: OfficialFiles, folder: Path) -> bool:
    """Tells whether all files of a task are there.

    Raises:
        DataError: Other files have their names.
    """
    paths = [folder / path for path in row.files]
    if not all(path.exists() for path in paths):
        return False
    if "" in row.files.values():
        if checksum(paths[0], algorithm="sha256") != f"sha256:{row.sha256}":
            raise DataError(
                f"is there and is not the official file of {name}",
                where=paths[0],
                fix="Remove it, or choose another folder.",
            )
    else:
        _require_items(name, row, paths[0])
    return True


def _download(row: OfficialFiles, folder: Path, progress: Progress) -> Path:
    """Downloads what the first URL serves that can be reached and serves the right file."""
    failures: list[GroundupError] = []
    for url in row.urls:
        path = folder / name_of(url)
        try:
            ObjectStore(url).get(
                [Download(url, path, row.size, f"sha256:{row.sha256}")], on_read=progress.add
            )
        except (DataError, MachineError) as error:
            failures.append(error)
        else:
            return path
    if len(failures) == 1:
        raise failures[0]
    raise MachineError(
        "; ".join(f"{failure.where}: {failure.what}" for failure in failures),
        where="none of its servers has it",
        fix=failures[-1].fix,
    )


def _put(name: str, row: OfficialFiles, arrived: Path, temporary: Path, folder: Path) -> list[Path]:
    """Takes the files of a task out of what arrived, checks that they can be read, and moves them."""
    written = [
        path for target, member in row.files.items() for path in _extract(arrived, target, member, temporary)
    ]
    _require_items(name, row, temporary / next(iter(row.files)))
    placed = []
    for path in written:
        target = folder / path.relative_to(temporary)
        target.parent.mkdir(parents=True, exist_ok=True)
        placed.append(path.replace(target))
    return placed


def _extract(arrived: Path, target: str, member: str, folder: Path) -> Iterator[Path]:
    if not member:
        (folder / target).parent.mkdir(parents=True, exist_ok=True)
        yield arrived.replace(folder / target)
        return
    taken = 0
    for name, stream in _members(arrived):
        if fnmatch.fnmatchcase(name, member):
            taken += 1
            path = folder / target / PurePosixPath(name).name if target.endswith("/") else folder / target
            with atomic_write(path) as file:
                shutil.copyfileobj(stream, file)
            yield path
    if not taken:
        raise DataError(f"has no member like {member}", where=arrived.name, fix="Report this.")


def _members(archive: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """Yields name and content of each file of a .zip or .tar."""
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive) as zipped:
            for name in zipped.namelist():
                with zipped.open(name) as stream:
                    yield name, stream
    else:
        with tarfile.open(archive) as tarred:
            for entry in tarred:
                if (content := tarred.extractfile(entry)) is not None:
                    yield entry.name, content


def _require_items(name: str, row: OfficialFiles, path: Path) -> None:
    """Refuses files in which our reader does not find as many items as their authors wrote.

    Raises:
        DataError: There are others.
    """
    task = TASKS.get(name)
    if task is not None and issubclass(task, MultipleChoice):
        count = sum(1 for _ in task().questions(path))
    else:
        count = path.read_bytes().count(b"\n")
    if count != row.items:
        raise DataError(
            f"holds {count:,} items, the official file of {name} {row.items:,}",
            where=path,
            fix="Remove it and fetch it again.",
        )
