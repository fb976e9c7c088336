"""What happens to a record that cannot be read: skipped, set aside, or the end of the run; always counted.

One malformed record never ends a run unless the policy says so (``fail``, or ``max_bad`` of 0); a share of
bad records above ``max_bad`` does, because then the input is not what the reader takes it for. A damaged
file is not one bad record, since nobody knows what stood behind the damage: it ends a run unless the policy
says otherwise (``skip`` or ``quarantine``).
"""

import collections
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Annotated, Any, Literal

from annotated_types import Interval

from groundup.core.config_class import NotNegative, config
from groundup.core.errors import ConfigError, DataError
from groundup.core.log import logger
from groundup.corpus.quarantine import quarantine_line

Offender = tuple[str, str, str]
"""Where a bad record is, the reason, and what is particular to it."""

Action = Literal["skip-malformed", "skip", "quarantine", "fail"]

RECIPE_COMMAND = "groundup corpus run"  # takes the policy as settings, every other command as flags
_SETTINGS = ("{} bad_records.action=", "{} bad_records.max_bad=", "stages.import.text_key=")
_FLAGS = ("{} --bad-records ", "{} --max-bad ", "--key")
DAMAGED_FILE = "damaged file"
"""The reason of a file that breaks off, or is not what its manifest records."""
_WRONG_KEY = frozenset({"no text key", "text is not a string"})

_JUDGE_AFTER_RECORDS = 1000
_JUDGE_AFTER_BAD = 20  # a few bad ones near the beginning say nothing of the whole
SHOWN_OFFENDERS = 20  # so many of the first bad records are named
_SHOWN_IN_MESSAGE = 3


@config
class BadRecordPolicy:
    """What to do with malformed records.

    Attributes:
        action: ``skip-malformed`` leaves out malformed records and stops at a damaged file; ``skip`` also
            keeps what stands before the damage in a file; ``quarantine`` does so too and writes bad records
            to a file; ``fail`` stops at the first.
        max_bad: The largest share of bad records that is put up with, 0 to 1. One is always put up with
            unless this is 0.
    """

    action: Action = "skip-malformed"
    max_bad: Annotated[float, Interval(ge=0, le=1)] = 0.001

    def is_fatal(self, reason: str) -> bool:
        """Whether one record that is bad for this reason ends a run."""
        return self.action == "fail" or (self.action == "skip-malformed" and reason == DAMAGED_FILE)


@config
class BadRecordCounts:
    """Bad records in a manifest; ``offenders`` are the first of them and every damaged file, in words."""

    bad: NotNegative
    by_reason: dict[str, NotNegative]
    offenders: tuple[str, ...]


class BadRecords:
    """Counts the good and bad records of a run and applies the policy.

    Use it as a context manager: leaving the block judges the share of bad records and logs a summary.

    Args:
        policy: What to do.
        quarantine_path: Where ``quarantine`` writes, one JSON object a line: ``where``, ``reason``,
            ``detail`` and ``record`` (``record_base64`` where it is not UTF-8), cut at 1 MiB. It is kept
            when the run fails; a file of an earlier run is replaced.
        command: The command that has flags for the policy, named in messages.
        on_bad: Told of each bad record.
        key_setting: The flag or setting of the field that holds the text, where the command has another one.

    Raises:
        ConfigError: ``quarantine`` without a path.
    """

    def __init__(
        self,
        policy: BadRecordPolicy,
        *,
        quarantine_path: Path | None = None,
        command: str = "groundup corpus build",
        on_bad: Callable[[Offender], None] = lambda offender: None,
        key_setting: str = "",
    ) -> None:
        if policy.action == "quarantine" and quarantine_path is None:
            raise ConfigError("the policy `quarantine` needs a file to write bad records to")
        self.policy = policy
        self.command = command
        words = _SETTINGS if command == RECIPE_COMMAND else _FLAGS
        self._action, self._max_bad, self._key = (word.format(command) for word in words)
        self._key = key_setting or self._key
        self.quarantine_path = quarantine_path if policy.action == "quarantine" else None
        self.on_bad = on_bad
        self.good = 0
        self.bad = 0
        self.by_reason: collections.Counter[str] = collections.Counter()
        self._first: list[Offender] = []
        self._quarantine: IO[bytes] | None = None

    def __enter__(self) -> "BadRecords":
        if self.quarantine_path:
            self.quarantine_path.unlink(missing_ok=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        if error is None:
            self.judge()
            if self.bad:
                logger.warning("%s", self.summary())

    @property
    def offenders(self) -> list[str]:
        """The first bad records and every damaged file: where, reason and detail in one phrase."""
        return [_offender(*offender) for offender in self._first]

    def close(self) -> None:
        """Closes the quarantine."""
        if self._quarantine:
            os.fsync(self._quarantine.fileno())
            self._quarantine.close()
            self._quarantine = None

    def add_good(self, count: int = 1) -> None:
        """Counts records that were read well."""
        self.good += count

    def add(self, where: str, reason: str, *, detail: str = "", record: bytes = b"") -> None:
        """Counts one bad record and does with it what the policy says.

        Args:
            where: ``file:line``, or the file.
            reason: A short phrase from a small set: bad records are counted by it.
            detail: What is particular to this one.
            record: Its bytes, as far as they could be read.

        Raises:
            DataError: The policy does not put up with it; or already, after 1,000 records and 20 bad ones,
                more than ``max_bad`` are bad: then there is no need to wait for the end.
        """
        self.bad += 1
        self.by_reason[reason] += 1
        self._show([(where, reason, detail)])
        self.on_bad((where, reason, detail))
        if self.policy.is_fatal(reason):
            raise self._fatal(where, reason, detail)
        if self.quarantine_path:
            self._set_aside(self.quarantine_path, where, reason, detail, record)
        if self.is_judged_early():
            self.judge()

    def take(self, good: int, by_reason: Mapping[str, int], offenders: Sequence[Sequence[str]]) -> None:
        """Adds what others have counted; judges nothing.

        Args:
            good: Records read well.
            by_reason: Reason -> bad records.
            offenders: Where, reason and detail of the first of them.
        """
        self.good += good
        self.bad += sum(by_reason.values())
        self.by_reason.update(by_reason)
        self._show(offenders)

    def watch(self, good: int, offenders: Sequence[Offender]) -> None:
        """Adds what a worker has counted meanwhile, and stops a hopeless run.

        Under ``quarantine`` only a fatal record stops it: the others are all gathered first.

        Raises:
            DataError: The policy does not put up with one of them, or with so many.
        """
        self.take(good, collections.Counter(reason for _, reason, _ in offenders), offenders)
        self.require_none_fatal(offenders)
        if offenders and self.policy.action != "quarantine" and self.is_judged_early():
            self.judge()

    def require_none_fatal(self, offenders: Sequence[Sequence[str]]) -> None:
        """Refuses a record with which the policy does not put up.

        Raises:
            DataError: With its place and what to do.
        """
        for where, reason, detail in offenders:
            if self.policy.is_fatal(reason):
                raise self._fatal(where, reason, detail)

    def outcome(self) -> dict[str, Any]:
        """What ``take`` needs of this one, as JSON-like values."""
        return {"good": self.good, "by_reason": dict(self.by_reason), "offenders": self._first}

    def _show(self, offenders: Sequence[Sequence[str]]) -> None:
        for where, reason, detail in offenders:
            if len(self._first) < SHOWN_OFFENDERS or reason == DAMAGED_FILE:
                self._first.append((where, reason, detail))

    def is_judged_early(self) -> bool:
        """Whether there are records enough to stop before the end."""
        return self.good + self.bad >= _JUDGE_AFTER_RECORDS and self.bad >= _JUDGE_AFTER_BAD

    def is_too_bad(self) -> bool:
        """Whether the share of bad records so far is above ``max_bad``, or no record can be read."""
        total = self.good + self.bad
        if not self.good:
            return self.bad > 0 and self.policy.max_bad < 1
        allowed = max(1.0, self.policy.max_bad * total) if self.policy.max_bad > 0 else 0.0
        return self.bad > allowed

    def judge(self) -> None:
        """Compares the share of bad records so far with the policy.

        Raises:
            DataError: It is above ``max_bad``, with the first offenders.
        """
        total = self.good + self.bad
        if not self.is_too_bad():
            return
        first = f"{self._reasons()}. The first: " + "; ".join(self.offenders[:_SHOWN_IN_MESSAGE])
        kept = f" All of them are in {self.quarantine_path}." if self.quarantine_path else ""
        if not self.good:
            raise DataError(f"none of {total:,} records can be read: {first}", fix=self._advice() + kept)
        share = min(1.0, 1.5 * self.bad / total)
        raise DataError(
            f"{self.bad:,} of {total:,} records are bad ({self.bad / total:.3%}), more than max_bad "
            f"allows ({self.policy.max_bad:.3%}): {first}",
            fix=f"{self._advice()} Or accept more with `{self._max_bad}{share:.2g}`.{kept}",
        )

    def summary(self) -> str:
        """How many were bad, why, and the first 20 of them, one a line."""
        return summary_of(self.counts(), self.quarantine_path)

    def counts(self) -> BadRecordCounts:
        """The same for a manifest."""
        return BadRecordCounts(bad=self.bad, by_reason=dict(self.by_reason), offenders=tuple(self.offenders))

    def _fatal(self, where: str, reason: str, detail: str) -> DataError:
        """The error of a record with which the policy does not put up."""
        skip = f"`{self._action}skip`"
        if reason == DAMAGED_FILE:
            return DataError(
                f"the file is damaged: {detail}",
                where=where,
                fix=f"Get it or build it again, or keep what stands before the damage with {skip}.",
            )
        mend = f"Name the field that holds the text with {self._key}" if reason in _WRONG_KEY else "Mend it"
        return DataError(
            f"bad record: {reason}" + (f" ({detail})" if detail else ""),
            where=where,
            fix=f"{mend}, or leave such records out with {skip} (or quarantine).",
        )

    def _advice(self) -> str:
        """What to do about the reason of most of the bad records."""
        reason = max(self.by_reason, key=self.by_reason.__getitem__)
        if reason in _WRONG_KEY:
            return f"Name the field that holds the text with {self._key}."
        if reason == DAMAGED_FILE:
            return "Get it or build it again."
        return "Mend them: JSON Lines (one object a line), text in UTF-8 or Parquet is expected."

    def _reasons(self) -> str:
        return ", ".join(f"{reason}: {count:,}" for reason, count in self.by_reason.most_common())

    def _set_aside(self, path: Path, where: str, reason: str, detail: str, record: bytes) -> None:
        if self._quarantine is None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._quarantine = path.open("wb")  # closed in __exit__
        self._quarantine.write(quarantine_line(where, reason, detail, record))
        self._quarantine.flush()


def summary_of(counts: BadRecordCounts, quarantine_path: Path | None = None) -> str:
    """Describes bad records of this or an earlier run: how many, why, and the first of them."""
    reasons = ", ".join(f"{reason}: {count:,}" for reason, count in counts.by_reason.items())
    head = f"{counts.bad:,} bad record{'s' * (counts.bad != 1)} left out: {reasons}"
    if quarantine_path and counts.bad:
        head += f"; kept in {quarantine_path}"
    return "\n  ".join([head, *counts.offenders])


def _offender(where: str, reason: str, detail: str) -> str:
    return f"{where}: {reason}" + (f" ({detail})" if detail else "")
