"""Concatenates files in the kernel, without reading them into this process."""

import errno
import os
from pathlib import Path
from typing import IO

_CHUNK_BYTES = 1 << 20
_NOT_HERE = (errno.EXDEV, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM)


def append_range(target: IO[bytes], source: Path, begin: int = 0, end: int | None = None) -> int:
    """Appends bytes [begin, end) of a file to an open one; returns how many.

    The kernel copies, sharing the blocks where the file system can; where it cannot do even that, the
    bytes are read and written.

    Args:
        target: Open for writing, at its end.
        source: The file to copy from.
        begin: First byte.
        end: One past the last byte; None for the end of the file.

    Raises:
        OSError: The disk is full, or the source is shorter than ``end``.
    """
    target.flush()
    with source.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        stop = size if end is None else end
        if stop > size:
            raise OSError(errno.EIO, f"holds {size:,} bytes, expected {stop:,}", str(source))
        done = begin
        while done < stop:
            copied = _copy(file.fileno(), target.fileno(), done, stop - done)
            if copied == 0:
                raise OSError(errno.EIO, "ended while it was copied", str(source))
            done += copied
    return stop - begin


def _copy(source: int, target: int, begin: int, size: int) -> int:
    if hasattr(os, "copy_file_range"):
        try:
            return os.copy_file_range(source, target, min(size, 1 << 30), offset_src=begin)
        except OSError as error:
            if error.errno not in _NOT_HERE:
                raise
    os.lseek(source, begin, os.SEEK_SET)
    return os.write(target, os.read(source, min(size, _CHUNK_BYTES)))
