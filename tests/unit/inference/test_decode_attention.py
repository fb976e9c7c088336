"""Attention of texts that decode: bags of rows against PyTorch's kernels on copies."""

import pytest
import torch

from groundup.inference.decode_attention import BagAttention, GatheredAttention
from groundup.inference.layer_blocks import LayerBlocks

BLOCK_SIZE = 16


@pytest.mark.parametrize(("num_heads", "num_kv_heads", "head_dim"), [(4, 4, 64), (6, 2, 24), (5, 1, 8)])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize("lengths", [[37], [48, 33, 32, 1]])
def test_bags_are_attention_to_copies(
    num_heads: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype, tolerance: float, lengths: list[int]
) -> None:
    """Whatever number of texts, kv heads and dimensions; blocks lie in any order."""
    torch.manual_seed(1)
    num_blocks = -(-max(lengths) // BLOCK_SIZE)
    memory = torch.randn(2, len(lengths) * num_blocks, BLOCK_SIZE * num_kv_heads * head_dim).to(dtype)
    blocks = LayerBlocks(*memory, block_size=BLOCK_SIZE, num_kv_heads=num_kv_heads)
    table_RC = torch.randperm(len(lengths) * num_blocks).view(len(lengths), num_blocks)
    is_hidden_RT = torch.arange(num_blocks * BLOCK_SIZE) >= torch.tensor(lengths).unsqueeze(1)
    bias_R1T = torch.zeros(is_hidden_RT.shape, dtype=dtype).masked_fill_(is_hidden_RT, -torch.inf)[:, None]
    q_RXH = torch.randn(len(lengths), num_heads + 3, head_dim).to(dtype)
    q_RNH = q_RXH[:, :num_heads]  # as a part of the product of queries, keys and values
    found = BagAttention(table_RC, bias_R1T).attend(q_RNH, blocks)
    expected = GatheredAttention(table_RC, bias_R1T).attend(q_RNH, blocks)
    torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)


def test_a_text_gets_back_what_it_stored() -> None:
    """Of its blocks in their order, cut to its length."""
    torch.manual_seed(1)
    memory = torch.zeros(2, 5, BLOCK_SIZE * 2 * 8)
    blocks = LayerBlocks(*memory, block_size=BLOCK_SIZE, num_kv_heads=2)
    k_MKH, v_MKH = torch.randn(2, 20, 2, 8)
    table_C = torch.tensor([3, 1])
    at_M = torch.arange(20)
    blocks.store((table_C[at_M // BLOCK_SIZE], at_M % BLOCK_SIZE), k_MKH, v_MKH)
    k_1KTH, v_1KTH = blocks.of_text(table_C, 18)
    assert torch.equal(k_1KTH[0].transpose(0, 1), k_MKH[:18])
    assert torch.equal(v_1KTH[0].transpose(0, 1), v_MKH[:18])
