"""The arguments of a script as Megatron-LM's users type them; a refusal says what was probably meant."""

import argparse
import textwrap
from collections.abc import Sequence
from typing import Any, NoReturn

from groundup.core.config_sources import nearest
from groundup.core.errors import ConfigError
from groundup.core.log import logger
from groundup.corpus.bad_records import BadRecordPolicy, BadRecords

_HARMLESS = "harmless_flags"


class ScriptParser(argparse.ArgumentParser):
    """Reads the arguments of one script.

    Args:
        script: Its name, without .py.
        about: What it does: the beginning of its help.
        example: A command line.
    """

    def __init__(self, script: str, about: str, *, example: str) -> None:
        super().__init__(
            prog=f"groundup megatron {script}",
            description=textwrap.fill(about, 100),
            epilog=f"For example:\n\n    groundup megatron {script} {example}\n",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        self.script = script
        self._refused: dict[str, str] = {}

    def add_harmless(self, *flags: str, nargs: int | str = 1) -> None:
        """Takes flags that change nothing here; one warning names those that are given.

        Args:
            flags: Their names.
            nargs: How many values each of them has.
        """
        for flag in flags:
            self.add_argument(
                flag, action=_NoteFlag, nargs=nargs, dest=_HARMLESS, default=[], help=argparse.SUPPRESS
            )

    def add_refused(self, flag: str, why: str) -> None:
        """Refuses a flag of the original with a reason, and what to do instead."""
        self._refused[flag] = why

    def knows(self, flag: str) -> bool:
        """Tells whether the script has a flag."""
        return flag in self._option_string_actions

    def add_bad_records(self) -> None:
        """Adds the flags of the policy for records that cannot be read, which the originals pass over."""
        self.add_argument(
            "--bad-records", choices=("skip-malformed", "skip", "fail"), default="skip-malformed",
            help="what to do with lines that cannot be read: leave them out, but stop at a damaged file"
            " (skip-malformed, the default); also keep what stands before the damage (skip); or stop (fail)",
        )  # fmt: skip
        self.add_argument(
            "--max-bad", type=float, default=0.001, metavar="SHARE",
            help="stop when more than this share of the lines is bad, 0 to 1 (default: 0.001)",
        )  # fmt: skip

    def read(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Reads the arguments; ends the process where they ask for help.

        Raises:
            ConfigError: One is unknown, refused, missing or not what it must be.
        """
        given, strangers = self.parse_known_args(list(arguments))
        for word in strangers:
            flag = word.partition("=")[0]
            if flag in self._refused:
                raise ConfigError(f"{flag} is not taken: {self._refused[flag]}", where=self.prog)
            if word.startswith("-"):
                known = [name for name in self._option_string_actions if name.startswith("--")]
                raise ConfigError(
                    f"there is no {flag}",
                    where=self.prog,
                    fix=nearest(flag, known) or f"See `{self.prog} --help`.",
                )
        if strangers:
            self.error(f"{strangers[0]} is one argument too many")
        if noted := getattr(given, _HARMLESS, []):
            logger.warning("%s: without effect here: %s", self.prog, " ".join(dict.fromkeys(noted)))
        return given

    def error(self, message: str) -> NoReturn:
        """Raises what argparse finds wrong as any other error of the user."""
        raise ConfigError(message, where=self.prog, fix=f"See `{self.prog} --help`.")


def policy_of(given: argparse.Namespace) -> BadRecordPolicy:
    """Returns what to do with lines that cannot be read, by the flags of ``add_bad_records``.

    Raises:
        ConfigError: --max-bad is no share.
    """
    if not 0 <= given.max_bad <= 1:
        raise ConfigError(
            f"{given.max_bad:g} is no share of the records", where="--max-bad", fix="Give 0 to 1."
        )
    return BadRecordPolicy(action=given.bad_records, max_bad=given.max_bad)


def bad_records_of(given: argparse.Namespace, parser: ScriptParser) -> BadRecords:
    """Returns what counts the lines that cannot be read.

    Raises:
        ConfigError: As ``policy_of``.
    """
    return BadRecords(policy_of(given), command=parser.prog)


class _NoteFlag(argparse.Action):
    """Remembers that a flag was given, and forgets its values."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option: str | None = None,
    ) -> None:
        setattr(namespace, self.dest, [*getattr(namespace, self.dest), option])
