"""Best-fit packing loses no prediction, is best-fit-decreasing, and is read in constant time."""

import bisect
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from groundup.core.errors import DataError
from groundup.tokens.sampling.dataset import PADDING
from groundup.tokens.sampling.packing import PackedDataset, pack
from tests.unit.tokens.sources import ArraySource

lengths_of_documents = st.lists(st.integers(0, 40), max_size=60)


def naive_best_fit(sizes, room):
    """What is left in the bins when pieces are placed one by one, the largest first."""
    left = []
    for size in sorted(sizes, reverse=True):
        at = bisect.bisect_left(left, size)
        tightest = left.pop(at) if at < len(left) else room
        bisect.insort(left, tightest - size)
    return Counter(left)


def pieces_of(lengths, length):
    """(document, first token in it, tokens) of each piece: documents cut at ``length`` targets."""
    return [
        (document, begin, min(length + 1, size - begin))
        for document, size in enumerate(lengths)
        for begin in range(0, size - 1, length)
    ]


def packed(lengths, length, *, first=0, last=None, seed=0):
    source = ArraySource(np.arange(sum(lengths), dtype=np.int32), lengths)
    documents = (first, len(lengths) if last is None else last)
    return PackedDataset(source, documents, sequence_length=length, seed=seed)


@given(lengths_of_documents, st.integers(1, 12))
def test_every_piece_is_in_one_sample_and_the_bins_are_those_of_best_fit(lengths, length):
    packing = pack(np.array(lengths, dtype=np.int32), length)
    expected = pieces_of(lengths, length)
    numbers = packing.numbers.astype(int) * length
    assert sorted(zip(packing.documents.tolist(), numbers.tolist(), strict=True)) == [
        (document, begin) for document, begin, _ in expected
    ]
    sizes = {(document, begin): size for document, begin, size in expected}
    left, firsts = Counter(), []
    for begin, end in zip(packing.sample_begins[:-1], packing.sample_begins[1:], strict=True):
        inside = list(zip(packing.documents[begin:end].tolist(), numbers[begin:end].tolist(), strict=True))
        assert inside == sorted(inside)
        firsts.append(inside[0])
        left[length + 1 - sum(sizes[piece] for piece in inside)] += 1
    assert firsts == sorted(firsts)
    assert left == naive_best_fit(sizes.values(), length + 1)
    assert packing.num_samples == sum(left.values())
    assert packing.num_padded == sum(room * count for room, count in left.items())
    assert packing.num_left_out == sum(size < 2 for size in lengths)
    assert packing.num_cut == sum(size > length + 1 for size in lengths)
    assert packing.num_targets == sum(max(0, size - 1) for size in lengths)


def test_long_documents_and_wide_samples_too():
    lengths = np.random.default_rng(0).lognormal(7, 2, 3000).astype(np.int32)
    for length in (255, 1024, 70_000):
        packing = pack(lengths, length)
        sizes = [size for _, _, size in pieces_of(lengths.tolist(), length)]
        assert packing.num_samples == sum(naive_best_fit(sizes, length + 1).values())
        assert packing.num_targets == int(np.maximum(lengths - 1, 0).sum())


def test_a_length_near_the_largest_integer_does_not_overflow():
    packing = pack(np.array([2**31 - 1, 3], dtype=np.int32), 1 << 16)
    assert packing.num_targets == 2**31 - 2 + 2
    assert packing.num_cut == 1


@given(lengths_of_documents.filter(lambda lengths: max(lengths, default=0) > 1), st.integers(1, 9))
def test_samples_hold_the_pieces_and_padding_and_nothing_else(lengths, length):
    dataset = packed(lengths, length)
    batch = dataset.batch(0, dataset.num_samples, ordered=True)
    starts = dataset.document_starts(0, dataset.num_samples, ordered=True)
    begins = np.cumsum([0, *lengths])
    found = []
    for row, (tokens, start) in enumerate(zip(batch, starts, strict=True)):
        kept = tokens[tokens != PADDING]
        assert (tokens[len(kept) :] == PADDING).all()
        assert not start[len(kept) :].any()
        pieces = np.split(kept, np.flatnonzero(start)[1:])
        found += [piece.tolist() for piece in pieces]
        spans = dataset.spans(row, ordered=True)
        assert [list(range(span.begin, span.end)) for span in spans] == [piece.tolist() for piece in pieces]
    assert sorted(found) == [
        list(range(begins[document] + begin, begins[document] + begin + size))
        for document, begin, size in pieces_of(lengths, length)
    ]


def test_epochs_shuffle_whole_samples_and_any_index_is_reached_alone():
    dataset = packed([7, 30, 4, 9, 2, 15, 6, 6, 1, 12], 8, seed=5)
    samples = dataset.num_samples
    in_file_order = {row.tobytes() for row in dataset.batch(0, samples, ordered=True)}
    epochs = [dataset.batch(epoch * samples, samples) for epoch in range(3)]
    for epoch in epochs:
        assert {row.tobytes() for row in epoch} == in_file_order
    assert not (epochs[0] == epochs[1]).all()
    far = dataset.batch(samples - 2, 4)
    np.testing.assert_array_equal(far, np.concatenate((epochs[0][-2:], epochs[1][:2])))
    np.testing.assert_array_equal(
        dataset.document_starts(samples - 2, 4),
        np.concatenate((dataset.document_starts(samples - 2, 2), dataset.document_starts(samples, 2))),
    )


def test_a_part_of_the_documents_is_packed_alone():
    dataset = packed([5, 4, 6, 3, 9], 9, first=1, last=4)
    batch = dataset.batch(0, dataset.num_samples, ordered=True)
    assert sorted(batch[batch != PADDING].tolist()) == list(range(5, 18))
    assert (dataset.num_documents, dataset.num_tokens) == (3, 13)


def test_nothing_to_pack_is_refused():
    with pytest.raises(DataError, match="none of its 3 documents has two tokens"):
        packed([1, 0, 1], 8)


def test_says_what_it_did():
    assert packed([9, 30, 1, 4], 9).describe() == (
        "best-fit packing: 5 samples, 4 tokens of padding (8.00%), none cropped;"
        " 1 of 4 documents (25.00%) longer than a sample and cut; 1 of less than two tokens left out"
    )
