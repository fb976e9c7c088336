"""How far the tasks of a phase are, and whether too many of the records that they read are bad."""

from types import TracebackType

from groundup.core.progress import Progress
from groundup.corpus.bad_records import BadRecords
from groundup.corpus.import_sources import ReadReport


class PhaseProgress:
    """Shows what tasks report: bytes that were read, or a ``ReadReport``.

    Nothing is shown before the first report: a live line has a thread, and processes must not be forked from
    one that has threads.

    Args:
        name: Of the phase.
        total_bytes: Expected.
        bad_records: Judges the bad records of the reports.
    """

    def __init__(self, name: str, total_bytes: int, bad_records: BadRecords) -> None:
        self._progress = Progress(name, total_bytes, "B")
        self._is_shown = False
        self._bad_records = bad_records

    def __enter__(self) -> "PhaseProgress":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_shown:
            self._progress.__exit__(kind, error, trace)

    def add(self, report: int | ReadReport) -> None:
        """Counts a report.

        Raises:
            DataError: The policy does not put up with a bad record, or with so many.
        """
        if not self._is_shown:
            self._progress.__enter__()
            self._is_shown = True
        if isinstance(report, ReadReport):
            self._bad_records.watch(report.good, report.bad)
            report = report.read_bytes
        self._progress.add(report)
