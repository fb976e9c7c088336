"""A config that grows setting by setting, each with the flags that it was made of."""

import dataclasses
from pathlib import Path
from typing import Any

from groundup.core.config_sources import merge
from groundup.core.errors import ConfigError
from groundup.megatron.flag_table import flag_table
from groundup.megatron.parse_flags import Given


def refusal(what: str, fix: str = "") -> ConfigError:
    """The error of flags that do not go together."""
    return ConfigError(what, where="pretrain_gpt", fix=fix)


@dataclasses.dataclass(frozen=True)
class Settings:
    """The tree of a config, and where each dotted key comes from."""

    given: Given
    tree: dict[str, Any] = dataclasses.field(default_factory=dict)
    origins: dict[str, str] = dataclasses.field(default_factory=dict)

    def put(self, key: str, value: Any, *names: str, source: str = "") -> None:
        """Sets one key.

        Args:
            key: Dotted.
            value: As YAML has it.
            names: Of the flags that decided it, the first as the one whose default it else is.
            source: Where the value comes from, if not from a flag.
        """
        layer: Any = str(value) if isinstance(value, Path) else value
        for part in reversed(key.split(".")):
            layer = {part: layer}
        merge(self.tree, layer)
        self.origins[key] = source or self.given.origin(*names)

    def copy_plain(self) -> None:
        """Sets the keys that take the value of a flag as it is."""
        for flag in flag_table().values():
            if flag.copy and self.given[flag.dest] is not None:
                self.put(flag.key, self.given[flag.dest], flag.dest)
