import threading

import pytest
import torch

from groundup.core.errors import DataError
from groundup.train.data_loader import Batch, Prefetch, share_of_tokens

CPU = torch.device("cpu")


def a_batch(first: int, count: int) -> Batch:
    tokens = torch.arange(first, first + count).unsqueeze(1)
    return Batch(tokens_BT=tokens, targets_BT=tokens + 1)


def prefetch(read, *, num_batches: int = 3) -> Prefetch:
    return Prefetch(read, [(10 + 4 * number, 4) for number in range(num_batches)], device=CPU)


def test_batches_come_in_order_and_no_more_are_read_than_there_are() -> None:
    read: list[tuple[int, int]] = []

    def noting(first: int, count: int) -> Batch:
        read.append((first, count))
        return a_batch(first, count)

    with prefetch(noting) as batches:
        got = [batches.next_batch().tokens_BT[:, 0].tolist() for _ in range(3)]
    assert got == [[10, 11, 12, 13], [14, 15, 16, 17], [18, 19, 20, 21]]
    assert read == [(10, 4), (14, 4), (18, 4)]


def test_one_batch_is_read_while_another_is_used() -> None:
    second_is_read = threading.Event()

    def read(first: int, count: int) -> Batch:
        if first == 14:
            second_is_read.set()
        return a_batch(first, count)

    with prefetch(read) as batches:
        batches.next_batch()
        assert second_is_read.wait(timeout=30)


def test_what_goes_wrong_ahead_is_raised_when_its_turn_comes() -> None:
    def read(first: int, count: int) -> Batch:
        if first == 14:
            raise DataError("broken")
        return a_batch(first, count)

    with prefetch(read) as batches:
        batches.next_batch()
        with pytest.raises(DataError, match="broken"):
            batches.next_batch()


def test_after_a_jump_come_the_others_alone() -> None:
    with prefetch(a_batch) as batches:
        batches.next_batch()
        batches.jump([(50, 2), (60, 3)])
        got = [batches.next_batch().tokens_BT[:, 0].tolist() for _ in range(2)]
    assert got == [[50, 51], [60, 61, 62]]


def test_a_run_without_steps_reads_nothing() -> None:
    def read(first: int, count: int) -> Batch:
        raise AssertionError("nothing is to be read")

    with prefetch(read, num_batches=0):
        pass


def test_each_token_keeps_its_target_position_and_document_on_the_rank_that_has_it():
    tokens_BT = torch.arange(24).reshape(2, 12)
    documents_BT = torch.tensor([[1] * 5 + [2] * 7, [1] * 12], dtype=torch.int32)
    batch = Batch(tokens_BT=tokens_BT, targets_BT=tokens_BT + 100, documents_BT=documents_BT)
    parts = [share_of_tokens(batch, rank, 3) for rank in range(3)]
    assert parts[1].tokens_BT.tolist() == [[2, 3, 8, 9], [14, 15, 20, 21]]
    assert sum(part.num_targets for part in parts) == batch.num_targets
    for part in parts:
        assert (part.targets_BT == part.tokens_BT + 100).all()
        assert (part.positions_BT == part.tokens_BT % 12).all()
        assert (part.documents_BT == documents_BT.flatten()[part.tokens_BT]).all()


def test_given_positions_are_kept():
    tokens_BT = torch.arange(8)[None]
    batch = Batch(tokens_BT=tokens_BT, targets_BT=tokens_BT, positions_BT=tokens_BT // 2)
    assert share_of_tokens(batch, 0, 2).positions_BT.tolist() == [[0, 0, 3, 3]]
    assert share_of_tokens(batch, 0, 1) is batch
