import dataclasses
import hashlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from groundup.core.errors import ConfigError, DataError
from groundup.tokens.dataset import DataConfig, TokenDataset, open_splits, require_plan
from groundup.tokens.indexed import IndexedWriter
from groundup.tokens.plan import SPLITS, Plan, find_problem, split_ranges


def _dataset(num_tokens: int = 101, length: int = 4, seed: int = 1) -> TokenDataset:
    tokens = np.arange(num_tokens, dtype=np.uint16)
    return TokenDataset(tokens, sequence_length=length, seed=seed, num_documents=1)


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    """100 documents of 10 tokens; token = document."""
    with IndexedWriter(tmp_path / "data", vocab_size=100) as writer:
        writer.add(np.repeat(np.arange(100), 10), np.full(100, 10))
    return tmp_path / "data"


def test_an_epoch_holds_each_window_once() -> None:
    data = _dataset()
    assert data.num_samples == 25
    for epoch in range(3):
        batch = data.batch(epoch * 25, 25)
        assert batch.shape == (25, 5)
        assert batch.dtype == np.int64
        assert sorted(batch[:, 0].tolist()) == list(range(0, 100, 4))
        assert np.array_equal(batch, batch[:, :1] + np.arange(5))


def test_epochs_and_seeds_differ() -> None:
    data = _dataset()
    assert not np.array_equal(data.batch(0, 25), data.batch(25, 25))
    assert not np.array_equal(data.batch(0, 25), _dataset(seed=2).batch(0, 25))


@given(cuts=st.lists(st.integers(1, 17), min_size=1, max_size=10))
def test_the_stream_does_not_depend_on_how_it_is_cut(cuts: list[int]) -> None:
    data, first, hashed = _dataset(), 0, hashlib.sha256()
    for count in cuts:
        hashed.update(data.batch(first, count).tobytes())
        first += count
    whole = _dataset().batch(0, first)
    assert hashed.digest() == hashlib.sha256(whole.tobytes()).digest()
    assert np.array_equal(data.window(first - 1), whole[-1])


def test_ordered_windows_come_in_file_order() -> None:
    data = _dataset()
    assert data.batch(0, 2, ordered=True).tolist() == [[0, 1, 2, 3, 4], [4, 5, 6, 7, 8]]
    assert data.batch(24, 2, ordered=True)[:, 0].tolist() == [96, 0]


def test_the_last_partial_window_is_left_out() -> None:
    assert _dataset(num_tokens=104).num_samples == 25
    assert _dataset(num_tokens=105).num_samples == 26
    with pytest.raises(DataError, match="one sample needs 5"):
        _dataset(num_tokens=4)


def test_splits_are_neighbouring_documents(prefix: Path) -> None:
    config = DataConfig(path=prefix.with_name("data.idx"), split="80,15,5", sequence_length=9)
    splits = open_splits(config, seed=0)
    assert splits.train and splits.validation and splits.test
    assert [len(set(split.tokens.tolist())) for split in (splits.train, splits.validation, splits.test)] == [
        80,
        15,
        5,
    ]
    assert splits.validation.tokens[0] == 80
    assert (splits.test.num_documents, splits.test.num_tokens, splits.test.num_samples) == (5, 50, 5)


def test_splits_equal_megatrons(megatron: Path) -> None:
    config = DataConfig(path=megatron / "indexed" / "wt2_200_text_document", sequence_length=128)
    splits = open_splits(config, seed=1234)
    one_epoch = megatron / "sample_order" / "one_epoch_969_30_1_s128"
    for split, name in ((splits.train, "train"), (splits.validation, "valid")):
        assert split
        index = np.load(one_epoch / f"{name}_index.npz")
        assert split.num_documents == len(index["doc_idx"])
        assert split.num_samples == len(index["sample_idx"]) - 1
    assert splits.test is None


@pytest.mark.parametrize(
    ("split", "size", "expected"),
    [
        ("969,30,1", 200, [(0, 194), (194, 200), (200, 200)]),
        ("969,30,1", 1000, [(0, 969), (969, 999), (999, 1000)]),
        ("90/10", 7, [(0, 6), (6, 7), (7, 7)]),
        ("1", 5, [(0, 5), (5, 5), (5, 5)]),
        ("1,1", 3, [(0, 1), (1, 3), (3, 3)]),  # 1.5 rounds to 2 twice: one too many, taken from the first
        ("1,1,1", 1, [(0, 1), (1, 1), (1, 1)]),
    ],
)
def test_shares_round_as_megatron_rounds(split: str, size: int, expected: list[tuple[int, int]]) -> None:
    assert list(split_ranges(split, size).values()) == expected


@given(
    shares=st.lists(st.floats(0, 1e6, allow_subnormal=False), min_size=1, max_size=3),
    size=st.integers(0, 5000),
)
def test_splits_partition_the_documents(shares: list[float], size: int) -> None:
    assume(sum(shares) > 0)
    ranges = list(split_ranges(",".join(map(str, shares)), size).values())
    assert ranges[0][0] == 0
    assert ranges[-1][1] == size
    assert all(begin <= end for begin, end in ranges)
    assert [end for _, end in ranges[:-1]] == [begin for begin, _ in ranges[1:]]


@pytest.mark.parametrize("split", ["", "a,b", "1,-1", "0,0,0", "1,2,3,4", "nan", "inf,1"])
def test_refuses_a_malformed_split(split: str) -> None:
    with pytest.raises(ConfigError, match="not a split"):
        split_ranges(split, 10)


@dataclasses.dataclass
class _Corpus:
    lengths: list[int]

    @property
    def num_sequences(self) -> int:
        return len(self.lengths)

    def token_begin(self, sequence: int) -> int:
        return sum(self.lengths[:sequence])


@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=30),
    shares=st.lists(st.integers(0, 1000), min_size=1, max_size=3),
    length=st.integers(1, 200),
    max_epochs=st.integers(0, 4),
    num_steps=st.integers(1, 200),
    global_batch_size=st.integers(1, 16),
    needs=st.sets(st.sampled_from(SPLITS), min_size=1),
)
@settings(max_examples=400, deadline=None)
def test_each_proposed_change_mends_the_plan(
    lengths: list[int],
    shares: list[int],
    length: int,
    max_epochs: int,
    num_steps: int,
    global_batch_size: int,
    needs: set[str],
) -> None:
    assume(sum(shares) > 0)
    corpus = _Corpus(lengths)
    plan = Plan(
        split=",".join(map(str, shares)),
        sequence_length=length,
        max_epochs=max_epochs,
        num_steps=num_steps,
        global_batch_size=global_batch_size,
        needs=needs,
    )
    problem = find_problem(corpus, plan)
    if problem is None:
        ranges = split_ranges(plan.split, len(lengths))
        assert all(sum(lengths[slice(*ranges[name])]) > length for name in needs)
        return
    for change in problem.changes:
        assert find_problem(corpus, dataclasses.replace(plan, **change)) is None, (problem, change)
    if not problem.changes:  # nothing but more text: each needed split wants two tokens of its own
        shortest = dataclasses.replace(plan, sequence_length=1, max_epochs=0)
        for first in range(len(lengths) + 1):
            for second in range(first, len(lengths) + 1):
                split = f"{first},{second - first},{len(lengths) - second}"
                assert find_problem(corpus, dataclasses.replace(shortest, split=split))


def test_messages_name_the_smallest_change(prefix: Path) -> None:
    def refusal(validation: bool = False, test: bool = False, **changes: object) -> str:
        settings = {"split": "969,30,1", "sequence_length": 16, "max_epochs": 1, **changes}
        splits = open_splits(DataConfig(path=prefix, **settings), seed=0)  # type: ignore[arg-type]
        with pytest.raises(DataError) as caught:
            require_plan(splits, num_steps=20, global_batch_size=4, validation=validation, test=test)
        return str(caught.value)

    assert "the test split is empty: split 969,30,1 gives it 0 of 100 documents" in refusal(test=True)
    assert "Set data.split=97,1,2" in refusal(test=True)
    assert "validation split is smaller than one sample" in refusal(validation=True, sequence_length=40)
    assert "data.sequence_length=29" in refusal(validation=True, sequence_length=40)
    assert "the corpus has 1,000 tokens, one sample needs 2,001" in refusal(sequence_length=2000)
    assert "Set data.sequence_length=969" in refusal(sequence_length=2000)
    steps = refusal()
    assert "20 steps of 4 samples are 1.33 epochs of the 60 training samples" in steps
    assert "Set data.max_epochs=2, or num_steps=15." in steps
    splits = open_splits(DataConfig(path=prefix, sequence_length=16), seed=0)
    require_plan(splits, num_steps=10**9, global_batch_size=4, validation=True)
