"""What a user says of a model that is written for others, and the card that is made of it."""

import dataclasses
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cyclopts import Parameter

from groundup.core.errors import ConfigError

if TYPE_CHECKING:
    from groundup.report.model_card import CardOptions

_LICENSE = re.compile(r"[a-z0-9][a-z0-9.-]*")
_LANGUAGE = re.compile(r"[a-z]{2,3}|code|multilingual")


@Parameter(name="*")
@dataclasses.dataclass(frozen=True, kw_only=True)
class CardFlags:
    """What the model card (README.md) of a Hugging Face folder says beside what the records tell.

    Attributes:
        license: Of the model, by the hub's short name: apache-2.0, mit, cc-by-4.0, other.
        language: Of its data, ISO codes with commas: en,zh, or code; by default what was found in the data.
        base_model: Name on the hub (user/name) of the model that it began with; an adapter names it as its
            base.
        datasets: Names on the hub (user/name) of what it learned from, with commas.
        name: Of the model in its card; by default that of the folder.
    """

    license: str = ""
    language: str = ""
    base_model: str = ""
    datasets: str = ""
    name: str = ""

    @property
    def given(self) -> list[str]:
        """The flags that are given, as words of a command line."""
        words: list[str] = []
        for flag, value in vars(self).items():
            words += [f"--{flag.replace('_', '-')}", value] if value else []
        return words

    def with_name(self, name: str) -> "CardFlags":
        """Returns the same with a name, where none is given."""
        return self if self.name else dataclasses.replace(self, name=name)

    def options(self, out: Path, command: Sequence[str]) -> "CardOptions":
        """Returns what is said in the card.

        Args:
            out: The folder.
            command: That writes it, in words without these flags; folders of this machine are left out.

        Raises:
            ConfigError: A value is not what the hub takes.
        """
        from groundup.report.card_text import is_hub_id, place
        from groundup.report.model_card import CardOptions

        _require("--license", [self.license], _LICENSE, "a short name in small letters, as apache-2.0")
        languages = _listed(self.language)
        _require("--language", languages, _LANGUAGE, "an ISO 639 code of two or three letters, or code")
        for flag, names in (("--base-model", [self.base_model]), ("--datasets", _listed(self.datasets))):
            for name in filter(None, names):
                if not is_hub_id(name):
                    raise ConfigError(f"{name!r} is no name on the hub", where=flag, fix="Write user/name.")
        words = ["groundup", *(place(word) if Path(word).is_absolute() else word for word in command)]
        return CardOptions(
            name=self.name or out.absolute().name,
            command=shlex.join([*words, *self.given]),
            license=self.license,
            languages=tuple(languages),
            base_model=self.base_model,
            datasets=tuple(_listed(self.datasets)),
        )


NO_CARD_FLAGS = CardFlags()


def _listed(value: str) -> list[str]:
    return [word.strip() for word in value.split(",") if word.strip()]


def _require(flag: str, values: Sequence[str], pattern: re.Pattern[str], rule: str) -> None:
    for value in values:
        if value and not pattern.fullmatch(value):
            raise ConfigError(f"{value!r} is not {rule}", where=flag)
