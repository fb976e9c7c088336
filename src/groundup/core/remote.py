"""Files in object storage and on web servers, through fsspec (extra ``[remote]``)."""

import dataclasses
import importlib
import sys
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from groundup.core.errors import ConfigError, DataError, MachineError
from groundup.core.log import logger
from groundup.core.manifest import fingerprint

T = TypeVar("T")

WAITS_SECONDS = (1, 2, 4, 8, 16, 32, 60)
"""Before each further try of a request that failed for a passing reason."""

_FIRST_WAITS = 3
_WEB = ("http", "https")
_STREAM_BYTES = 1 << 20
_PERMANENT = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)
_PASSING_STATUS = (408, 425, 429)
_HIDDEN_STATUS = (401, 403, 404, 410)  # a store that may not be listed says 403 of what is not there
_ERRORS = (
    ("aiohttp", "ClientError"),
    ("botocore.exceptions", "BotoCoreError"),
    ("botocore.exceptions", "ClientError"),
    ("gcsfs.retry", "HttpError"),
    ("azure.core.exceptions", "AzureError"),
    ("httpx", "HTTPError"),
)
"""What the libraries behind fsspec raise that is no OSError."""
_NO_CREDENTIALS = ("NoCredentialsError", "PartialCredentialsError", "DefaultCredentialsError")
_VERSION_KEYS = (
    *("etag", "e_tag", "content-md5", "md5hash", "digest", "generation", "versionid", "version_id"),
    *("last-modified", "lastmodified", "mtime", "updated", "created"),
)
"""What stores tell of a file that changes with its content."""


@dataclasses.dataclass(frozen=True)
class RemoteFile:
    """A file of a store.

    Attributes:
        url: Where it is.
        size: In bytes.
        version: Changes when the file does, as far as the store tells.
    """

    url: str
    size: int
    version: str

    @property
    def name(self) -> str:
        """Last part of its path."""
        return name_of(self.url)


def name_of(url: str) -> str:
    """The last part of the path of a URL."""
    path = urllib.parse.urlsplit(url).path if is_web(url) else url
    return PurePosixPath(path.rstrip("/")).name


def is_web(url: str) -> bool:
    """Whether a URL is of a web server, which need not tell what files there are."""
    return url.partition("://")[0] in _WEB


class Store:
    """The store that a URL is of: s3://, gs://, https://, file://, hf:// and whatever else fsspec knows.

    Credentials and endpoints are the store's own matter, or fsspec's (its config file, or variables such as
    ``FSSPEC_S3_ANON=true``).

    Raises:
        ConfigError: fsspec knows no such store.
        MachineError: fsspec, or the library behind it for this store, is not installed.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._filesystem = _filesystem(url)
        self._reached = False

    def find(self, url: str) -> RemoteFile | None:
        """The file of this URL; None where there is none, or none that may be read.

        Raises:
            DataError: The server does not tell its size.
            MachineError: The store cannot be reached.
        """
        info = self.insist(url, lambda: self._info(url))
        if info is None or info.get("type") == "directory":
            return None
        if info.get("size") is None:
            raise DataError(
                "the server does not tell its size", where=url, fix="Copy it by other means, e.g. curl."
            )
        version = sorted((key, str(info[key])) for key in info if key.lower() in _VERSION_KEYS)
        return RemoteFile(url, int(info["size"]), fingerprint(version))

    def files_in(self, url: str) -> list[str]:
        """The URLs of the files of a folder; none where there is no such folder or it cannot be listed.

        Raises:
            MachineError: The store cannot be reached.
        """
        return self.insist(url, lambda: self._files_in(url))

    def matches(self, pattern: str) -> list[str]:
        """The URLs of the files that a pattern with ``*``, ``?`` and ``[]`` matches.

        Raises:
            MachineError: The store cannot be reached.
        """
        paths = self.insist(pattern, lambda: self._filesystem.glob(pattern))
        return sorted(self._filesystem.unstrip_protocol(path) for path in paths)

    def content(self, url: str) -> bytes:
        """All of a small file.

        Raises:
            MachineError: It cannot be read.
        """
        content: bytes = self.insist(url, lambda: self._filesystem.cat_file(url))
        return content

    def has_ranges(self, file: RemoteFile) -> bool:
        """Whether a part of a file can be read without what comes before; not from each web server.

        Raises:
            MachineError: The store cannot be reached.
        """
        if not is_web(file.url) or file.size < 2:
            return True

        def read_second_byte() -> bool:
            options = {"block_size": 1, "cache_type": "none", "size": file.size}
            with self._filesystem.open(file.url, "rb", **options) as opened:
                try:
                    opened.seek(1)
                    return len(opened.read(1)) == 1
                except ValueError:  # what fsspec says of such servers
                    return False

        return self.insist(file.url, read_second_byte)

    def read(self, url: str, begin: int, end: int, stop: threading.Event | None = None) -> bytes:
        """Bytes [begin, end) of a file; no further tries once ``stop`` is set.

        Raises:
            MachineError: They cannot be read.
        """
        return self.insist(url, lambda: self._read(url, begin, end), stop)

    def put(self, path: Path, url: str) -> None:
        """Copies a file to the store.

        Raises:
            MachineError: It cannot be written there.
        """

        def copy() -> None:
            self._filesystem.makedirs(url.rpartition("/")[0], exist_ok=True)
            self._filesystem.put_file(str(path), url)

        self.insist(url, copy, what="written")

    def stream(self, url: str) -> Iterator[bytes]:
        """The content of a file from its beginning, piece by piece; once, without further tries."""
        with self._filesystem.open(url, "rb", block_size=0) as file:
            while piece := file.read(_STREAM_BYTES):
                yield piece

    def insist(
        self,
        url: str,
        action: Callable[[], T],
        stop: threading.Event | None = None,
        *,
        what: str = "read",
    ) -> T:
        """Does something again and again while it fails for passing reasons, waiting longer each time.

        Args:
            url: What it is done to, for messages.
            action: Done anew each time.
            stop: Once it is set, nobody waits for the result: there are no further tries.
            what: Is done, for messages.

        Raises:
            MachineError: It failed for good.
        """
        # A store that has never answered is rather misspelt than disturbed.
        waits = iter(WAITS_SECONDS if self._reached else WAITS_SECONDS[:_FIRST_WAITS])
        while True:
            try:
                result = action()
                self._reached = True
                return result
            except _errors() as error:
                wait = next(waits, None)
                if wait is None or not _may_pass(error) or (stop and stop.is_set()):
                    raise _failure(url, error, what) from None
                logger.info("%s: %s; trying again in %g s", url, _said(error), wait)
                time.sleep(wait)

    def _info(self, url: str) -> dict[str, Any] | None:
        try:
            info: dict[str, Any] = self._filesystem.info(url)
        except PermissionError:
            return None
        except FileNotFoundError as error:
            cause = error.__cause__  # fsspec says so of whatever went wrong with a web server
            if is_web(url) and isinstance(cause, _errors()) and _status(cause) not in _HIDDEN_STATUS:
                raise cause from None
            return None
        return info

    def _files_in(self, url: str) -> list[str]:
        folder = url.rstrip("/") + "/"
        try:
            entries = self._filesystem.ls(folder, detail=True)
        except (FileNotFoundError, PermissionError, NotADirectoryError):
            return []
        except _errors() as error:
            if _status(error) in _HIDDEN_STATUS:
                return []
            raise
        urls = [
            self._filesystem.unstrip_protocol(entry["name"]) for entry in entries if entry["type"] == "file"
        ]
        # The links of a web page may lead elsewhere.
        return sorted(found for found in urls if not is_web(url) or found.rpartition("/")[0] + "/" == folder)

    def _read(self, url: str, begin: int, end: int) -> bytes:
        content: bytes = self._filesystem.cat_file(url, start=begin, end=end)
        if len(content) != end - begin:
            raise OSError(f"sent {len(content):,} bytes of {end - begin:,}")
        return content


def _filesystem(url: str) -> Any:
    try:
        fsspec: Any = importlib.import_module("fsspec")
    except ModuleNotFoundError:
        raise MachineError(
            "fsspec is not installed", where=url, fix="Type: pip install 'groundup[remote]'"
        ) from None
    protocol = url.partition("://")[0]
    options: dict[str, Any] = {}
    try:
        if protocol in _WEB:
            aiohttp: Any = importlib.import_module("aiohttp")
            # Not five minutes for a file, aiohttp's default, but for a silent connection one.
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=30, sock_read=60)
            options["client_kwargs"] = {"timeout": timeout, "trust_env": True}
        return fsspec.filesystem(protocol, **options)
    except ImportError as error:
        missing = error if isinstance(error, ModuleNotFoundError) else error.__cause__
        package = getattr(missing, "name", None)
        raise MachineError(
            f"{protocol}:// needs a library that is not installed ({error})",
            where=url,
            fix=f"Type: pip install {package}" if package else "Install it.",
        ) from None
    except ValueError:
        known = ", ".join(("s3", "gs", "az", "https", "hf", "file"))
        raise ConfigError(
            f"fsspec knows no {protocol}://", where=url, fix=f"Known are e.g. {known}."
        ) from None


def _errors() -> tuple[type[Exception], ...]:
    """What stores raise, of those libraries that are loaded."""
    found: list[type[Exception]] = [OSError, EOFError]
    for module, name in _ERRORS:
        if module in sys.modules:
            found.append(getattr(sys.modules[module], name))
    return tuple(found)


def _status(error: BaseException) -> int:
    """The HTTP status that an error tells of; 0 where it tells none."""
    for name in ("status", "code"):
        value = getattr(error, name, None)
        if isinstance(value, int | str) and str(value).isdigit():
            return int(value)
    return 0


def _may_pass(error: Exception) -> bool:
    status = _status(error)
    if isinstance(error, _PERMANENT) or type(error).__name__ in _NO_CREDENTIALS:
        return False
    return not 400 <= status < 500 or status in _PASSING_STATUS


def _said(error: Exception) -> str:
    status = f"HTTP {_status(error)}" if _status(error) else ""
    return status or str(error) or type(error).__name__


def _failure(url: str, error: Exception, what: str) -> MachineError:
    if type(error).__name__ in _NO_CREDENTIALS or isinstance(error, PermissionError):
        fix = "Set the store's credentials, or for a public one e.g. FSSPEC_S3_ANON=true."
    elif isinstance(error, _PERMANENT):
        fix = "Check the URL."
    else:
        fix = "See that the store can be reached; the same command continues."
    return MachineError(f"cannot be {what} ({_said(error)})", where=url, fix=fix)
