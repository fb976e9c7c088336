"""Is a run over one or several sources possible, and what is the smallest change if not."""

import dataclasses
import math
from collections.abc import Collection, Mapping

from groundup.tokens.files.source import TokenSource
from groundup.tokens.samples.blend import Interleaving
from groundup.tokens.samples.plan import Plan, Problem, find_problem, samples_in, split_ranges
from groundup.tokens.samples.ramp import BatchSizes

Change = dict[str, str | int | float]
"""Dotted keys of a run's config and their new values."""

_MOST_MENDS = 100


@dataclasses.dataclass(frozen=True, kw_only=True)
class SourcePlan:
    """One source of a split.

    Attributes:
        key: Of its config, e.g. "data" or "data.sources.0".
        corpus: Its documents.
        split: Shares of train, validation and test; "" where all of it belongs to one split.
        weight: Its share of the samples; None for proportional to its size.
        max_epochs: At most so many passes over it in training; 0 for any number.
        packed_samples: Of the training split, where documents are packed; 0 where they are not.
    """

    key: str
    corpus: TokenSource
    split: str
    weight: float | None
    max_epochs: int
    packed_samples: int = 0

    def num_tokens(self, name: str) -> int:
        """Tokens of a split."""
        if not self.split:
            return len(self.corpus.tokens)
        begin, end = split_ranges(self.split, self.corpus.num_documents)[name]
        return self.corpus.token_begin(end) - self.corpus.token_begin(begin)


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlendPlan:
    """The settings that decide how many samples there are and how many are asked for.

    Attributes:
        sources: Of training, and by their splits of validation and test.
        validation: Sources of validation alone, instead; None for the shares of ``sources``.
        test: Sources of the test alone, likewise.
        sequence_length: Tokens predicted in one sample.
        num_steps: Training steps.
        batch_sizes: Samples of each step.
        needs: The splits that must hold a sample.
    """

    sources: tuple[SourcePlan, ...]
    validation: tuple[SourcePlan, ...] | None = None
    test: tuple[SourcePlan, ...] | None = None
    sequence_length: int
    num_steps: int
    batch_sizes: BatchSizes
    needs: Collection[str] = ("train",)

    @property
    def used(self) -> tuple[SourcePlan, ...]:
        """The sources that training takes samples from."""
        return tuple(source for source in self.sources if source.weight != 0)

    def num_samples(self, source: SourcePlan) -> int:
        """Training samples of one epoch of a source."""
        return source.packed_samples or samples_in(source.num_tokens("train"), self.sequence_length)

    def interleaving(self) -> Interleaving:
        """How the used sources take turns in training."""
        weights = [
            self.num_samples(source) if source.weight is None else source.weight for source in self.used
        ]
        return Interleaving(weights)

    def changed(self, change: Mapping[str, str | int | float]) -> "BlendPlan":
        """The plan with other settings."""
        sources = list(self.sources)
        settings = {}
        for key, value in change.items():
            owner, _, name = key.rpartition(".")
            if name in ("num_steps", "sequence_length"):
                settings[name] = value
            for number, source in enumerate(sources):
                if owner == source.key and name in ("split", "max_epochs", "weight"):
                    sources[number] = dataclasses.replace(source, **{name: value})  # type: ignore[arg-type]
        return dataclasses.replace(self, sources=tuple(sources), **settings)  # type: ignore[arg-type]


def find_mend(plan: BlendPlan, *, data_key: str = "data", num_steps_key: str = "num_steps") -> Problem | None:
    """The first thing that makes a plan impossible, and the changes that each mend all of the plan.

    No changes: only more text mends it.
    """

    def completed(change: Change) -> Change | None:
        """The change, and what else is then needed; None where that comes to no end."""
        for _ in range(_MOST_MENDS):
            further = _find_problem(plan.changed(change), data_key, num_steps_key)
            if further is None:
                return change
            if not further.changes:
                break
            change = {**change, **further.changes[0]}
        return None

    problem = _find_problem(plan, data_key, num_steps_key)
    if problem is None:
        return None
    ways = [completed(change) for change in problem.changes]
    return Problem(problem.what, tuple(way for way in ways if way))


def _find_problem(plan: BlendPlan, data_key: str, num_steps_key: str) -> Problem | None:
    own = {"validation": plan.validation, "test": plan.test}
    shared = [name for name in ("validation", "test") if name in plan.needs and own[name] is None]
    for source in plan.used:
        problem = _size_problem(plan, source, ["train"], data_key)
        if problem:
            return problem
    for name in shared:
        if not any(samples_in(source.num_tokens(name), _least(plan, source)) for source in plan.used):
            largest = max(plan.used, key=lambda source: source.num_tokens("train"))
            return _size_problem(plan, largest, ["train", *shared], data_key)
    for name, sources in own.items():
        if sources is not None and name in plan.needs:
            problem = _own_problem(plan, sources, name, data_key)
            if problem:
                return problem
    return _epochs_problem(plan, num_steps_key)


def _least(plan: BlendPlan, source: SourcePlan) -> int:
    """The sequence length that a split must hold one sample of: packed samples may be mostly padding."""
    return 1 if source.packed_samples else plan.sequence_length


def _size_problem(plan: BlendPlan, source: SourcePlan, needs: list[str], data_key: str) -> Problem | None:
    if not source.split and samples_in(source.num_tokens("train"), _least(plan, source)):
        return None  # without asking for the number of documents, which may take reading them
    problem = find_problem(
        source.corpus,
        Plan(split=source.split or "1", sequence_length=_least(plan, source), needs=needs),
    )
    if problem is None:
        return None
    keys = {"split": f"{source.key}.split", "sequence_length": f"{data_key}.sequence_length"}
    changes: list[Change] = [
        {keys[name]: value for name, value in change.items()}
        for change in problem.changes
        if source.split or "split" not in change
    ]
    if len(plan.used) > 1 and source.weight is not None:
        changes.append({f"{source.key}.weight": 0})
    where = f"{source.key}: " if len(plan.used) > 1 else ""
    return Problem(where + problem.what, tuple(changes))


def _own_problem(
    plan: BlendPlan, sources: tuple[SourcePlan, ...], name: str, data_key: str
) -> Problem | None:
    if not sources:
        return Problem(f"no source has files for {name}", ())
    most = max(source.num_tokens(name) for source in sources)
    if any(samples_in(source.num_tokens(name), _least(plan, source)) for source in sources):
        return None
    return Problem(
        f"the sources of {name} have at most {most:,} tokens, a sample needs {plan.sequence_length + 1:,}"
        " (sequence_length + 1)",
        ({f"{data_key}.sequence_length": most - 1},) if most > 1 else (),
    )


def _epochs_problem(plan: BlendPlan, num_steps_key: str) -> Problem | None:
    sources, interleaving = plan.used, plan.interleaving()
    there = [plan.num_samples(source) for source in sources]
    limits = [
        source.max_epochs * samples if source.max_epochs else 1 << 62
        for source, samples in zip(sources, there, strict=True)
    ]
    asked = plan.batch_sizes.after(plan.num_steps)
    counts = interleaving.counts(asked)
    over = [number for number, count in enumerate(counts) if count > limits[number]]
    if not over:
        return None
    worst = max(over, key=lambda number: counts[number] / limits[number])
    source, count, samples = sources[worst], counts[worst], there[worst]
    changes: list[Change] = [{f"{source.key}.max_epochs": -(-count // samples)}]
    longest = plan.batch_sizes.steps_within(interleaving.longest([min(limit, 1 << 61) for limit in limits]))
    if longest:
        changes.append({num_steps_key: longest})
    if len(sources) > 1 and source.weight is not None:
        changes += _lighter(plan, source, limits[worst], asked)
    of_it = "" if len(sources) == 1 else f", of which {count:,} come from {source.key}, and these"
    return Problem(
        f"{plan.num_steps:,} steps of {plan.batch_sizes} samples{of_it} are {count / samples:.2f}"
        f" epochs of {'the' if len(sources) == 1 else 'its'} {samples:,} training samples,"
        f" more than max_epochs={source.max_epochs}",
        tuple(changes),
    )


def _lighter(plan: BlendPlan, source: SourcePlan, limit: int, asked: int) -> list[Change]:
    """A weight, in three digits, at which the source gives no more than its limit; none where none does."""
    others = sum(other.weight or 0 for other in plan.used if other is not source)
    if not others:
        return []
    weight = others * max(limit - 1, 0) / (asked - limit + 1)  # a prefix may hold one sample too many
    if weight > 0:
        scale = 10.0 ** (2 - math.floor(math.log10(weight)))
        weight = math.floor(weight * scale) / scale
    change: Change = {f"{source.key}.weight": weight}
    lighter = plan.changed(change)
    if weight:
        number = [other.key for other in lighter.used].index(source.key)
        if lighter.interleaving().counts(asked)[number] > limit:
            return []
    return [change]
