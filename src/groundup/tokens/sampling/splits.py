"""From a data config to the samples of each split, and whether a run can be made of them."""

import dataclasses
from collections.abc import Mapping, Sequence

from groundup.core.errors import DataError
from groundup.core.log import logger
from groundup.core.manifest import fingerprint
from groundup.core.vocabulary import require_same_tokenizer
from groundup.tokens.dataset.dataset_manifest import tokenizer_of
from groundup.tokens.dataset.open import token_files
from groundup.tokens.dataset.token_source import TokenRange, TokenSource
from groundup.tokens.sampling.batch_ramp import BatchSizes
from groundup.tokens.sampling.data_config import DataConfig, SourceConfig
from groundup.tokens.sampling.dataset import Samples, TokenDataset, samples_in, tokens_in
from groundup.tokens.sampling.feasibility import MixturePlan, SourcePlan, find_mend
from groundup.tokens.sampling.megatron_blend import blend, plan_sources
from groundup.tokens.sampling.mixture import Interleaving, MixtureDataset, Turns
from groundup.tokens.sampling.open_by_split import open_by_split
from groundup.tokens.sampling.packing import PackedDataset
from groundup.tokens.sampling.split_documents import SPLITS, split_ranges
from groundup.tokens.tokenizer.base import Tokenizer


@dataclasses.dataclass(frozen=True, kw_only=True)
class SourceSplit:
    """What one source gives to one split.

    Attributes:
        key: Of its config: "data", "data.sources.web", ...
        config: Its settings.
        source: Its tokens.
        documents: [begin, end) of its documents; None for all.
        samples: None without a single whole sample, or with weight 0.
    """

    key: str
    config: SourceConfig
    source: TokenSource
    documents: tuple[int, int] | None
    samples: Samples | None

    @property
    def num_documents(self) -> int:
        """Number of its documents."""
        begin, end = self.documents or (0, self.source.num_documents)
        return end - begin

    @property
    def tokens(self) -> TokenRange:
        """Those of its documents, in file order."""
        begin, end = (
            (0, len(self.source.tokens))
            if self.documents is None
            else map(self.source.token_begin, self.documents)
        )
        return TokenRange(self.source.tokens, begin, end)

    @property
    def num_tokens(self) -> int:
        """Tokens of its documents."""
        return len(self.tokens)

    @property
    def weight(self) -> float:
        """Its share of the samples, relative to the others of the split; 0 when nothing is taken of it."""
        if self.samples is None:
            return 0.0
        return float(self.samples.num_samples if self.config.weight == "proportional" else self.config.weight)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Splits:
    """The samples of a run; None for a split without a single whole sample.

    Attributes:
        source_splits: For each split, what each source gives to it.
    """

    config: DataConfig
    train: Samples | None
    validation: Samples | None
    test: Samples | None
    source_splits: dict[str, tuple[SourceSplit, ...]]

    @property
    def fingerprint(self) -> str:
        """Changes when the training tokens, or the share of a source of them, do."""
        train = self.source_splits["train"]
        return fingerprint([[given.source.fingerprint, given.documents, given.weight] for given in train])


def open_splits(
    config: DataConfig,
    *,
    seed: int,
    num_samples: int = 1,
    validation_samples: int = 0,
    test_samples: int = 0,
) -> Splits:
    """Opens the sources and divides their documents; reads headers only.

    Args:
        config: What to train on.
        seed: Of the order of samples.
        num_samples: That training will take; decides Megatron-LM's order, and nothing else.
        validation_samples: That all validations of the training will take, likewise; 0 for file order.
        test_samples: That the test will take, likewise.

    Raises:
        DataError: A file is missing, malformed or does not match the other.
        ConfigError: A split string is malformed.
    """
    training = {key: (source, open_by_split(config, source.path)) for key, source in config.training.items()}
    counts = (config.planned_samples or num_samples, validation_samples, test_samples)
    planned = dict(zip(SPLITS, (0, 0, 0) if config.order == "seeded" else counts, strict=True))
    source_splits: dict[str, tuple[SourceSplit, ...]] = {}
    for name in SPLITS:
        own: Mapping[str, SourceConfig] = {} if name == "train" else getattr(config, name)
        opened = training
        if own:
            opened = {
                f"data.{name}.{key}": (source, open_by_split(config, source.path))
                for key, source in own.items()
            }
        found = {
            key: (settings, sources)
            for key, (settings, sources) in opened.items()
            if sources.get(name) or "all" in sources or own
        }
        weights = {key: settings.weight for key, (settings, _) in found.items()}
        each = plan_sources(config.order, weights, planned[name])
        source_splits[name] = tuple(
            _source_split(config, key, settings, sources, name, seed, each.get(key, 0))
            for key, (settings, sources) in found.items()
        )
    return Splits(
        config=config,
        source_splits=source_splits,
        **{name: _joined(config, name, source_splits[name], planned[name]) for name in SPLITS},
    )


def split_of(config: DataConfig, source: SourceConfig) -> str:
    """The shares of train, validation and test of a training source."""
    shares = (source.split or config.split).replace("/", ",").split(",")
    for number, own in ((1, config.validation), (2, config.test)):
        if own and len(shares) > number:
            shares[number] = "0"
    return ",".join(shares)


def _source_split(
    config: DataConfig,
    key: str,
    settings: SourceConfig,
    sources: Mapping[str, TokenSource],
    name: str,
    seed: int,
    megatron_samples: int,
) -> SourceSplit:
    own = key not in config.training
    source = sources.get("all") or sources.get(name) or sources["train"]
    documents = None
    if not own and "all" in sources:
        cumulative = config.order == "megatron_core"
        ranges = split_ranges(split_of(config, settings), source.num_documents, cumulative=cumulative)
        documents = ranges[name]
    samples = None
    if settings.weight != 0:
        samples = _samples(config, source, documents, f"{source.name} ({name})", seed, megatron_samples)
    return SourceSplit(key=key, config=settings, source=source, documents=documents, samples=samples)


def _samples(
    config: DataConfig,
    source: TokenSource,
    documents: tuple[int, int] | None,
    name: str,
    seed: int,
    megatron_samples: int,
) -> Samples | None:
    """The samples of some documents; None where there is not a whole one."""
    if config.packing == "best_fit":
        first, last = documents or (0, source.num_documents)
        if int(source.document_lengths(first, last).max(initial=0)) < 2:
            return None
        return PackedDataset(source, documents, sequence_length=config.sequence_length, seed=seed, name=name)
    num_tokens = len(source.tokens) if documents is None else tokens_in(source, documents)
    if not samples_in(num_tokens, config.sequence_length):
        return None
    length = config.sequence_length
    return TokenDataset(
        source, documents, sequence_length=length, seed=seed, name=name, megatron_samples=megatron_samples
    )


def _joined(
    config: DataConfig, name: str, source_splits: Sequence[SourceSplit], planned: int
) -> Samples | None:
    """The samples of a split, of one source or several; ``planned`` in Megatron-LM's order, 0 for another."""
    taken = [given for given in source_splits if given.samples]
    for given in source_splits:
        if taken and not given.samples and given.config.weight != 0:
            facts = (given.source.name, name, given.num_tokens)
            logger.warning("%s gives no %s sample (%d tokens): left out there", *facts)
    if len(taken) <= 1:
        return taken[0].samples if taken else None
    samples = [given.samples for given in taken if given.samples]
    turns: Turns = Interleaving([given.weight for given in taken])
    if planned:
        sizes = [one.num_samples for one in samples]
        turns = blend(config.order, [given.config.weight for given in taken], sizes, planned, split=name)
    return MixtureDataset(samples, turns, name=f"mixture ({name})")


def require_plan(
    splits: Splits,
    *,
    num_steps: int,
    batch_sizes: BatchSizes,
    validation: bool = False,
    test: bool = False,
) -> None:
    """Refuses a plan that cannot be carried out, before any training.

    Args:
        splits: The opened data.
        num_steps: Of training.
        batch_sizes: Samples of each step.
        validation: Whether the validation split must hold a sample.
        test: Whether the test split must.

    Raises:
        DataError: A needed split has no sample, or the steps take more than ``max_epochs``; with the
            smallest changes that resolve it.
    """
    wanted = (True, validation, test)
    plans = {
        name: tuple(_source_plan(splits.config, given) for given in splits.source_splits[name])
        for name in SPLITS
    }
    named = not all(plan.split for plan in plans["train"])  # the files' names tell their split
    problem = find_mend(
        MixturePlan(
            sources=plans["train"],
            validation=plans["validation"] if named or splits.config.validation else None,
            test=plans["test"] if named or splits.config.test else None,
            sequence_length=splits.config.sequence_length,
            num_steps=num_steps,
            batch_sizes=batch_sizes,
            needs=tuple(name for name, need in zip(SPLITS, wanted, strict=True) if need),
        )
    )
    if problem is None:
        return
    ways = [" ".join(f"{key}={value}" for key, value in change.items()) for change in problem.changes]
    fix = f"Set {', or '.join(ways)}." if ways else "Add more text: at least a few documents."
    raise DataError(
        problem.what,
        where=", ".join(given.source.name for given in splits.source_splits["train"]),
        fix=fix if problem.enough else f"{fix} Then plan again: that alone is not enough.",
    )


def _source_plan(config: DataConfig, given: SourceSplit) -> SourcePlan:
    weight = None if given.config.weight == "proportional" else given.config.weight
    packed = config.packing == "best_fit" and given.samples is not None
    return SourcePlan(
        key=given.key,
        source=given.source,
        split=split_of(config, given.config) if given.documents is not None else "",
        weight=weight,
        max_epochs=given.config.max_epochs,
        packed_samples=given.samples.num_samples if packed and given.samples else 0,
        cumulative=config.order == "megatron_core",
    )


def tokenizer_of_data(config: DataConfig) -> Tokenizer:
    """The one tokenizer that all sources were built with.

    Raises:
        DataError: It is not told, or the sources were built with different ones.
    """
    files = [token_files(path)[0] for path in config.paths]  # a folder's are known to be of one tokenizer
    first, *others = files
    tokenizer = tokenizer_of(first, config.tokenizer)
    for other in others:
        theirs = tokenizer_of(other, config.tokenizer)
        require_same_tokenizer(
            theirs.fingerprint,
            tokenizer.fingerprint,
            where=other,
            what="was built with",
            other=f"{first} with",
            fix="Build one of them again with the other's tokenizer.",
        )
    return tokenizer
