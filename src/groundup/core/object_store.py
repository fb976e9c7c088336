"""Files in object storage and on web servers, through fsspec (extra ``[remote]``)."""

import contextlib
import dataclasses
import functools
import importlib
import shutil
import threading
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.pool import ThreadPool
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from groundup.core.errors import ConfigError, DataError, MachineError
from groundup.core.files import DISK_IS_FULL, checksum, fsync_dir, fsync_file, temporary_path, unfinished
from groundup.core.log import logger

T = TypeVar("T")

_RETRIES = {"attempts": 6, "wait_initial": 1, "wait_max": 30, "timeout": None}  # about half a minute in all
_WEB = ("http", "https")
_LIBRARIES = ("aiohttp", "botocore", "gcsfs", "google", "azure", "httpx")  # raise more than OSErrors
_PERMANENT = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError, NotImplementedError)
_NO_CREDENTIALS = ("NoCredentialsError", "PartialCredentialsError", "DefaultCredentialsError")
_HIDDEN_STATUS = (401, 403, 404, 410)  # a store that may not be listed says 403 of what is not there
_TRANSIENT_STATUS = (408, 425, 429)
_REMOVALS = 100  # of a folder in which files appear meanwhile


@dataclasses.dataclass(frozen=True)
class Download:
    """A file of ``size`` bytes to put at ``path``; ``checksum`` (xxh3: or sha256:) is empty where unknown."""

    url: str
    path: Path
    size: int
    checksum: str = ""


def is_web(url: str) -> bool:
    """Tells whether a URL is on a web server; most of these cannot list folders."""
    return url.partition("://")[0] in _WEB


def name_of(url: str) -> str:
    """Returns the last part of the path of a URL."""
    return PurePosixPath(urllib.parse.urlsplit(url).path if is_web(url) else url).name


def is_pattern(url: str) -> bool:
    """Tells whether a URL has wildcards; on a web server ``?`` begins the query."""
    return any(character in url for character in ("*[" if is_web(url) else "*[?"))


class ObjectStore:
    """The store of a URL: s3://, gs://, https://, file://, hf:// and whatever else fsspec knows.

    Credentials and endpoints are left to the store's library and to fsspec (its config file, or variables
    such as ``FSSPEC_S3_ANON=true``). Every method repeats what fails for a transient reason, and raises a
    MachineError when that does not help.

    Raises:
        ConfigError: fsspec knows no such store.
        MachineError: fsspec, or the library behind it for this store, is not installed.
    """

    def __init__(self, url: str) -> None:
        self._filesystem, self._stamina, self._callbacks = _libraries(url)
        self._stamina.instrumentation.set_on_retry_hooks([_log_retry])

    def size(self, url: str) -> int | None:
        """Returns the size of a file in bytes; None where it does not exist or may not be read.

        Raises:
            DataError: The server does not tell.
        """
        info = self.with_retries(self._info, url)
        if info is None or info["type"] == "directory":
            return None
        if info["size"] is None:
            raise DataError(
                "the server does not tell its size", where=url, fix="Download it by other means, e.g. curl."
            )
        return int(info["size"])

    def files(self, url: str) -> list[str]:
        """Lists the URLs in a folder or of a pattern; empty where the store cannot list it."""
        pattern = url if is_pattern(url) else url.rstrip("/") + "/*"
        found = self.with_retries(functools.partial(self._filesystem.glob, detail=True), pattern)
        files = [name for name, info in found.items() if info["type"] == "file"]
        return sorted(self._filesystem.unstrip_protocol(name) for name in files)

    def read(self, url: str) -> bytes:
        """Reads a small file whole."""
        content: bytes = self.with_retries(self._filesystem.cat_file, url)
        return content

    def get(
        self, downloads: Sequence[Download], *, on_read: Callable[[int], None], connections: int = 8
    ) -> None:
        """Downloads files; each appears complete and verified, or not at all.

        Args:
            downloads: What to download; existing files are replaced.
            on_read: Told the bytes of each piece that arrives; those of a failed attempt are taken back.
            connections: Files at a time.

        Raises:
            DataError: A file does not have its checksum.
        """
        lock = threading.Lock()

        def add(size: int) -> None:
            with lock:
                on_read(size)

        folders: dict[Path, Path] = {}
        try:
            for path in (download.path for download in downloads):
                if path.parent not in folders:
                    folders[path.parent] = temporary_path(path)
                    folders[path.parent].mkdir(parents=True, exist_ok=True)
            # Its threads are daemons: Ctrl-C need not wait for the requests under way.
            with ThreadPool(max(1, min(connections, len(downloads)))) as pool:
                get = functools.partial(self._get, folders=folders, on_read=add)
                for _ in pool.imap_unordered(get, downloads):
                    pass
        finally:
            for path in (download.path for download in downloads):  # what a killed process has left, too
                for left in unfinished(path.parent, f"{path.name}."):
                    _remove(left)

    def put(self, path: Path, url: str, *, on_write: Callable[[int], None]) -> None:
        """Uploads a file; ``on_write`` gets the bytes of each part, as ``on_read`` of ``get``."""

        def upload(url: str) -> None:
            with self._counted(path.stat().st_size, on_write) as callback:
                self._filesystem.put_file(str(path), url, callback=callback)

        self.with_retries(upload, url, what="written")

    def with_retries(self, action: Callable[[str], T], url: str, *, what: str = "read") -> T:
        """Returns ``action(url)``, retried; ``what`` names the action in the error message.

        Raises:
            MachineError: It failed for a permanent reason, or at every attempt.
        """
        try:
            result: T = self._stamina.retry(on=_is_transient, **_RETRIES)(action)(url)
        except Exception as error:
            if not _is_of_store(error):
                raise
            raise _failure(url, error, what) from None
        return result

    def _info(self, url: str) -> dict[str, Any] | None:
        try:
            info: dict[str, Any] = self._filesystem.info(url)
        except PermissionError:
            return None
        except FileNotFoundError as error:
            cause = error.__cause__  # fsspec says "not found" of whatever went wrong with a web server
            if cause is not None and _status(cause) not in _HIDDEN_STATUS and is_web(url):
                raise cause from None
            return None
        return info

    def _get(self, download: Download, folders: Mapping[Path, Path], on_read: Callable[[int], None]) -> None:
        temporary = folders[download.path.parent] / download.path.name

        def transfer(url: str) -> None:
            with self._counted(download.size, on_read) as callback:
                self._filesystem.get_file(url, str(temporary), callback=callback)
                if (size := temporary.stat().st_size) != download.size:
                    raise OSError(f"{size:,} of {download.size:,} bytes arrived")

        self.with_retries(transfer, download.url)
        algorithm = download.checksum.partition(":")[0]
        if algorithm and checksum(temporary, algorithm=algorithm) != download.checksum:
            raise DataError(
                "what arrived does not have the checksum that is recorded of it",
                where=download.url,
                fix="Run the command again; if it fails again, the file there is damaged.",
            )
        fsync_file(temporary)
        temporary.replace(download.path)
        fsync_dir(download.path.parent)

    @contextlib.contextmanager
    def _counted(self, size: int, on_bytes: Callable[[int], None]) -> Iterator[Any]:
        """Reports the bytes of one transfer through fsspec's callback, and subtracts them if it fails."""
        told = 0

        def tell(_: int | None, value: int, **__: Any) -> None:
            nonlocal told
            on_bytes(value - told)
            told = value

        try:
            yield self._callbacks.Callback(hooks={"bytes": tell})
        except BaseException:
            on_bytes(-told)
            raise
        on_bytes(size - told)  # not every file system calls back


def _remove(path: Path) -> None:
    """Removes a folder into which threads may write still: when it is gone, they can open nothing more."""
    for _ in range(_REMOVALS):
        if not path.is_dir():
            path.unlink(missing_ok=True)
            return
        shutil.rmtree(path, ignore_errors=True)


def _libraries(url: str) -> tuple[Any, Any, Any]:
    """Imports what is needed: the file system of a URL, stamina, and fsspec's callbacks."""
    protocol = url.partition("://")[0]
    options: dict[str, Any] = {"auto_mkdir": True} if protocol == "file" else {}
    try:
        fsspec, callbacks, stamina = map(importlib.import_module, ("fsspec", "fsspec.callbacks", "stamina"))
        if is_web(url):
            # Not five minutes for a file, aiohttp's default, but one for a silent connection.
            timeout = importlib.import_module("aiohttp").ClientTimeout(sock_connect=30, sock_read=60)
            options["client_kwargs"] = {"timeout": timeout, "trust_env": True}
        return fsspec.filesystem(protocol, **options), stamina, callbacks
    except ImportError as error:
        missing = getattr(error if isinstance(error, ModuleNotFoundError) else error.__cause__, "name", "")
        package = "'groundup[remote]'" if missing in ("fsspec", "stamina", "aiohttp") else missing
        raise MachineError(
            f"{protocol}:// needs a library that is not installed ({error})",
            where=url,
            fix=f"Type: pip install {package}" if package else "Install it.",
        ) from None
    except ValueError:
        raise ConfigError(
            f"fsspec knows no {protocol}://", where=url, fix="Known are e.g. s3, gs, az, https, hf, file."
        ) from None


def _is_of_store(error: Exception) -> bool:
    known = isinstance(error, OSError | EOFError | NotImplementedError)
    return known or type(error).__module__.partition(".")[0] in _LIBRARIES


def _is_transient(error: Exception) -> bool:
    status = _status(error)
    if isinstance(error, _PERMANENT) or type(error).__name__ in _NO_CREDENTIALS or 400 <= status < 500:
        return status in _TRANSIENT_STATUS
    return _is_of_store(error) and getattr(error, "errno", None) not in DISK_IS_FULL


def _status(error: BaseException) -> int:
    """Returns the HTTP status of an error; 0 where it has none."""
    told: Any = getattr(error, "status", None) or getattr(error, "code", None)
    return int(told) if str(told).isdigit() else 0


def _log_retry(details: Any) -> None:
    """Logs a retry, from stamina's ``RetryDetails``."""
    cause = _described(details.caused_by)
    logger.info("%s: %s; trying again in %.0f s", details.args[0], cause, details.wait_for)


def _described(error: Exception) -> str:
    return f"HTTP {_status(error)}" if _status(error) else str(error) or type(error).__name__


def _failure(url: str, error: Exception, what: str) -> MachineError:
    if getattr(error, "errno", None) in DISK_IS_FULL:
        fix = "Free some space; the same command continues."
    elif type(error).__name__ in _NO_CREDENTIALS or isinstance(error, PermissionError):
        fix = "Set the store's credentials, or for a public one e.g. FSSPEC_S3_ANON=true."
    elif isinstance(error, _PERMANENT):
        fix = "Check the URL."
    else:
        fix = "See that the store can be reached; the same command continues."
    return MachineError(f"cannot be {what} ({_described(error)})", where=url, fix=fix)
