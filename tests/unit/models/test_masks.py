"""Each kernel that keeps attention within documents equals attention over the documents one by one."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention

from groundup.models import masks as module
from groundup.models.masks import (
    DenseMask,
    DocumentBlocks,
    DocumentOffsets,
    document_mask,
    document_offsets,
    varlen_attention_fits,
)

TWO_ROWS = [[1, 2, 127, 128, 129, 13], [400]]  # around the blocks of 128 queries, and a row of one document


def documents_of(rows, dtype=torch.int32):
    numbers = [torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths)) for lengths in rows]
    return torch.stack(numbers).to(dtype)


def random_heads(rows, length, heads, kv_heads):
    generator = torch.Generator().manual_seed(length)
    shapes = ((rows, heads, length, 8), (rows, kv_heads, length, 8), (rows, kv_heads, length, 8))
    return [torch.randn(shape, dtype=torch.float64, generator=generator) for shape in shapes]


def one_by_one(q, k, v, documents):
    """Causal attention over each run of equal numbers alone."""
    rows = []
    for row in range(len(documents)):
        _, lengths = documents[row].unique_consecutive(return_counts=True)
        parts = [x[row].split(lengths.tolist(), dim=1) for x in (q, k, v)]
        one = [
            scaled_dot_product_attention(*part, is_causal=True, enable_gqa=True)
            for part in zip(*parts, strict=True)
        ]
        rows.append(torch.cat(one, dim=1))
    return torch.stack(rows)


def fake_varlen_attn(q, k, v, offsets_q, offsets_k, max_q, max_k, *, window_size):
    """Documents one by one, in the layout of ``varlen_attn`` [tokens, heads, width]; a document's last query
    sees its last key, as FlashAttention has it since 2.1."""
    assert offsets_q.dtype == offsets_k.dtype == torch.int32
    assert window_size == (-1, 0)
    lengths_q, lengths_k = offsets_q.diff(), offsets_k.diff()
    assert (lengths_q > 0).all()
    assert (lengths_q <= lengths_k).all()
    assert max_q >= lengths_q.max()
    assert max_k >= lengths_k.max()
    splits = (lengths_q, lengths_k, lengths_k)
    parts = (x.transpose(0, 1).split(n.tolist(), dim=1) for x, n in zip((q, k, v), splits, strict=True))
    one = [
        scaled_dot_product_attention(*part, attn_mask=torch.ones(t, s, dtype=torch.bool).tril(s - t))
        for *part, t, s in zip(*parts, lengths_q.tolist(), lengths_k.tolist(), strict=True)
    ]
    return torch.cat(one, dim=1).transpose(0, 1)


@pytest.fixture(params=["blocks", "offsets", "mask"])
def kernel(request, monkeypatch):
    monkeypatch.setattr(module, "varlen_attn", fake_varlen_attn)
    return {
        "blocks": lambda documents, **given: DocumentBlocks(documents, torch.float64, **given),
        "offsets": DocumentOffsets,
        "mask": DenseMask,
    }[request.param]


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("lengths", [TWO_ROWS, [[5, 3], [1, 7]], [[1]]])
def test_equals_documents_one_by_one_with_gradients(kernel, lengths, kv_heads):
    documents = documents_of(lengths)
    inputs = [x.requires_grad_() for x in random_heads(*documents.shape, 4, kv_heads)]
    expected = one_by_one(*inputs, documents)
    actual = kernel(documents).attend(*inputs, dropout=0.0)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)
    gradient = torch.randn(expected.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    expected_gradients = torch.autograd.grad(expected, inputs, gradient)
    for a, b in zip(torch.autograd.grad(actual, inputs, gradient), expected_gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


@pytest.mark.parametrize("first_query", [1, 130, 200, 399])
@pytest.mark.parametrize("kv_heads", [1, 4])
def test_queries_may_be_of_the_last_tokens_alone(kernel, first_query, kv_heads):
    documents = documents_of(TWO_ROWS)
    q, k, v = [x.requires_grad_() for x in random_heads(*documents.shape, 4, kv_heads)]
    expected = one_by_one(q, k, v, documents)[:, :, first_query:]
    last = q[:, :, first_query:]
    actual = kernel(documents, first_query=first_query).attend(last, k, v, dropout=0.0)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)
    gradient = torch.randn(expected.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    expected_gradients = torch.autograd.grad(expected, (q, k, v), gradient, retain_graph=True)
    actual_gradients = torch.autograd.grad(actual, (q, k, v), gradient)
    for a, b in zip(actual_gradients, expected_gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


@given(st.lists(st.sets(st.integers(0, 299), max_size=6), min_size=1, max_size=3))
def test_blocks_equal_the_dense_mask_wherever_documents_begin(starts):
    documents = torch.zeros(len(starts), 300, dtype=torch.int32)
    for row, columns in enumerate(starts):
        documents[row, list(columns)] = 1
    documents = documents.cumsum(1)
    q, k, v = random_heads(*documents.shape, 2, 2)
    expected = DenseMask(documents).attend(q, k, v, dropout=0.0)
    actual = DocumentBlocks(documents, torch.float64).attend(q, k, v, dropout=0.0)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)


def test_blocks_skip_what_no_query_sees():
    (_, _, third, fourth) = DocumentBlocks(documents_of([[250, 262], [260, 252]]), torch.float32).blocks
    assert third.first == 0  # query 256 of the second row still sees its first document
    assert fourth.first == 250  # the lesser of 250 and 260
    (first, second) = DocumentBlocks(documents_of([[128, 128], [128, 128]]), torch.float32).blocks
    assert (first.first, second.first) == (0, 128)
    assert first.hidden_B1QL is None
    assert second.hidden_B1QL is None


def test_offsets_are_of_all_rows_one_behind_the_other():
    offsets = document_offsets(documents_of([[2, 3], [5], [1, 4]]))
    assert offsets.tolist() == [0, 2, 5, 10, 11, 15]
    assert offsets.dtype == torch.int32
    # Rows that end and begin with the same number are different documents all the same.
    assert document_offsets(torch.tensor([[7, 7], [7, 8]])).tolist() == [0, 2, 3, 4]


def test_the_kernel_on_a_cpu_follows_from_dtype_and_dropout():
    documents = documents_of([[2, 3]])
    activation = torch.zeros(1, 5, 16)
    blocks = document_mask(documents, like=activation, head_dim=16, dropout=0.0)
    assert isinstance(blocks, DocumentBlocks)
    assert blocks.blocks[0].hidden_B1QL.dtype == torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16):
        blocks = document_mask(documents, like=activation, head_dim=16, dropout=0.0)
    assert blocks.blocks[0].hidden_B1QL.dtype == torch.bfloat16
    assert isinstance(document_mask(documents, like=activation, head_dim=16, dropout=0.1), DenseMask)


@pytest.mark.parametrize(
    ("dtype", "dropout", "expected"),
    [
        (torch.bfloat16, 0.0, DocumentOffsets),
        (torch.bfloat16, 0.1, DenseMask),
        (torch.float32, 0.0, DenseMask),
    ],
)
def test_the_kernel_on_a_gpu_follows_from_dtype_and_dropout(dtype, dropout, expected, monkeypatch):
    monkeypatch.setattr(torch.backends.cuda, "is_flash_attention_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    like = SimpleNamespace(device=torch.device("cuda"), dtype=dtype)
    mask = document_mask(documents_of([[2, 3]]), like=like, head_dim=16, dropout=dropout)
    assert isinstance(mask, expected)


def test_variable_length_attention_is_for_half_precision_on_capable_gpus(monkeypatch):
    monkeypatch.setattr(torch.backends.cuda, "is_flash_attention_available", lambda: True)
    assert varlen_attention_fits(torch.bfloat16, 64, capability=(8, 0))
    assert varlen_attention_fits(torch.float16, 128, capability=(9, 0))
    assert not varlen_attention_fits(torch.float32, 64, capability=(8, 0))
    assert not varlen_attention_fits(torch.bfloat16, 64, capability=(7, 5))
    assert not varlen_attention_fits(torch.bfloat16, 512, capability=(8, 0))
    assert not varlen_attention_fits(torch.bfloat16, 36, capability=(8, 0))
    monkeypatch.setattr(torch.backends.cuda, "is_flash_attention_available", lambda: False)
    assert not varlen_attention_fits(torch.bfloat16, 64, capability=(8, 0))


def test_dropout_drops_within_documents_only():
    documents = documents_of([[20, 20]])
    q, k, _ = random_heads(1, 40, 1, 1)
    values = torch.eye(40, dtype=torch.float64)[None, None]  # the output is the attention weights
    torch.manual_seed(0)
    weights = DenseMask(documents).attend(q, k, values, dropout=0.5)[0, 0]
    same = documents[0][:, None] == documents[0][None, :]
    allowed = same.tril()
    assert (weights[~allowed] == 0).all()
    assert 0.2 < (weights[allowed] == 0).double().mean() < 0.8
