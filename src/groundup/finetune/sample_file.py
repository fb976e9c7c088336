"""``samples.jsonl``: every completion of a run with its rewards."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import orjson

from groundup.core.files import atomic_write

SAMPLES_FILE = "samples.jsonl"


class SampleFile:
    """Lines by step; those of later steps than the one that is written next are of an attempt that was lost.

    Args:
        run_dir: Folder of the run.
    """

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / SAMPLES_FILE
        self._next_step: int | None = None

    def write(self, step: int, records: Iterable[Mapping[str, Any]]) -> None:
        """Adds a step's records, each with the step."""
        if step != self._next_step and self._path.exists():
            kept = [line for line in self._path.read_bytes().splitlines() if _is_before(line, step)]
            with atomic_write(self._path) as file:
                file.writelines(line + b"\n" for line in kept)
        self._next_step = step + 1
        with self._path.open("ab") as appended:
            appended.writelines(orjson.dumps({"step": step, **record}) + b"\n" for record in records)


def _is_before(line: bytes, step: int) -> bool:
    try:
        return bool(orjson.loads(line)["step"] < step)
    except (orjson.JSONDecodeError, KeyError):  # the line that a kill cut short
        return False
