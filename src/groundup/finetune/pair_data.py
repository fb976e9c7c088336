"""The pairs of a run: files of preference records, read, tokenized and split."""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np

from groundup.core.errors import ConfigError, DataError
from groundup.core.progress import Progress
from groundup.corpus.bad_records import BadRecordPolicy, BadRecords
from groundup.corpus.line_blocks import MalformedRecord
from groundup.corpus.records import RecordReader
from groundup.corpus.source_ranges import SourceRange
from groundup.corpus.sources import find_source_files
from groundup.finetune.pair_samples import PairSplit, TokenPair
from groundup.finetune.pairs import Pair, PairFields, pair_of
from groundup.tokens.sampling.split_documents import SPLITS, split_ranges
from groundup.tokens.tokenizer.base import Tokenizer
from groundup.train.config import TrainConfig
from groundup.train.run_data import RunData

Tokenize = Callable[[Pair, str], TokenPair]
"""Makes ids of a pair that stands at ``file:line``; raises ``MalformedRecord`` where it cannot."""

_COUNT_ALL = BadRecordPolicy(max_bad=1)  # what is left out is told, by reason


def pair_data(config: TrainConfig, fields: PairFields, tokenizer: Tokenizer, tokenize: Tokenize) -> RunData:
    """Reads the pairs of ``config.data``.

    Args:
        config: Of the run.
        fields: Names of the fields.
        tokenizer: Of the model.
        tokenize: Makes ids of a pair.

    Raises:
        DataError: A file is missing or damaged, or none of its records is a pair that fits.
    """
    data, bad = config.data, BadRecords(_COUNT_ALL)
    length = data.sequence_length
    pairs = list(_read(_paths(config, "training"), fields, tokenize, length, bad))
    if not pairs:
        raise DataError(
            f"has no pair to train on: {bad.summary()}",
            where=", ".join(str(path) for path in _paths(config, "training")),
            fix="Name other fields with stage.fields.prompt, .chosen and .rejected, or raise"
            " data.sequence_length, in which a prompt with an answer must fit.",
        )
    ranges = split_ranges(data.split, len(pairs))
    found = {name: pairs[slice(*ranges[name])] for name in SPLITS}
    for name in ("validation", "test"):
        if getattr(data, name):
            found["train"] = found["train"] + found[name] if name == "validation" else found["train"]
            found[name] = list(_read(_paths(config, name), fields, tokenize, length, bad))
    splits = {
        name: PairSplit(held, sequence_length=length, seed=config.seed, name=name)
        for name, held in found.items()
        if held
    }
    if "train" not in splits:
        raise DataError(
            f"data.split {data.split} leaves none of {len(pairs)} pairs for training", where="data.split"
        )
    facts = [split.describe() for split in splits.values()]
    return RunData(
        train=splits["train"],
        validation=splits.get("validation"),
        test=splits.get("test"),
        tokenizer=tokenizer,
        fingerprint=hashlib.sha256(splits["train"].fingerprint.encode()).hexdigest()[:16],
        facts=[*facts, bad.summary()] if bad.bad else facts,
    )


def _paths(config: TrainConfig, name: str) -> list[Path]:
    sources = getattr(config.data, name).values()
    for source in sources:
        if source.weight != "proportional":
            raise ConfigError(
                f"weight {source.weight} of {source.path}: pairs are drawn in proportion to their number",
                where="data.sources",
                fix="Leave the weights out.",
            )
    return [source.path for source in sources]


def _read(
    paths: Iterable[Path], fields: PairFields, tokenize: Tokenize, sequence_length: int, bad: BadRecords
) -> Iterator[TokenPair]:
    files = find_source_files(list(paths))
    total = sum(file.size_bytes for file in files)
    with Progress("reading pairs", total, "B") as progress:
        for file in files:
            reader = RecordReader(SourceRange(file, file.size_bytes), "chosen", on_read=progress.add)
            for record in reader:
                where = f"{file.path}:{record.line}"
                try:
                    if record.problem:
                        raise record.problem
                    pair = tokenize(pair_of(record.fields, fields), where)
                    longest = max(pair.lengths)
                    if longest > sequence_length:
                        raise MalformedRecord("too long", f"{longest:,} tokens, over {sequence_length:,}")
                except MalformedRecord as problem:
                    bad.add(where, problem.reason, detail=problem.detail, record=record.raw)
                else:
                    bad.add_good()
                    yield pair


def plain_tokenize(tokenizer: Tokenizer, bos_ids: tuple[int, ...]) -> Tokenize:
    """Returns what makes ids of a pair without a chat template: its texts as they are, and the end."""

    def tokenize(pair: Pair, where: str) -> TokenPair:
        prompt = [*bos_ids, *tokenizer.encode("".join(turn["content"] for turn in pair.prompt))]
        chosen, rejected = (
            [*tokenizer.encode("".join(turn["content"] for turn in answer)), tokenizer.end_of_document_id]
            for answer in (pair.chosen, pair.rejected)
        )
        return TokenPair(
            prompt=np.array(prompt, dtype=np.int32),
            chosen=np.array(chosen, dtype=np.int32),
            rejected=np.array(rejected, dtype=np.int32),
            where=where,
        )

    return tokenize
