"""How the tokens of a sequence fall to ranks: each once, and causal attention costs all ranks the same."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from groundup.parallel.context_parallel import chunks_of_rank, context_reasons, tokens_of_rank

DEGREES = st.integers(1, 9)


@given(cp=DEGREES, size=st.integers(1, 20))
def test_each_token_falls_to_one_rank_and_all_cost_the_same(cp, size):
    length = 2 * cp * size
    index = torch.arange(length).expand(3, -1)
    tokens = [tokens_of_rank(index, rank, cp) for rank in range(cp)]
    assert torch.cat(tokens, dim=1)[0].sort().values.tolist() == list(range(length))
    scores = {int((mine[0] + 1).sum()) for mine in tokens}  # token t sees t + 1 tokens
    assert scores == {length * (length + 1) // 2 // cp}
    # Nor does it differ where a kernel computes a chunk's future too, and hides it.
    chunks = [chunks_of_rank(rank, cp, length) for rank in range(cp)]
    assert len({sum((chunk.stop - chunk.start) * chunk.stop for chunk in pair) for pair in chunks}) == 1


def test_a_rank_has_a_chunk_from_either_end():
    assert [tokens_of_rank(torch.arange(8)[None], rank, 2)[0].tolist() for rank in range(2)] == [
        [0, 1, 6, 7],
        [2, 3, 4, 5],
    ]


@pytest.mark.parametrize(("cp", "length", "count"), [(1, 7, 0), (2, 8, 0), (2, 6, 1), (3, 12, 0), (4, 12, 1)])
def test_sequences_must_have_chunks_of_equal_length(cp, length, count):
    reasons = context_reasons(cp, length)
    assert len(reasons) == count
    assert all(f"sequence_length {length}" in reason for reason in reasons)
