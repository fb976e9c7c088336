"""Feasibility: whether the data suffice for a run, and the smallest change where they do not."""

import bisect
import dataclasses
from collections.abc import Collection, Sequence

from groundup.tokens.dataset.token_source import TokenSource
from groundup.tokens.sampling.batch_ramp import BatchSizes
from groundup.tokens.sampling.dataset import samples_in, tokens_in
from groundup.tokens.sampling.mixture import Interleaving
from groundup.tokens.sampling.split_documents import SPLITS, split_ranges

Change = dict[str, str | int | float]
"""Keys of a config and their new values."""


@dataclasses.dataclass(frozen=True)
class Problem:
    """Why a plan is impossible.

    Attributes:
        changes: Each resolves it; none where only more text does.
        enough: Whether the plan is possible after each of them.
    """

    what: str
    changes: tuple[Change, ...]
    enough: bool = True


def find_problem(
    source: TokenSource,
    split: str,
    sequence_length: int,
    needs: Collection[str],
    *,
    cumulative: bool = False,
) -> Problem | None:
    """Finds the first needed split that is smaller than one sample.

    The changes (of split, sequence_length, or both where neither is enough) move the fewest documents and
    shorten the least.
    """
    ranges = split_ranges(split, source.num_documents, cumulative=cumulative)
    tokens = {name: tokens_in(source, ranges[name]) for name in SPLITS if name in needs}
    small = [name for name, count in tokens.items() if not samples_in(count, sequence_length)]
    if not small:
        return None
    longest = min(tokens.values()) - 1
    nearest = _nearest_split(source, ranges, sequence_length, needs)
    changes: list[Change] = [{"split": nearest}] if nearest else []
    if longest >= 1:
        changes.append({"sequence_length": longest})
    if not changes:
        # Feasible lengths are those up to the longest feasible one: bisect for it.
        longest = bisect.bisect_left(
            range(1, sequence_length), True, key=lambda n: not _nearest_split(source, ranges, n, needs)
        )
        if longest:
            nearest = _nearest_split(source, ranges, longest, needs)
            changes.append({"split": nearest, "sequence_length": longest})
    begin, end = ranges[small[0]]
    documents = f"split {split} gives it {end - begin:,} of {source.num_documents:,} documents"
    if len(source.tokens) <= sequence_length:
        what = (
            f"the corpus has {len(source.tokens):,} tokens, one sample needs {sequence_length + 1:,}"
            " (sequence_length + 1)"
        )
    elif begin == end:
        what = f"the {small[0]} split is empty: {documents}"
    else:
        what = (
            f"the {small[0]} split is smaller than one sample: {documents} with {tokens[small[0]]:,} tokens,"
            f" a sample needs {sequence_length + 1:,} (sequence_length + 1)"
        )
    return Problem(what, tuple(changes))


def _nearest_split(
    source: TokenSource, ranges: dict[str, tuple[int, int]], sequence_length: int, needs: Collection[str]
) -> str:
    """The split, as numbers of documents, nearest to the ranges in which all needs are met; "" if none."""
    size, begins = source.num_documents, source.token_begin
    need = {name: sequence_length + 1 if name in needs else 0 for name in SPLITS}

    def first_end(begin: int, name: str) -> int:
        """Fewest documents up to here such that [begin, here) is enough; size + 1 when none is."""
        return begin + bisect.bisect_left(range(begin, size + 1), begins(begin) + need[name], key=begins)

    def last_begin(end: int, name: str) -> int:
        """The last document such that [here, end) is enough; -1 when none is."""
        return bisect.bisect_right(range(end + 1), begins(end) - need[name], key=begins) - 1

    latest_test = last_begin(size, "test")
    latest_validation = last_begin(latest_test, "validation") if latest_test >= 0 else -1
    earliest_validation = first_end(0, "train")
    if earliest_validation > latest_validation:
        return ""
    train_end = min(max(ranges["train"][1], earliest_validation), latest_validation)
    validation_end = min(max(ranges["validation"][1], first_end(train_end, "validation")), latest_test)
    return f"{train_end},{validation_end - train_end},{size - validation_end}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SourcePlan:
    """One source of a split.

    Attributes:
        key: Of its config, e.g. "data" or "data.sources.web".
        split: Shares of train, validation and test; "" where all of it belongs to one split.
        weight: Its share of the samples; None for proportional to its size.
        max_epochs: At most so many passes over it in training; 0 for any number.
        packed_samples: Of the training split, where documents are packed; 0 where they are not.
        cumulative: How the split is rounded; see ``split_ranges``.
    """

    key: str
    source: TokenSource
    split: str
    weight: float | None
    max_epochs: int
    packed_samples: int = 0
    cumulative: bool = False

    def num_tokens(self, name: str) -> int:
        """Tokens of a split."""
        if not self.split:
            return len(self.source.tokens)
        ranges = split_ranges(self.split, self.source.num_documents, cumulative=self.cumulative)
        return tokens_in(self.source, ranges[name])


@dataclasses.dataclass(frozen=True, kw_only=True)
class MixturePlan:
    """The settings that decide how many samples there are and how many are asked for.

    Attributes:
        sources: Of training, and by their splits of validation and test.
        validation: Sources of validation alone, instead; None for the shares of ``sources``.
        test: Sources of the test alone, likewise.
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
        used = self.used
        return Interleaving([self.num_samples(one) if one.weight is None else one.weight for one in used])

    def changed(self, change: Change) -> "MixturePlan":
        """The plan with other settings, by their dotted keys."""
        of_owner: dict[str, dict[str, str | int | float]] = {}
        for key, value in change.items():
            owner, _, name = key.rpartition(".")
            of_owner.setdefault("" if name in ("num_steps", "sequence_length") else owner, {})[name] = value
        sources = [dataclasses.replace(source, **of_owner.get(source.key, {})) for source in self.sources]  # type: ignore[arg-type]
        return dataclasses.replace(self, sources=tuple(sources), **of_owner.get("", {}))  # type: ignore[arg-type]


def find_mend(plan: MixturePlan) -> Problem | None:
    """Finds the first thing that makes a plan impossible, with the changes that make the plan possible.

    Where none of them alone does, with those that resolve the first thing.
    """
    problem = _find_problem(plan)
    if problem is None:
        return None
    enough = tuple(change for change in problem.changes if _find_problem(plan.changed(change)) is None)
    return Problem(problem.what, enough or problem.changes, bool(enough))


def _find_problem(plan: MixturePlan) -> Problem | None:
    by_size = sorted(plan.used, key=lambda source: source.num_tokens("train"))
    problem = _size_problem(plan, by_size[0], ["train"])
    own = {"validation": plan.validation, "test": plan.test}
    for name in own:
        if problem or name not in plan.needs:
            continue
        sources = own[name]
        if sources is not None:
            problem = _own_problem(plan, sources, name)
        elif not _holds_sample(plan, plan.used, name):
            shared = [name for name in plan.needs if own.get(name) is None]
            problem = _size_problem(plan, by_size[-1], shared)
    return problem or _epochs_problem(plan)


def _holds_sample(plan: MixturePlan, sources: Sequence[SourcePlan], name: str) -> bool:
    return any(samples_in(source.num_tokens(name), _least(plan, source)) for source in sources)


def _least(plan: MixturePlan, source: SourcePlan) -> int:
    """The sequence length that a split must hold one sample of: packed samples may be mostly padding."""
    return 1 if source.packed_samples else plan.sequence_length


def _size_problem(plan: MixturePlan, source: SourcePlan, needs: list[str]) -> Problem | None:
    least = _least(plan, source)
    if not source.split and samples_in(source.num_tokens("train"), least):
        return None  # without asking for the number of documents, which may take reading them
    problem = find_problem(source.source, source.split or "1", least, needs, cumulative=source.cumulative)
    if problem is None:
        return None
    keys = {"split": f"{source.key}.split", "sequence_length": "data.sequence_length"}
    changes: list[Change] = [
        {keys[name]: value for name, value in change.items()}
        for change in problem.changes
        if source.split or "split" not in change
    ]
    if len(plan.used) > 1 and source.weight is not None:
        changes.append({f"{source.key}.weight": 0})
    where = f"{source.key}: " if len(plan.used) > 1 else ""
    return Problem(where + problem.what, tuple(changes))


def _own_problem(plan: MixturePlan, sources: Sequence[SourcePlan], name: str) -> Problem | None:
    if _holds_sample(plan, sources, name):
        return None
    if not sources:
        return Problem(f"no source has files for {name}", ())
    most = max(source.num_tokens(name) for source in sources)
    return Problem(
        f"the sources of {name} have at most {most:,} tokens, a sample needs {plan.sequence_length + 1:,}"
        " (sequence_length + 1)",
        ({"data.sequence_length": most - 1},) if most > 1 else (),
    )


def _epochs_problem(plan: MixturePlan) -> Problem | None:
    sources, interleaving = plan.used, plan.interleaving()
    there = [plan.num_samples(source) for source in sources]
    asked = plan.batch_sizes.after(plan.num_steps)
    limits = [source.max_epochs * samples or asked for source, samples in zip(sources, there, strict=True)]
    counts = interleaving.counts(asked)
    over = [number for number, count in enumerate(counts) if count > limits[number]]
    if not over:
        return None
    worst = max(over, key=lambda number: counts[number] / limits[number])
    source, count, samples, limit = sources[worst], counts[worst], there[worst], limits[worst]
    needed: Change = {f"{sources[at].key}.max_epochs": -(-counts[at] // there[at]) for at in over}
    changes = [needed]
    if longest := plan.batch_sizes.steps_within(interleaving.longest(limits)):
        changes.append({"num_steps": longest})
    others = sum(other.weight or 0 for other in sources if other is not source)
    if others and source.weight is not None:
        weight = others * (limit - 1) / (asked - limit + 1)  # one less: a prefix may hold one above its share
        changes.append({f"{source.key}.weight": float(f"{0.995 * weight:.3g}")})  # three digits, not more
    of_it = "" if len(sources) == 1 else f", of which {count:,} come from {source.key}, and these"
    return Problem(
        f"{plan.num_steps:,} steps of {plan.batch_sizes} samples{of_it} are {count / samples:.2f}"
        f" epochs of {'the' if len(sources) == 1 else 'its'} {samples:,} training samples,"
        f" more than max_epochs={source.max_epochs}",
        tuple(changes),
    )
