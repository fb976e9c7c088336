"""Finds the quickest layout of a run: measures one of each kind, then those around the best.

The global batch stays, so that all of them train the same model.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from groundup.parallel.activation_checkpointing import Recompute
from groundup.parallel.compile import is_compiled
from groundup.parallel.layout import Layout
from groundup.parallel.validate import layout_reasons
from groundup.plan.devices import Devices
from groundup.plan.fitting import Candidate, Settings, best_of_each, search
from groundup.plan.rank_memory import highest
from groundup.plan.run_step import PrecisionOf, step_of_run
from groundup.plan.scaling import one_rank
from groundup.train.config import TrainConfig

GAIN = 1.02
"""A neighbour must be quicker by this factor: less is noise."""

_TRIES = 3
"""Micro-batches to try of a division of the ranks that does not train: it may be out of memory."""

_DIVISION = ("dp", "tp", "pp", "cp")


@dataclasses.dataclass(frozen=True)
class Choice:
    """Settings that decide how quick a step is and what memory it takes, and not what it learns."""

    layout: Layout
    micro_batch_size: int
    recompute: Recompute
    compile: bool | None

    @classmethod
    def of(cls, config: TrainConfig, ranks: int) -> "Choice":
        """Returns that of a config over so many ranks."""
        layout = dataclasses.replace(config.layout, dp=config.layout.over(ranks).dp)
        return cls(layout, config.micro_batch_size, config.recompute, config.compile)

    def applied(self, config: TrainConfig) -> TrainConfig:
        """Returns the config with this choice."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return dataclasses.replace(config, **fields)

    def settings(self, config: TrainConfig) -> Settings:
        """Returns the dotted keys in which it differs from a config."""
        pairs: dict[str, tuple[Any, Any]] = {
            f"layout.{name}": (getattr(self.layout, name), getattr(config.layout, name))
            for name in (*_DIVISION, "zero", "shard")
        }
        pairs |= {
            "layout.dp": (self.layout.dp, max(1, config.layout.dp)),  # 0 is 1 where no launcher says more
            "micro_batch_size": (self.micro_batch_size, config.micro_batch_size),
            "recompute.mode": (self.recompute.mode, config.recompute.mode),
            "recompute.every": (self.recompute.every, config.recompute.every),
            "compile": (self.compile, config.compile),
        }
        return {key: own for key, (own, other) in pairs.items() if own != other}


@dataclasses.dataclass(frozen=True)
class Measured:
    """A choice that was tried.

    Attributes:
        choice: What was tried.
        tokens_per_second: Of all ranks, the median of steps; 0 where it did not train.
        memory: Most bytes that the first rank took.
        error: Why it did not train.
    """

    choice: Choice
    tokens_per_second: float
    memory: int = 0
    error: str = ""


Measure = Callable[[Choice], Measured]


@dataclasses.dataclass(frozen=True)
class SearchSpace:
    """What may be tried.

    Attributes:
        choices: That fit, the quickest by the model of time first.
        firsts: The quickest of each division of the ranks.
        own: That of the config; None where it does not work on these ranks, or does not fit.
        legal: Number of layouts that work.
        least: Bytes that the smallest of them takes.
        compiles: Whether to try with and without torch.compile.
        compile: The config's own.
        device: Of the run.
    """

    choices: tuple[Choice, ...]
    firsts: tuple[Choice, ...]
    own: Choice | None
    legal: int
    least: int
    compiles: bool
    compile: bool | None
    device: torch.device

    def smaller(self, choice: Choice) -> list[Choice]:
        """Returns those of the same division with ever smaller micro-batches, the quickest of each size."""
        found: list[Choice] = []
        for one in self.choices:
            is_smaller = one.micro_batch_size < (found or [choice])[-1].micro_batch_size
            if is_smaller and _division(one) == _division(choice):
                found.append(one)
        return found

    def neighbours(self, choice: Choice) -> list[Choice]:
        """Returns the choices that differ from one in a single thing, in size by one step."""
        near = []
        for one in self.choices:
            one = dataclasses.replace(one, compile=choice.compile)
            if _division(one) != _division(choice):
                continue
            differing = [
                one.layout.zero != choice.layout.zero,
                one.recompute != choice.recompute,
                one.micro_batch_size != choice.micro_batch_size,
            ]
            if sum(differing) == 1:
                near.append(one)
        sizes = {one.micro_batch_size for one in near} - {choice.micro_batch_size}
        below = max((size for size in sizes if size < choice.micro_batch_size), default=0)
        above = min((size for size in sizes if size > choice.micro_batch_size), default=0)
        near = [one for one in near if one.micro_batch_size in (choice.micro_batch_size, below, above)]
        return [*near, self._compiled_or_not(choice)] if self.compiles else near

    def _compiled_or_not(self, choice: Choice) -> Choice:
        """Returns the choice with the other setting of torch.compile; the config's own, where that is it."""
        other = not is_compiled(choice.compile, choice.layout, self.device)
        is_own = is_compiled(self.compile, choice.layout, self.device) == other
        return dataclasses.replace(choice, compile=self.compile if is_own else other)


def search_space(
    config: TrainConfig, devices: Devices, precision: PrecisionOf, *, compiles: bool
) -> SearchSpace:
    """Returns what may be tried on devices.

    Args:
        config: Of the run, with its device.
        devices: With their number and memory.
        precision: Of matrix products.
        compiles: Whether to try with and without torch.compile.
    """
    capacity = devices.usable or math.inf
    ranks = devices.ranks
    found, legal, least = search(
        config,
        one_rank(config, precision),
        ranks=ranks,
        capacity=capacity,
        machines=devices.machines(precision),
    )

    def choice(candidate: Candidate) -> Choice:
        settings = candidate.settings
        degrees = {name: settings.get(f"layout.{name}", 1) for name in _DIVISION}
        degrees |= {"zero": settings.get("layout.zero", 0), "shard": 0}
        return Choice(
            dataclasses.replace(config.layout, **degrees),
            settings["micro_batch_size"],
            Recompute(mode=settings.get("recompute.mode", "none")),
            config.compile,
        )

    found = [one for one in found if _is_allowed(config, choice(one))]
    return SearchSpace(
        choices=tuple(choice(one) for one in found),
        firsts=tuple(choice(one) for one in best_of_each(found)),
        own=_own(config, ranks, capacity, precision),
        legal=legal,
        least=least,
        compiles=compiles,
        compile=config.compile,
        device=torch.device(config.device),
    )


def _is_allowed(config: TrainConfig, choice: Choice) -> bool:
    """Whether the config's other settings, as its precision and samples, work with a choice."""
    try:
        choice.applied(config)
    except ValueError:
        return False
    return True


def _own(config: TrainConfig, ranks: int, capacity: float, precision: PrecisionOf) -> Choice | None:
    choice = Choice.of(config, ranks)
    works = choice.layout.num_ranks == ranks and not layout_reasons(
        choice.layout,
        model=config.model,
        sequence_length=config.data.sequence_length,
        batch_sizes=[config.global_batch_size],
        micro_batch_size=config.micro_batch_size,
        world_size=ranks,
    )
    if not works or highest(step_of_run(config, choice.layout.over(ranks), precision)).total > capacity:
        return None
    return choice


def hill_climb(space: SearchSpace, measure: Measure, *, most_divisions: int) -> Iterator[Measured]:
    """Yields what is measured: the config's own, the first of each division, then what is around the best.

    Args:
        space: What may be tried.
        measure: Trains a few steps.
        most_divisions: Divisions of the ranks to try.
    """
    known: dict[Choice, Measured] = {}

    def tried(choices: Sequence[Choice]) -> Iterator[Measured]:
        for choice in choices:
            if choice not in known:
                known[choice] = measure(choice)
                yield known[choice]

    yield from tried([space.own] if space.own else [])
    for choice in space.firsts[:most_divisions]:
        ways = [choice, *space.smaller(choice)]
        for way in ways[:_TRIES]:
            yield from tried([way])
            if known[way].tokens_per_second:
                break
    while (best := quickest(known.values())) is not None:
        yield from tried(space.neighbours(best.choice))
        found = quickest(known.values())
        assert found is not None, "the best is among them"
        if found.tokens_per_second < GAIN * best.tokens_per_second:
            return


def quickest(measured: Iterable[Measured]) -> Measured | None:
    """Returns the quickest of those that trained; None where none did."""
    trained = [one for one in measured if one.tokens_per_second]
    return max(trained, key=lambda one: one.tokens_per_second, default=None)


def in_turns(measure: Measure, one: Choice, other: Choice, *, rounds: int = 3) -> list[float]:
    """Returns the ratios of the speeds of two choices, in turns; 0 where the first does not train."""
    ratios = []
    for _ in range(rounds):
        first, second = measure(one), measure(other)
        if second.tokens_per_second:
            ratios.append(first.tokens_per_second / second.tokens_per_second)
    return ratios


def _division(choice: Choice) -> tuple[int, ...]:
    return tuple(getattr(choice.layout, name) for name in _DIVISION)
