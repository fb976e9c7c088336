"""What falls to each rank of a batch, by its tokens."""

import torch

from groundup.train.data_loader import Batch, share_of_tokens


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
