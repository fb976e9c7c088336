"""What is predicted from what, documents joined and kept apart."""

import numpy as np
import pytest

from groundup.core.errors import DataError
from groundup.tokens.sampling.collate import predictions, read_predictions
from groundup.tokens.sampling.dataset import PADDING, TokenDataset
from tests.unit.tokens.sources import ArraySource

P = PADDING
WINDOWS = np.array([[10, 11, 12, 20, 21, 30], [40, 50, 51, 52, P, P]])
STARTS = np.array([[0, 0, 0, 1, 0, 1], [1, 1, 0, 0, 0, 0]], dtype=np.bool_)


def test_joined_documents_predict_every_token_but_the_first():
    joined = predictions(WINDOWS)
    assert joined.tokens_BT.tolist() == [[10, 11, 12, 20, 21], [40, 50, 51, 52, 0]]
    assert joined.targets_BT.tolist() == [[11, 12, 20, 21, 30], [50, 51, 52, P, P]]
    assert joined.positions_BT is None
    assert joined.documents_BT is None


def test_documents_apart_begin_at_position_0_and_predict_no_others_token():
    apart = predictions(WINDOWS, STARTS)
    assert apart.tokens_BT.tolist() == [[10, 11, 12, 20, 21], [40, 50, 51, 52, 0]]
    assert apart.targets_BT.tolist() == [[11, 12, P, 21, P], [P, 51, 52, P, P]]
    assert apart.positions_BT.tolist() == [[0, 1, 2, 0, 1], [0, 0, 1, 2, 0]]
    assert apart.documents_BT.tolist() == [[0, 0, 0, 1, 1], [1, 2, 2, 2, 3]]
    assert apart.documents_BT.dtype == np.int32


def test_the_last_token_of_a_window_may_be_padding_or_begin_a_document():
    windows = np.array([[1, 2, P], [1, 2, 3], [4, P, P]])
    starts = np.array([[1, 0, 0], [1, 0, 1], [1, 0, 0]], dtype=np.bool_)
    apart = predictions(windows, starts)
    assert apart.targets_BT.tolist() == [[2, P], [2, P], [P, P]]
    assert apart.documents_BT.tolist() == [[1, 1], [1, 1], [1, 2]]


def test_a_negative_token_of_a_file_stays_to_be_found():
    assert predictions(np.array([[5, -1, P]])).tokens_BT.tolist() == [[5, -1]]


def test_a_token_outside_the_vocabulary_is_named_by_its_sample():
    source = ArraySource(np.array([0, 1, 2, 3, 4, 9, 6]), [7])
    samples = TokenDataset(source, None, sequence_length=2, seed=0, name="data (train)")
    read_predictions(samples, 0, 3, vocab_size=10, ordered=True, mask_documents=False)
    read_predictions(samples, 0, 2, vocab_size=9, ordered=True, mask_documents=False)
    with pytest.raises(DataError, match=r"data \(train\): token 9 at position 1 of sample 2 is outside"):
        read_predictions(samples, 1, 2, vocab_size=9, ordered=True, mask_documents=True)
