"""``groundup tokens plan`` and ``trace``: what a run will read, and what a sample was made of."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import pydantic
from rich.console import Console
from rich.table import Table

from groundup.cli.options import ConfigFile, Override
from groundup.cli.printing import origin_of, print_excerpt
from groundup.cli.run_config import file_and_overrides, presets
from groundup.core.config import config, from_tree
from groundup.core.config_sources import merged
from groundup.core.errors import ConfigError, DataError
from groundup.core.progress import human_count
from groundup.tokens.sampling.batch_ramp import BatchRamp, BatchSizes
from groundup.tokens.sampling.data_config import DataConfig
from groundup.tokens.sampling.dataset import Samples
from groundup.tokens.sampling.mixture import MixtureDataset
from groundup.tokens.sampling.packing import PackedDataset
from groundup.tokens.sampling.split_documents import SPLITS
from groundup.tokens.sampling.splits import SourceSplit, Splits, open_splits, require_plan, tokenizer_of_data
from groundup.tokens.sampling.trace import DocumentRange, trace_document, trace_sample
from groundup.tokens.tokenizer.base import Tokenizer

Positive = Annotated[int, pydantic.Field(ge=1)]


@config
class Reading:
    """Holds what decides the samples of a run: the settings of ``TrainConfig`` of these names and defaults.

    Attributes:
        batch_ramp: Fewer samples than ``global_batch_size`` for the first steps.
        seed: Of the order of samples.
    """

    data: DataConfig
    num_steps: Positive
    global_batch_size: Positive = 8
    batch_ramp: BatchRamp = BatchRamp()
    seed: int = 1234

    def __post_init__(self) -> None:
        """Refuses a ramp that does not lead to the batch."""
        assert self.batch_sizes

    @property
    def batch_sizes(self) -> BatchSizes:
        """The number of samples of each step."""
        return BatchSizes(self.global_batch_size, self.batch_ramp)


def plan(
    config: ConfigFile = None, *overrides: Override, validation: bool = True, test: bool = False
) -> None:
    """Show what a run would read, before it runs: documents, tokens, samples and epochs of each source.

    Takes what `groundup train` takes and needs neither a GPU nor PyTorch. A plan that cannot be carried
    out is refused (exit code 1) with the smallest changes that mend it.

    For example:

        groundup tokens plan run.yaml
        groundup tokens plan run.yaml num_steps=20000 data.sources.books.max_epochs=2
        groundup tokens plan data.path=data/my-gpt2_text_document num_steps=1000 global_batch_size=64

    Args:
        validation: Whether the run validates, so that the validation split must hold a sample.
        test: Whether the test split must, too.
    """
    reading = _reading(config, overrides)
    num_samples = reading.batch_sizes.after(reading.num_steps)
    splits = open_splits(reading.data, seed=reading.seed, num_samples=num_samples)
    Console(width=max(100, Console().width)).print(_table(splits, num_samples))
    length = reading.data.sequence_length
    sys.stdout.write(
        f"{reading.num_steps:,} steps of {reading.batch_sizes} samples of {length:,} tokens:"
        f" {human_count(num_samples * length)} tokens\n"
    )
    for part in splits.source_splits["train"]:
        if isinstance(part.samples, PackedDataset):
            sys.stdout.write(f"{part.key}: {part.samples.describe()}\n")
    require_plan(
        splits,
        num_steps=reading.num_steps,
        batch_sizes=reading.batch_sizes,
        validation=validation,
        test=test,
    )
    sys.stdout.write("The plan can be carried out.\n")


def trace(
    target: Path,
    *overrides: str,
    sample: int | None = None,
    document: int | None = None,
    step: int | None = None,
    split: str = "train",
    characters: int = 300,
) -> None:
    """Show the text of any sample or document, and where it came from: file, line and URL.

    TARGET is a run's config or folder, or the prefix of a dataset. `--sample` counts as training does: in
    the run's own order, through its epochs and its mixture (for a prefix: with the default seed and split,
    or those given as overrides). `--step` shows every sample of a step, as when its loss was odd.

    For example:

        groundup tokens trace data/my-gpt2_text_document --sample 12345
        groundup tokens trace runs/web/config.yaml --step 18250
        groundup tokens trace data/my-gpt2_text_document --document 7 --characters 2000

    Args:
        target: Config, run folder or prefix.
        overrides: Settings as dotted.key=value, e.g. data.sequence_length=512 seed=1.
        sample: Number of a sample, from 0.
        document: Number of a document of the (first) source, from 0.
        step: Number of a step, from 1 as the log counts.
        split: train, validation or test; the held-out ones count in file order.
        characters: How much of each document to show; 0 for their sources alone.
    """
    if sum(chosen is not None for chosen in (sample, document, step)) != 1:
        raise ConfigError(
            "what to trace", where="command line", fix="Give one of --sample, --document, --step."
        )
    if split not in SPLITS:
        raise ConfigError(
            f"{split!r} is no split", where="--split", fix=f"Choose one of {', '.join(SPLITS)}."
        )
    reading = _traced_reading(target, overrides)
    num_samples = reading.batch_sizes.after(reading.num_steps)
    splits = open_splits(reading.data, seed=reading.seed, num_samples=num_samples)
    tokenizer = _tokenizer(reading.data)
    if document is not None:
        source = splits.source_splits["train"][0].source
        if not 0 <= document < source.num_documents:
            raise DataError(
                f"has {source.num_documents:,} documents, none of number {document}", where=source.name
            )
        _show(trace_document(source, document), tokenizer, characters)
        return
    samples: Samples | None = getattr(splits, split)
    if samples is None:
        raise DataError(f"the {split} split has no sample", where=target, fix="Choose another split.")
    wanted = [sample] if sample is not None else []
    if step is not None:
        wanted = list(range(reading.batch_sizes.after(step - 1), reading.batch_sizes.after(step)))
    if wanted[0] is None or wanted[0] < 0:
        raise ConfigError("samples count from 0, steps from 1", where="command line")
    for index in wanted:
        epoch = "" if isinstance(samples, MixtureDataset) else f" (epoch {index / samples.num_samples:.2f})"
        sys.stdout.write(f"{split} sample {index:,}{epoch}\n")
        for piece in trace_sample(samples, index, ordered=split != "train"):
            _show(piece, tokenizer, characters)


def _reading(file: Path | None, overrides: Sequence[str], needs: Mapping[str, Any] | None = None) -> Reading:
    """Picks the settings that decide the samples out of a whole run's config."""
    file, overrides = file_and_overrides(file, overrides)
    tree, origins = merged(file, overrides, presets())
    names = ("data", "num_steps", "global_batch_size", "batch_ramp", "seed")
    return from_tree(Reading, {**(needs or {}), **{key: tree[key] for key in names if key in tree}}, origins)


def _traced_reading(target: Path, overrides: Sequence[str]) -> Reading:
    if (target / "config.yaml").is_file():
        target = target / "config.yaml"
    if target.suffix in (".yaml", ".yml"):
        return _reading(target, overrides)
    return _reading(None, (f"data.path={target}", *overrides), {"num_steps": 1})


def _tokenizer(data: DataConfig) -> Tokenizer | None:
    try:
        return tokenizer_of_data(data)
    except DataError:
        if data.tokenizer is not None:
            raise
        return None  # then ids are shown


def _table(splits: Splits, num_samples: int) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("split")
    table.add_column("source", overflow="fold")
    for heading in ("documents", "tokens", "samples", "share", "read", "epochs", "at most"):
        table.add_column(heading, justify="right")
    for name in SPLITS:
        for row in _rows(name, splits, num_samples):
            table.add_row(*row)
    return table


def _rows(name: str, splits: Splits, num_samples: int) -> list[list[str]]:
    parts = splits.source_splits[name]
    if not any(part.num_tokens for part in parts):
        return [[name, "nothing"]]
    total = sum(part.weight for part in parts)
    counts = _counts(getattr(splits, name), parts, num_samples)
    rows = []
    for number, part in enumerate(parts):
        samples = part.samples.num_samples if part.samples else 0
        row = [
            name if number == 0 else "",
            part.source.name if part.key == "data" else part.key.rpartition(".")[2],
            f"{part.num_documents:,}",
            f"{part.num_tokens:,}",
            f"{samples:,}",
            f"{part.weight / total:.2%}" if total else "",
        ]
        if name == "train":
            row += [
                f"{counts[number]:,}",
                f"{counts[number] / samples:.3f}" if samples else "",
                str(part.config.max_epochs or ""),
            ]
        rows.append(row)
    return rows


def _counts(samples: Samples | None, parts: Sequence[SourceSplit], num_samples: int) -> list[int]:
    """Counts the samples that each source gives to the run."""
    if isinstance(samples, MixtureDataset):
        taken = iter(samples.interleaving.counts(num_samples))
        return [next(taken) if part.samples else 0 for part in parts]
    return [num_samples if part.samples else 0 for part in parts]


def _show(piece: DocumentRange, tokenizer: Tokenizer | None, characters: int) -> None:
    origin = piece.came_from
    came = origin_of(origin.source, origin.line, origin.url) if origin else "origin not recorded"
    sys.stdout.write(
        f"  document {piece.document:,} of {piece.source.name}, tokens {piece.begin:,} to {piece.end:,}"
        f" of {piece.length:,}\n  {came}\n"
    )
    print_excerpt(tokenizer.decode(piece.ids) if tokenizer else " ".join(map(str, piece.ids)), characters)
