"""Runs whose documents are kept apart, from the config to the metrics."""

import numpy as np
import pytest
import torch

from groundup.cli.train import evaluate
from groundup.core.errors import DataError
from groundup.tokens.sampling.dataset import PADDING, TokenDataset
from groundup.train.loss import IGNORE
from groundup.train.run_data import read_batch
from tests.runs import losses, make_config, make_data, run
from tests.unit.tokens.sources import ArraySource


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("data"))


def a_batch(tokens, lengths, *, mask_documents=True, count=1, length=5):
    source = ArraySource(np.array(tokens), lengths)
    dataset = TokenDataset(source, sequence_length=length, seed=0)
    return read_batch(dataset, 0, count, vocab_size=100, mask_documents=mask_documents)


def test_a_batch_holds_positions_and_documents_when_they_are_kept_apart():
    batch = a_batch([1, 2, 3, 4, 5, 6], [2, 4])
    assert batch.tokens_BT.tolist() == [[1, 2, 3, 4, 5]]
    assert batch.targets_BT.tolist() == [[2, IGNORE, 4, 5, 6]]
    assert batch.positions_BT.tolist() == [[0, 1, 0, 1, 2]]
    assert batch.documents_BT.tolist() == [[1, 1, 2, 2, 2]]
    assert batch.num_targets == 4
    joined = a_batch([1, 2, 3, 4, 5, 6], [2, 4], mask_documents=False)
    assert joined.targets_BT.tolist() == [[2, 3, 4, 5, 6]]
    assert joined.positions_BT is None
    assert joined.documents_BT is None


def test_a_batch_splits_with_all_that_belongs_to_it():
    batch = a_batch(range(16), [2, 3, 11], count=3)
    parts = list(batch.split(2))
    assert [len(part.tokens_BT) for part in parts] == [2, 1]
    for name in ("tokens_BT", "targets_BT", "positions_BT", "documents_BT"):
        whole = torch.cat([getattr(part, name) for part in parts])
        assert torch.equal(whole, getattr(batch, name))
    assert [part.positions_BT for part in a_batch(range(6), [6], mask_documents=False).split(1)] == [None]


def test_nothing_to_predict_is_named():
    with pytest.raises(DataError, match=r"samples 0 to 0 have nothing to predict.*one token"):
        a_batch([1, 2, 3, 4, 5, 6], [1] * 6)


@pytest.mark.parametrize("wrong", [-1, 100])
def test_a_token_outside_the_vocabulary_is_not_taken_for_padding(wrong):
    assert wrong != PADDING
    with pytest.raises(DataError, match=f"token {wrong} at position 3 of sample 0"):
        a_batch([1, 2, 3, wrong, 5, 6], [6])


@pytest.mark.parametrize("packing", ["stream", "best_fit"])
def test_a_masked_run_learns_resumes_and_counts_what_it_predicted(data, tmp_path, packing):
    settings = ("data.mask_documents=true", f"data.packing={packing}", "validation.interval=2")
    records = run(make_config(data, tmp_path / "whole", *settings), evaluate=evaluate)
    whole = losses(records)
    assert whole[6] < whole[1]
    tokens = [record["tokens"] for record in records if record["kind"] == "train"]
    assert 5 * 4 * 32 < tokens[-1] <= 6 * 4 * 32
    assert (tokens[-1] < 6 * 4 * 32) == (packing == "stream")  # which cuts across documents at once
    validation = [record["loss"] for record in records if record["kind"] == "validation"]
    assert validation[-1] < validation[0]

    def stop(run_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(make_config(data, tmp_path / "cut", *settings, "sample.interval=4"), complete=stop)
    resumed = losses(run(make_config(data, tmp_path / "cut", *settings)))
    assert resumed == whole
    assert whole != losses(run(make_config(data, tmp_path / "joined")))
