"""Reference runs: what the losses of a run should be, as curves that come with the package."""

import dataclasses
import functools
from collections.abc import Mapping
from importlib import resources
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from groundup.core.config_sources import nearest
from groundup.core.errors import ConfigError

PREFIX = "ref:"

Losses = npt.NDArray[np.float64]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A validation loss that was published, in nats a token."""

    step: int
    tokens: int
    loss: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """A reference.

    Attributes:
        name: Behind ``ref:``.
        about: What was trained, in a line.
        reproduce: The command that makes such a run.
        source: Where the figures come from.
        config: Dotted setting -> value, without those that change no loss.
        tokenizer: Its fingerprint; empty where it is not ours.
        data: Fingerprint of the training data; likewise.
        data_name: What it was trained on.
        data_words: One of them stands in the path of the same data, in lower case.
        bytes_per_token: Of its text; 0 where not known.
        seeds: Of its runs.
        losses: Of each seed and step from 1 on; empty for a published curve.
        learning_rates: Of each step.
        rounding: How far windows of two runs of one seed may lie apart, by rounding alone.
        validations: Step -> loss of each seed.
        points: A published curve instead.
        tolerance: Half the width of a published curve's band, as a share of the loss.
        notes: What else was published, and what can be said of it.
    """

    name: str
    about: str
    reproduce: str
    source: str
    config: Mapping[str, Any]
    data_name: str
    tokenizer: str = ""
    data: str = ""
    data_words: tuple[str, ...] = ()
    bytes_per_token: float = 0.0
    seeds: tuple[int, ...] = ()
    losses: Losses = dataclasses.field(default_factory=lambda: np.zeros((0, 0)))
    learning_rates: Losses = dataclasses.field(default_factory=lambda: np.zeros(0))
    rounding: float = 0.0
    validations: Mapping[int, tuple[float, ...]] = dataclasses.field(default_factory=dict)
    points: tuple[Point, ...] = ()
    tolerance: float = 0.0
    notes: tuple[str, ...] = ()

    @property
    def num_steps(self) -> int:
        """The last step that it knows."""
        return self.losses.shape[1] if len(self.seeds) else self.points[-1].step

    def without(self, seed: int) -> "Reference":
        """The same of all other seeds."""
        kept = [place for place, one in enumerate(self.seeds) if one != seed]
        return dataclasses.replace(
            self,
            seeds=tuple(self.seeds[place] for place in kept),
            losses=self.losses[kept],
            validations={
                step: tuple(losses[place] for place in kept) for step, losses in self.validations.items()
            },
        )


def reference_names() -> list[str]:
    """The names of all references, sorted."""
    files = resources.files("groundup.verify").joinpath("references").iterdir()
    return sorted(file.name.removesuffix(".json") for file in files if file.name.endswith(".json"))


@functools.cache
def read_reference(name: str) -> Reference:
    """Reads a reference, by its name with or without ``ref:``.

    Raises:
        ConfigError: There is none of that name.
    """
    name = name.removeprefix(PREFIX)
    names = reference_names()
    if name not in names:
        raise ConfigError(
            f"there is no reference of this name ({', '.join(PREFIX + known for known in names)})",
            where=PREFIX + name,
            fix=nearest(name, names) or "See `groundup compare --list`.",
        )
    file = resources.files("groundup.verify").joinpath("references", f"{name}.json")
    tree = orjson.loads(file.read_bytes())
    tree.pop("made", None)
    return Reference(
        **{
            **tree,
            "name": name,
            "data_words": tuple(tree.get("data_words", ())),
            "notes": tuple(tree.get("notes", ())),
            "seeds": tuple(tree.get("seeds", ())),
            "losses": np.array(tree.get("losses", np.zeros((0, 0)))),
            "learning_rates": np.array(tree.get("learning_rates", ())),
            "validations": {int(step): tuple(found) for step, found in tree.get("validations", {}).items()},
            "points": tuple(
                Point(step=step, tokens=tokens, loss=loss) for step, tokens, loss in tree.get("points", ())
            ),
        }
    )
