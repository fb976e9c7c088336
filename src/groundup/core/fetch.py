"""Fetching large files from a store: many ranges at a time, continued where a killed run was."""

import dataclasses
import functools
import os
import queue
import threading
from collections.abc import Callable, Generator, Sequence
from pathlib import Path

from groundup.core.errors import DataError
from groundup.core.files import checksum
from groundup.core.manifest import fingerprint
from groundup.core.progress import Progress
from groundup.core.remote import RemoteFile, Store

RANGE_BYTES = 1 << 24


@dataclasses.dataclass(frozen=True)
class Wanted:
    """A file to fetch.

    Attributes:
        remote: Where it is.
        name: What it shall be called here.
        checksum: That it must have; empty where none is known.
    """

    remote: RemoteFile
    name: str
    checksum: str = ""


class Fetch:
    """Files on their way into a folder.

    Beside each lies ``{name}.ranges``: what the file is, then the number of each range that is on the disk.

    Args:
        store: Where the files are.
        files: With names that differ.
        folder: Where they are put.
        range_bytes: Of one request.
    """

    def __init__(
        self, store: Store, files: Sequence[Wanted], folder: Path, *, range_bytes: int = RANGE_BYTES
    ) -> None:
        self._store = store
        self._range_bytes = range_bytes
        whole = bool(files) and not store.has_ranges(
            max((file.remote for file in files), key=lambda f: f.size)
        )
        self._partials = [_Partial.open(file, folder, range_bytes, in_one=whole) for file in files]
        self._whole = whole

    @property
    def missing_bytes(self) -> int:
        """What is still to be fetched."""
        return sum(end - begin for partial in self._partials for begin, end in partial.missing.values())

    def run(self, connections: int) -> Generator[Wanted, None, None]:
        """Fetches what is missing; yields each file, whole and with the right checksum, in the order given.

        Args:
            connections: Requests at a time.

        Raises:
            MachineError: The store cannot be reached any more.
            DataError: A file has another checksum than it must have; what came is thrown away.
        """
        jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        for partial in self._partials:
            for number, (begin, end) in partial.missing.items():
                jobs.put(_Job(partial, number, begin, end))
        results: queue.SimpleQueue[_Done | Exception] = queue.SimpleQueue()
        stop = threading.Event()
        if not self._partials:
            return
        try:
            for _ in range(min(connections, jobs.qsize())):
                # Daemons, so that Ctrl-C need not wait for requests under way.
                threading.Thread(target=self._work, args=(jobs, results, stop), daemon=True).start()
            with Progress("fetch", self.missing_bytes, "B") as progress:
                for number, partial in enumerate(self._partials):
                    note = f"file {number + 1} of {len(self._partials)}"
                    while partial.missing:
                        done = results.get()
                        if isinstance(done, Exception):
                            raise done
                        progress.add(done.size_bytes, note)
                        if done.range_number is not None:
                            del done.partial.missing[done.range_number]
                    partial.finish(functools.partial(_show_checksum, progress, note))
                    yield partial.wanted
                progress.note = ""
        finally:
            stop.set()
            for partial in self._partials:
                partial.close()

    def _work(
        self,
        jobs: "queue.SimpleQueue[_Job]",
        results: "queue.SimpleQueue[_Done | Exception]",
        stop: threading.Event,
    ) -> None:
        while not stop.is_set():
            try:
                job = jobs.get_nowait()
            except queue.Empty:
                return
            try:
                if self._whole:
                    self._fetch_whole(job.partial, results, stop)
                else:
                    url = job.partial.wanted.remote.url
                    job.partial.write(self._store.read(url, job.begin, job.end, stop), job.begin)
                    job.partial.note_done(job.number)
                    results.put(_Done(job.partial, job.end - job.begin, job.number))
            except Exception as error:
                results.put(error)  # `run` raises it
                return

    def _fetch_whole(
        self, partial: "_Partial", results: "queue.SimpleQueue[_Done | Exception]", stop: threading.Event
    ) -> None:
        remote = partial.wanted.remote

        def fetch() -> None:
            at = 0
            try:
                for piece in self._store.stream(remote.url):
                    if stop.is_set():
                        return
                    partial.write(piece, at)
                    at += len(piece)
                    results.put(_Done(partial, len(piece), None))
                if at != remote.size:
                    raise OSError(f"sent {at:,} bytes of {remote.size:,}")
            except BaseException:
                results.put(_Done(partial, -at, None))  # it begins again, if at all
                raise

        self._store.insist(remote.url, fetch, stop)
        partial.note_done(0)
        results.put(_Done(partial, 0, 0))


def _show_checksum(progress: Progress, note: str, size: int) -> None:
    progress.add(0, f"{note}: checksum")


@dataclasses.dataclass(frozen=True)
class _Job:
    """A range to fetch: bytes [begin, end)."""

    partial: "_Partial"
    number: int
    begin: int
    end: int


@dataclasses.dataclass(frozen=True)
class _Done:
    """Bytes that came; the number of their range when it is complete."""

    partial: "_Partial"
    size_bytes: int
    range_number: int | None


class _Partial:
    """A file of which some ranges are on the disk."""

    def __init__(self, wanted: Wanted, path: Path, missing: dict[int, tuple[int, int]]) -> None:
        self.wanted = wanted
        self.missing = missing
        self._path = path
        self._lock = threading.Lock()
        self._left = len(missing)
        self._descriptor = -1  # open while its ranges come, for there may be thousands of files
        self._closed = False

    @classmethod
    def open(cls, wanted: Wanted, folder: Path, range_bytes: int, *, in_one: bool) -> "_Partial":
        """Takes up what an earlier run has left of the same file."""
        size = wanted.remote.size
        step = max(1, size) if in_one else range_bytes
        path, journal = folder / wanted.name, _journal_path(folder / wanted.name)
        identity = fingerprint([size, step, wanted.checksum or [wanted.remote.url, wanted.remote.version]])
        # A last line without its end was being written when the run was killed.
        noted = journal.read_text() if journal.is_file() else ""
        lines = noted.split("\n")[:-1]
        done = set()
        if lines[:1] == [identity] and path.is_file() and path.stat().st_size == size:
            done = {int(line) for line in lines[1:] if line.isdigit()}
        ranges = {number: (at, min(at + step, size)) for number, at in enumerate(range(0, size, step))}
        journal.parent.mkdir(parents=True, exist_ok=True)
        if noted != (kept := "".join(f"{line}\n" for line in (identity, *sorted(done)))):
            journal.write_text(kept)
        missing = {number: ends for number, ends in ranges.items() if number not in done}
        return cls(wanted, path, missing)

    def write(self, content: bytes, at: int) -> None:
        """Writes a piece; a thread may do this while others do."""
        view = memoryview(content)
        with self._lock:
            while view and self._is_open():
                written = os.pwrite(self._descriptor, view, at)
                view, at = view[written:], at + written

    def note_done(self, number: int) -> None:
        """Notes that a range is written, once it is on the disk."""
        with self._lock:
            if self._is_open():
                os.fsync(self._descriptor)
                with _journal_path(self._path).open("a") as journal:
                    journal.write(f"{number}\n")
                self._left -= 1
                if not self._left:
                    os.close(self._descriptor)
                    self._descriptor = -1

    def finish(self, on_read: Callable[[int], None]) -> None:
        """Checks and closes the file, all of which is there."""
        with self._lock:
            self._is_open()  # makes a file without content too
        self.close()
        if self.wanted.checksum and checksum(self._path, on_read=on_read) != self.wanted.checksum:
            _journal_path(self._path).unlink()
            raise DataError(
                "what came does not have the checksum that its manifest records",
                where=self.wanted.remote.url,
                fix="Run the command again to fetch it anew; if it fails again, the file there is damaged.",
            )

    def close(self) -> None:
        """Closes the file; what a request brings after that is dropped."""
        with self._lock:
            if self._descriptor >= 0:
                os.close(self._descriptor)
            self._descriptor, self._closed = -1, True

    def _is_open(self) -> bool:
        if self._descriptor < 0 and not self._closed:
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
            os.ftruncate(self._descriptor, self.wanted.remote.size)
        return not self._closed


def _journal_path(path: Path) -> Path:
    return path.with_name(path.name + ".ranges")
