"""Reading compressed files, held to what a manifest records of them."""

import contextlib
import dataclasses
import io
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import xxhash

from groundup.core.errors import DataError

_CHUNK_BYTES = 1 << 20
_COMPRESSED_CHUNK_BYTES = 1 << 17


class DamagedFile(DataError):
    """A file that ends early, is not what its ending says, or is not what its manifest records."""


@dataclasses.dataclass(frozen=True, slots=True)
class RecordedFile:
    """What a manifest says of a file.

    Attributes:
        manifest: Where that stands.
        size_bytes: Of the file.
        checksum: As ``checksum`` gives it.
        content: What the file holds, in words; empty where the manifest does not tell.
    """

    manifest: Path
    size_bytes: int
    checksum: str
    content: str = ""

    def size_mismatch(self, size_bytes: int) -> str:
        """In which way a size is not the recorded one; empty when it is."""
        if size_bytes == self.size_bytes:
            return ""
        return f"the file has {size_bytes:,} bytes, {self.says} in {self.size_bytes:,} bytes"

    def mismatch(self, size_bytes: int, digest: str) -> str:
        """In which way a file is not the recorded one; empty when it is."""
        if wrong_size := self.size_mismatch(size_bytes):
            return wrong_size
        if digest != self.checksum:
            return f"the file does not match its checksum: {self.says}, and the checksum {self.checksum}"
        return ""

    @property
    def says(self) -> str:
        """What the manifest says, in words."""
        return f"{self.manifest} records {self.content or 'it'}"


@contextlib.contextmanager
def open_decompressed(
    path: Path, *, on_read: Callable[[int], None] | None = None, recorded: RecordedFile | None = None
) -> Iterator[IO[bytes]]:
    """Opens a file for reading bytes, through gzip (.gz) or Zstandard (.zst) by its ending.

    Args:
        path: The file.
        on_read: Told the number of bytes of each piece taken from the disk (compressed), for progress.
        recorded: What the whole file must be; compared when its end is reached. It must not be sought in.

    Raises:
        DamagedFile: While reading, when a compressed stream is damaged or ends early, or when the file is
            not the recorded one. What was delivered until then can be used, unless a checksum is wrong.
    """
    with path.open("rb") as file:
        counted = _Counted(file, path, on_read, recorded)
        raw: io.RawIOBase = counted
        if path.suffix.lower() == ".gz":
            raw = _Decompressed(counted, path, lambda: zlib.decompressobj(wbits=31), (zlib.error,))
        elif path.suffix.lower() == ".zst":
            import zstandard

            decompressor = zstandard.ZstdDecompressor(max_window_size=1 << 31)  # files written with --long
            raw = _Decompressed(counted, path, decompressor.decompressobj, (zstandard.ZstdError,))
        with io.BufferedReader(raw, _CHUNK_BYTES) as stream:
            yield stream


class _Counted(io.RawIOBase):
    """A file that reports how much was read from it, and is compared with what is recorded of it."""

    def __init__(
        self,
        file: IO[bytes],
        path: Path,
        on_read: Callable[[int], None] | None,
        recorded: RecordedFile | None,
    ) -> None:
        self._file = file
        self._path = path
        self._on_read = on_read
        self.recorded = recorded
        self._digest = xxhash.xxh3_128() if recorded else None
        self.size_read = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._file.seek(offset, whence)

    def readinto(self, buffer: Any) -> int:
        size: int = self._file.readinto(buffer)  # type: ignore[attr-defined]
        self.size_read += size
        if self._on_read and size:
            self._on_read(size)
        if self.recorded and self._digest is not None:
            self._digest.update(memoryview(buffer)[:size])
            if not size:
                self._require_recorded(self.recorded, f"xxh3:{self._digest.hexdigest()}")
        return size

    def _require_recorded(self, recorded: RecordedFile, digest: str) -> None:
        if found := recorded.mismatch(self.size_read, digest):
            raise DamagedFile(found, where=self._path)


class _Decompressed(io.RawIOBase):
    """The content of a file of gzip members or Zstandard frames; a missing end is an error, not an end."""

    def __init__(
        self, raw: _Counted, path: Path, new_frame: Callable[[], Any], errors: tuple[type[Exception], ...]
    ) -> None:
        self._raw = raw
        self._path = path
        self._new_frame = new_frame
        self._errors = errors
        self._frame: Any = None
        self._input = b""
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            chunk = self._input or self._raw.read(_COMPRESSED_CHUNK_BYTES)
            if self._frame is None:
                if self._path.suffix.lower() == ".gz":
                    chunk = chunk.lstrip(b"\0")  # tar's padding
                if not chunk:
                    if self._input:  # it was padding only: there may be more
                        self._input = b""
                        continue
                    if not self._raw.size_read:
                        raise DamagedFile("no byte is in it, not even an empty stream", where=self._path)
                    return 0
                self._frame = self._new_frame()
            elif not chunk:
                raise DamagedFile(
                    f"the compressed stream ends early: it is cut off after {self._raw.size_read:,} bytes",
                    where=self._path,
                )
            try:
                self._ready = memoryview(self._frame.decompress(chunk))
            except self._errors as error:
                raise self._damaged(error, len(chunk)) from None
            self._input = self._frame.unused_data if self._frame.eof else b""
            if self._frame.eof:
                self._frame = None
        size = min(len(buffer), len(self._ready))
        buffer[:size] = self._ready[:size]
        self._ready = self._ready[size:]
        return size

    def _damaged(self, error: Exception, size: int) -> DamagedFile:
        """The error of a piece of ``size`` bytes, the last that was read."""
        begin, total = self._raw.size_read - size, self._path.stat().st_size
        recorded = self._raw.recorded
        return DamagedFile(
            f"the compressed stream is damaged after byte {begin:,} of {total:,} ({error}):"
            f" {1 - begin / max(1, total):.1%} of the file cannot be read"
            + (f"; {recorded.says}" if recorded else ""),
            where=self._path,
        )
