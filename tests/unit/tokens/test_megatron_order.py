"""Megatron-LM's order, sample by sample, against what it recorded itself."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from groundup.core.errors import DataError
from groundup.tokens.dataset.indexed import IndexedDataset
from groundup.tokens.sampling.data_config import DataConfig
from groundup.tokens.sampling.megatron_order import megatron_order
from groundup.tokens.sampling.split_documents import split_ranges
from groundup.tokens.sampling.splits import open_splits

RECORDED = ("one_epoch_969_30_1_s128", "multi_epoch_separate_969_30_1_s128")


@pytest.fixture
def reference(shared_data):
    folder = shared_data.parent / "reference" / "megatron"
    if not folder.is_dir():
        pytest.skip(f"no reference artefacts at {folder}")
    return folder


@pytest.mark.parametrize("name", RECORDED)
@pytest.mark.parametrize(("split", "number"), [("train", 0), ("valid", 1)])
def test_equals_what_megatron_recorded(reference, name, split, number):
    folder = reference / "sample_order" / name
    meta = json.loads((folder / "meta.json").read_text())
    data = IndexedDataset(reference / "indexed" / "wt2_200_text_document")
    begin, end = list(split_ranges(meta["split"], data.num_sequences).values())[number]
    lengths = np.array([len(data.sequence(i)) for i in range(begin, end)], dtype=np.int32)
    order = megatron_order(
        lengths,
        sequence_length=meta["seq"],
        num_samples=meta["n"][number],
        seed=meta["seed"],
    )
    index = np.load(folder / f"{split}_index.npz")
    assert order.num_samples == meta["lengths"][split]
    np.testing.assert_array_equal(order.documents + begin, index["doc_idx"])
    np.testing.assert_array_equal(order.starts(), index["sample_idx"])
    np.testing.assert_array_equal(order.shuffle, index["shuffle_idx"])
    (recorded,) = folder.glob(f"{split}_first*.npy")
    expected = np.load(recorded)
    for generation in (
        "megatron",
        "megatron_core",
    ):  # the way that training takes: they agree on one data set
        config = DataConfig(
            path=data.prefix, split=meta["split"], sequence_length=meta["seq"], order=generation
        )
        splits = open_splits(
            config, seed=meta["seed"], num_samples=meta["n"][0], validation_samples=meta["n"][1]
        )
        dataset = splits.train if split == "train" else splits.validation
        np.testing.assert_array_equal(dataset.batch(0, len(expected)), expected)
    tokens = data.tokens[data.token_begin(begin) : data.token_begin(end)]
    for sample, row in enumerate(expected):
        pieces = [tokens[a:b] for a, b in order.ranges(sample)]
        np.testing.assert_array_equal(np.concatenate(pieces), row)


@given(
    lengths=st.lists(st.integers(0, 20), min_size=1, max_size=12).filter(lambda lengths: sum(lengths) > 5),
    num_samples=st.integers(1, 60),
    seed=st.integers(0, 2**31),
)
def test_every_sample_has_its_length_and_the_stream_is_covered(lengths, num_samples, seed):
    order = megatron_order(
        np.array(lengths, dtype=np.int32),
        sequence_length=5,
        num_samples=num_samples,
        seed=seed,
    )
    assert order.num_samples >= num_samples
    assert sorted(order.shuffle.tolist()) == list(range(order.num_samples))
    for sample in range(order.num_samples):
        pieces = order.ranges(sample)
        assert sum(end - begin for begin, end in pieces) == 6
        assert all(0 <= begin < end <= sum(lengths) for begin, end in pieces)


def test_too_few_tokens_for_one_sample():
    with pytest.raises(ValueError, match="5 tokens are less than one sample of 6"):
        megatron_order(np.array([5], dtype=np.int32), sequence_length=5, num_samples=1, seed=1)


def test_more_samples_than_planned_are_refused(reference):
    config = DataConfig(
        path=reference / "indexed" / "wt2_200_text_document", sequence_length=128, order="megatron"
    )
    dataset = open_splits(config, seed=1, num_samples=10).train
    dataset.batch(dataset.num_samples - 1, 1)
    with pytest.raises(DataError, match="sample 270 is beyond the 270 that were planned"):
        dataset.batch(dataset.num_samples - 1, 2)
