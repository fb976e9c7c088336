"""Megatron-LM's blends, sample by sample, against what its own code gave on the same files.

``megatron_blends.json`` was recorded by running Megatron-LM's ``build_train_valid_test_datasets`` (commit
992da75) and ``BlendedMegatronDatasetBuilder`` (commit d98e8a6) with their compiled helpers on what
``build_sets`` writes, for each of ``CASES``: length of each split, SHA-256 of all planned samples (int64,
little-endian, L + 1 tokens each, one behind the other) and the first token of the first samples.
"""

import dataclasses
import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from groundup.core.errors import DataError
from groundup.tokens.dataset.indexed_writer import IndexedWriter
from groundup.tokens.sampling.data_config import DataConfig, SourceConfig
from groundup.tokens.sampling.megatron_blend import GreedyInterleaving, plan_blend
from groundup.tokens.sampling.splits import open_splits

RECORDED = json.loads((Path(__file__).parent / "megatron_blends.json").read_text())
SIZES = (40, 23, 71)
CASES = {
    "a single set": {
        "weights": (),
        "split": "80,15,5",
        "num_samples": (200, 30, 9),
        "length": 16,
        "seed": 1234,
    },
    "a blend of one": {
        "weights": (1.0,),
        "split": "8,1,1",
        "num_samples": (400, 30, 9),
        "length": 16,
        "seed": 7,
    },
    "shares": {
        "weights": (0.3, 0.5, 0.2),
        "split": "80,10,10",
        "num_samples": (500, 40, 20),
        "length": 16,
        "seed": 1,
    },
    "rounded": {
        "weights": (5, 1, 3),
        "split": "70.5,19.5,10",
        "num_samples": (333, 7, 3),
        "length": 24,
        "seed": 1234,
    },
    "one rare": {
        "weights": (0.01, 10, 2),
        "split": "90,10",
        "num_samples": (997, 13, 1),
        "length": 8,
        "seed": 99,
    },
    "no weights": {"weights": None, "split": "80,10,10", "num_samples": (120, 9, 9), "length": 16, "seed": 5},
}


def build_sets(folder: Path) -> list[Path]:
    """Writes three data sets; all of their tokens differ."""
    prefixes = []
    for number, size in enumerate(SIZES):
        lengths = np.random.RandomState(number).randint(1, 90, size)
        tokens = np.arange(lengths.sum()) + 5000 * number
        prefixes.append(folder / f"set{number}_text_document")
        with IndexedWriter(prefixes[-1], vocab_size=20000) as writer:
            writer.add(tokens.astype(np.uint16), lengths.astype(np.int32))
    return prefixes


@pytest.fixture(scope="module")
def prefixes(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return build_sets(tmp_path_factory.mktemp("sets"))


@pytest.mark.parametrize("recorded", RECORDED, ids=lambda row: f"{row['order']}-{row['case']}")
def test_equals_what_megatron_gave(prefixes: list[Path], recorded: dict) -> None:
    case = CASES[recorded["case"]]
    config = data_config(prefixes, case["weights"], recorded["order"], case["split"], case["length"])
    train, validation, test = case["num_samples"]
    splits = open_splits(
        config, seed=case["seed"], num_samples=train, validation_samples=validation, test_samples=test
    )
    for name, count in zip(("train", "validation", "test"), case["num_samples"], strict=True):
        samples = getattr(splits, name)
        if recorded[name] is None:
            assert samples is None
            continue
        batch = samples.batch(0, count)
        assert batch[:12, 0].tolist() == recorded[name]["first_tokens"], name
        assert hashlib.sha256(batch.astype("<i8").tobytes()).hexdigest() == recorded[name]["sha256"], name
        if case["weights"] is None or len(case["weights"]) > 1:
            assert samples.interleaving.length == recorded[name]["length"]


def data_config(prefixes, weights, order, split, length) -> DataConfig:  # type: ignore[no-untyped-def]
    common = {"order": order, "split": split, "sequence_length": length}
    if weights == ():
        return DataConfig(path=prefixes[0], **common)
    given = weights or ("proportional",) * len(prefixes)
    sources = {
        f"set{number}": SourceConfig(path=prefixes[number], weight=weight)
        for number, weight in enumerate(given)
    }
    return DataConfig(sources=sources, **common)


def test_every_block_begins_where_the_one_before_it_ends() -> None:
    """The rule itself, one sample behind the other, over many blocks."""
    plan = plan_blend("megatron", (0.31, 1e-3, 0.47, 0.219), 9_000)
    counts, sources = np.zeros(4), []
    for position in range(plan.size):
        source = int(np.argmax(plan.weights * max(position, 1) - counts))
        sources.append((source, int(counts[source])))
        counts[source] += 1
    order = GreedyInterleaving(plan.weights, plan.size)
    found = order.at(np.arange(plan.size))
    assert list(zip(*(part.tolist() for part in found), strict=True)) == sources
    assert order.counts(plan.size) == counts.tolist()
    assert order.counts(8000) == np.bincount([source for source, _ in sources[:8000]]).tolist()
    longest = order.longest([2000, 9, 10**9, 10**9])
    within, beyond = order.counts(longest), order.counts(longest + 1)
    assert within[0] <= 2000 < beyond[0]
    assert order.longest([10**9] * 4) == plan.size


def test_more_samples_than_planned_are_refused(prefixes: list[Path]) -> None:
    config = data_config(prefixes, (1, 2), "megatron", "1", 16)
    train = open_splits(config, seed=1, num_samples=100).train
    assert train is not None
    train.batch(0, 100)
    with pytest.raises(DataError, match=r"sample 199 of a blend is beyond the 10[0-9] that were planned"):
        train.batch(100, 100)


def test_sources_without_weights_are_read_once(prefixes: list[Path]) -> None:
    with pytest.raises(ValueError, match="needs a weight for each of sources"):
        data_config(prefixes, None, "megatron", "1", 16)
    with pytest.raises(DataError, match="9,000 samples are planned, one epoch of each source has"):
        open_splits(data_config(prefixes, None, "megatron_core", "1", 16), seed=1, num_samples=9000)


def test_the_order_is_that_of_the_planned_length(prefixes: list[Path]) -> None:
    config = data_config(prefixes, (1, 2), "megatron", "1", 16)
    planned = open_splits(dataclasses.replace(config, planned_samples=900), seed=1, num_samples=100).train
    whole, short = (open_splits(config, seed=1, num_samples=count).train for count in (900, 100))
    assert planned is not None and whole is not None and short is not None
    np.testing.assert_array_equal(planned.batch(0, 900), whole.batch(0, 900))
    assert (planned.batch(0, 100) != short.batch(0, 100)).any()
    with pytest.raises(ValueError, match="planned_samples has no effect"):
        dataclasses.replace(config, order="seeded", planned_samples=900)


def test_packed_documents_have_no_such_order(prefixes: list[Path]) -> None:
    with pytest.raises(ValueError, match='packing is "stream"'):
        DataConfig(path=prefixes[0], order="megatron_core", packing="best_fit")
