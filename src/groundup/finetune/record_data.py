"""Data of stages that learn from files of records: what they ask of the config, and their splits."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from groundup.checkpoint.lazy import LazyModel
from groundup.core.errors import ConfigError, DataError
from groundup.core.log import logger
from groundup.core.manifest import fingerprint
from groundup.finetune.chat_split import ChatSplit
from groundup.finetune.tokenized_chats import ChatSource, RecordFormat, open_chats
from groundup.tokens.sampling.packing import PackedDataset
from groundup.tokens.sampling.split_documents import SPLITS, split_ranges
from groundup.tokens.tokenizer.load_tokenizer import load_tokenizer
from groundup.train.config import TrainConfig
from groundup.train.init_weights import open_start
from groundup.train.run_data import RunData
from groundup.train.setup import Run

BY_EPOCHS = 10**9
"""Stands for the number of steps until the records are counted."""

_LONGEST = 2048
_KEPT = "conversations"

SplitKind = TypeVar("SplitKind", bound=ChatSplit)
ConfigT = TypeVar("ConfigT", bound=TrainConfig)
"""A config with all that its stage does not look at."""


def record_defaults(tree: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Returns settings of a run on records, as far as the stage does not matter."""
    model, data = tree.get("model") or {}, tree.get("data") or {}
    longest = model.get("max_sequence_length")
    name = Path(str(data.get("path", "chats"))).name.partition(".")[0]
    return {
        "run_dir": f"runs/{name}-{kind}",
        "num_steps": BY_EPOCHS,
        "data": {
            "packing": "best_fit",
            "mask_documents": True,
            "split": "95,5,0",
            "sequence_length": min(longest, _LONGEST) if isinstance(longest, int) else _LONGEST,
        },
        "warmup": {"kind": "fraction", "fraction": 0.03},
        "validation": {"interval": 50, "num_batches": 0},
    }


def require_records(run: TrainConfig, kind: str) -> None:
    """Refuses settings that a run on records does not have.

    Raises:
        ConfigError: Naming one.
    """
    data = run.data
    problem = fix = ""
    if run.start.path is None:
        problem, fix = "there is no model to begin with", "Name it: groundup finetune MODEL ..."
    elif run.start.state:
        problem, fix = "start.state goes on with another run", "Leave it out: the weights begin this one."
    elif data.packing != "best_fit" or not data.mask_documents:
        problem, fix = "conversations are packed whole and kept apart", "Leave out both settings."
    elif data.order != "seeded":
        problem, fix = f"the order of conversations is not {data.order}", "Leave out data.order."
    elif any(one.weight != "proportional" for one in data.sources.values()):
        problem, fix = "files of conversations have no weights", "Leave them out, or name a file twice."
    if problem:
        raise ConfigError(problem, where=f"stage.kind={kind}", fix=fix)


def open_stored(run: TrainConfig) -> LazyModel:
    """Opens the model that a run begins with."""
    assert run.start.path is not None, "it was checked"
    tokenizer = load_tokenizer(run.data.tokenizer) if run.data.tokenizer else None
    return open_start(run.start.path, tokenizer)


def with_steps(
    run: ConfigT, stored: LazyModel, open_data: Callable[[TrainConfig], RunData], *, epochs: float
) -> ConfigT:
    """Returns a config with the vocabulary of the model, and the number of steps that make the epochs."""
    model = dataclasses.replace(run.model, vocab_size=stored.config.vocab_size)
    run = dataclasses.replace(run, model=model)
    if run.num_steps == BY_EPOCHS:
        steps = math.ceil(epochs * open_data(run).train.num_samples / run.global_batch_size)
        run = dataclasses.replace(run, num_steps=max(1, steps))
    return run


def record_data(
    run: TrainConfig, how: RecordFormat, kind: type[SplitKind], *, row_length: int | None = None
) -> RunData:
    """Opens the records of a run.

    Args:
        run: The run.
        how: What makes tokens of a record.
        kind: Of the splits.
        row_length: Tokens of a sample, where it is not that of the config.

    Raises:
        DataError: They cannot be read, or none is left for training.
    """
    data, folder = run.data, run.run_dir / _KEPT
    row_length = row_length or data.sequence_length
    source = open_chats([one.path for one in data.training.values()], how, folder)
    shares = data.split.replace("/", ",").split(",")
    for number, own in ((1, data.validation), (2, data.test)):
        if own and len(shares) > number:
            shares[number] = "0"
    ranges = split_ranges(",".join(shares), source.num_documents)
    splits = {name: _split(source, ranges[name], name, run, kind, row_length) for name in SPLITS}
    for name, own in (("validation", data.validation), ("test", data.test)):
        if own:
            held_out = open_chats([one.path for one in own.values()], how, folder)
            splits[name] = _split(held_out, (0, held_out.num_documents), name, run, kind, row_length)
    train = splits["train"]
    if train is None:
        raise DataError(
            f"data.split={data.split} leaves none of {source.num_documents} {how.noun} for training",
            where=source.name,
            fix="Set data.split=1,0,0 and validation.interval=0.",
        )
    assert isinstance(train.samples, PackedDataset), "records are packed"
    return RunData(
        train=train,
        validation=splits["validation"],
        test=splits["test"],
        tokenizer=how.tokenizer,
        fingerprint=fingerprint([source.fingerprint, ranges["train"], how.max_tokens]),
        facts=[source.describe(), train.samples.describe()],
    )


def show_examples(run: Run, count: int) -> None:
    """Logs the first records of the training, before its first step."""
    if run.state.step or not run.mesh.is_first:
        return
    assert isinstance(run.data.train, ChatSplit), "a stage on records opened it"
    for text in run.data.train.examples(count, run.tokenizer):
        logger.info("%s", text)


def _split(
    source: ChatSource,
    documents: tuple[int, int],
    name: str,
    run: TrainConfig,
    kind: type[SplitKind],
    row_length: int,
) -> SplitKind | None:
    """The samples of some records; None where there are none."""
    if documents[0] == documents[1]:
        return None
    samples = PackedDataset(
        source, documents, sequence_length=row_length, seed=run.seed, name=f"{source.name} ({name})"
    )
    return kind(samples=samples, vocab_size=run.model.vocab_size, source=source, documents=documents)
