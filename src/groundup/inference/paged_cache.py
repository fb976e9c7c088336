"""Keys and values in blocks, and attention to them.

The new tokens of all texts stand one behind the other in a single row. Those that decode come first and
attend together, the texts of about one length at a time; each prefilled chunk attends by itself.

Shapes: M new tokens of all texts, R texts of a group, S keys, N heads, K kv heads, G heads of a kv head,
H head dim.
"""

import contextlib
import dataclasses
import math
import mmap
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from groundup.models.masks import CausalMask

_KEYS_AT_ONCE = 1 << 20
"""Elements of keys that a group of decoding texts gathers on a CPU, so that they stay in its caches."""

_PADDING = 1.25
"""A group holds texts of which the longest has at most so many times the blocks of the shortest."""


@dataclasses.dataclass(frozen=True)
class Span:
    """The new tokens of one text: ``start`` are cached before, ``blocks`` have room for all."""

    start: int
    num_tokens: int
    blocks: list[int]

    @property
    def end(self) -> int:
        """Returns the number of tokens that are cached after this."""
        return self.start + self.num_tokens


@dataclasses.dataclass(frozen=True)
class _Decodes:
    """A group of texts with one new token each: a table of their blocks, and where there are no keys."""

    rows: slice
    table: Tensor
    bias_R1S: Tensor


@dataclasses.dataclass(frozen=True)
class _Prefill:
    """A chunk of one text; ``table`` is None where it is the text's first."""

    rows: slice
    table: Tensor | None
    end: int


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Returns zeros, for what is not a number would spoil sums even where it has no weight.

    On a CPU, memory is taken as it is first written to; PyTorch's zeros would take all at once. Small pages,
    or memory that begins within a line of the processor's cache, would cost an eighth of the speed.
    """
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    memory = mmap.mmap(-1, math.prod(shape) * dtype.itemsize)
    if hasattr(mmap, "MADV_HUGEPAGE"):  # Linux
        with contextlib.suppress(OSError):  # a kernel without large pages
            memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype).view(shape)


class PagedCache:
    """Blocks of keys and values; ``prepare`` says before a forward pass what it will bring.

    Args:
        layers: Whose keys and values these are.
        num_kv_heads: K.
        head_dim: H.
        num_blocks: How many blocks there are.
        block_size: Tokens a block.
        dtype: Of the model's activations.
        device: Where the model computes.
    """

    def __init__(
        self,
        *,
        layers: Sequence[int],
        num_kv_heads: int,
        head_dim: int,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.block_size = block_size
        self._index_of = {layer: index for index, layer in enumerate(layers)}
        shape = (len(layers), 2, num_blocks, block_size, num_kv_heads, head_dim)
        self._pool = _zeros(shape, dtype, device)
        # PyTorch's CPU kernels are slow on a single query in half precision: see docs/LOG.md.
        self._by_elements = device.type == "cpu" and dtype != torch.float32
        self._scratch = self._pool.new_empty(2, 0)
        self._slots_M = torch.empty(0, dtype=torch.int64)
        self._parts: list[_Decodes | _Prefill] = []

    @property
    def device(self) -> torch.device:
        """Returns where the model computes."""
        return self._pool.device

    @property
    def block_bytes(self) -> int:
        """Returns the bytes of a block's keys in one layer, or of its values."""
        return math.prod(self._pool.shape[3:]) * self._pool.itemsize

    def change(self, *, cleared: Sequence[int], copies: Mapping[int, int]) -> None:
        """Fills blocks with zeros, then gives blocks, the keys of ``copies``, the content of others."""
        if cleared:
            self._pool[:, :, list(cleared)] = 0
        if copies:
            self._pool[:, :, list(copies)] = self._pool[:, :, list(copies.values())]

    def prepare(self, spans: Sequence[Span]) -> None:
        """Prepares for a forward pass over the tokens of these spans, in their order.

        Args:
            spans: Those of one token come first, the longest texts before the shorter.
        """
        size, device = self.block_size, self._pool.device
        slots = [
            span.blocks[at // size] * size + at % size for span in spans for at in range(span.start, span.end)
        ]
        self._slots_M = torch.tensor(slots, device=device)
        num_decodes = sum(span.num_tokens == 1 for span in spans)
        self._parts = [self._group(spans, rows) for rows in self._groups(spans[:num_decodes])]
        row = num_decodes
        for span in spans[num_decodes:]:
            assert span.num_tokens > 1, "spans of one token come first"
            table = torch.tensor(span.blocks, device=device) if span.start else None
            self._parts.append(_Prefill(slice(row, row + span.num_tokens), table, span.end))
            row += span.num_tokens

    def prepare_decodes(self, slots_R: Tensor, table: Tensor, lengths_R: Tensor) -> None:
        """Prepares for a forward pass over one token each of texts, by tensors that a graph reads.

        Args:
            slots_R: Where keys and values go: block times ``block_size``, and the place in the block.
            table: Blocks of the first text, then as many of the next.
            lengths_R: Tokens of each text that are cached after this.
        """
        num_keys = len(table) // len(slots_R) * self.block_size
        self._slots_M = slots_R
        self._parts = [_Decodes(slice(0, len(slots_R)), table, self._bias(lengths_R.unsqueeze(1), num_keys))]

    def attend(self, layer: int, q_BNTH: Tensor, k_BKTH: Tensor, v_BKTH: Tensor) -> Tensor:
        """Stores a layer's new keys and values; returns attention to each text's own so far [1, N, M, H].

        Behind the new tokens there may be padding, which gets zeros.
        """
        keys, values = self._pool[self._index_of[layer]]
        num_tokens = len(self._slots_M)  # what stands behind them is padding
        keys.flatten(0, 1).index_copy_(0, self._slots_M, k_BKTH[0].transpose(0, 1)[:num_tokens])
        values.flatten(0, 1).index_copy_(0, self._slots_M, v_BKTH[0].transpose(0, 1)[:num_tokens])
        y_MNH = q_BNTH.new_empty(q_BNTH.shape[2], q_BNTH.shape[1], q_BNTH.shape[3])
        y_MNH[num_tokens:] = 0
        for part in self._parts:
            q_1NTH = q_BNTH[:, :, part.rows]
            if isinstance(part, _Decodes):
                y_MNH[part.rows] = self._decode(q_1NTH[0].transpose(0, 1), keys, values, part)
                continue
            k_1KSH, v_1KSH = k_BKTH[:, :, part.rows], v_BKTH[:, :, part.rows]
            if part.table is not None:
                k_1KSH, v_1KSH = (
                    pool.index_select(0, part.table).flatten(0, 1)[: part.end].transpose(0, 1).unsqueeze(0)
                    for pool in (keys, values)
                )
            y_MNH[part.rows] = CausalMask().attend(q_1NTH, k_1KSH, v_1KSH, dropout=0.0)[0].transpose(0, 1)
        return y_MNH.transpose(0, 1).unsqueeze(0)

    def _decode(self, q_RNH: Tensor, keys: Tensor, values: Tensor, group: _Decodes) -> Tensor:
        """Attends from a single query each; returns [R, N, H]."""
        num_texts, num_keys = group.bias_R1S.shape[0], group.bias_R1S.shape[2]
        k_RSKH, v_RSKH = (
            gathered.view(num_texts, num_keys, *keys.shape[2:])
            for gathered in self._gather(keys, values, group.table)
        )
        q_RKGH = q_RNH.unflatten(1, (keys.shape[2], -1))
        if not self._by_elements:
            y_RKGH = scaled_dot_product_attention(
                q_RKGH, k_RSKH.transpose(1, 2), v_RSKH.transpose(1, 2), attn_mask=group.bias_R1S.unsqueeze(1)
            )
            return y_RKGH.flatten(1, 2)
        q_RKGH = q_RKGH * q_RKGH.shape[-1] ** -0.5
        if q_RKGH.shape[2] == 1:  # in place: nothing else reads what was gathered
            scores_RSK = k_RSKH.mul_(q_RKGH.transpose(1, 2)).sum(-1, dtype=torch.float32)
            weights_RSK = (scores_RSK + group.bias_R1S.transpose(1, 2)).softmax(1).to(q_RNH.dtype)
            return v_RSKH.mul_(weights_RSK.unsqueeze(-1)).sum(1)
        scores_RSKG = (k_RSKH.unsqueeze(3) * q_RKGH.unsqueeze(1)).sum(-1, dtype=torch.float32)
        bias_RS11 = group.bias_R1S.transpose(1, 2).unsqueeze(3)
        weights_RSKG = (scores_RSKG + bias_RS11).softmax(1).to(q_RNH.dtype)
        y_RKGH = (v_RSKH.unsqueeze(3) * weights_RSKG.unsqueeze(-1)).sum(1)
        return y_RKGH.flatten(1, 2)  # type: ignore[no-any-return]

    def _gather(self, keys: Tensor, values: Tensor, table: Tensor) -> Iterable[Tensor]:
        """Returns blocks of keys and of values; on a CPU in memory that is used again and again."""
        if self.device.type != "cpu":
            return (pool.index_select(0, table) for pool in (keys, values))
        wanted = len(table) * math.prod(keys.shape[1:])
        if self._scratch.shape[1] < wanted:
            self._scratch = self._pool.new_empty(2, wanted)
        return (
            torch.index_select(pool.flatten(1), 0, table, out=buffer[:wanted].view(len(table), -1))
            for pool, buffer in zip((keys, values), self._scratch, strict=True)
        )

    def _groups(self, spans: Sequence[Span]) -> list[slice]:
        """Cuts texts of falling lengths where padding or the gathered keys would be too much."""
        of_token = self._pool.shape[-1] * self._pool.shape[-2]
        most_blocks = (
            _KEYS_AT_ONCE // (of_token * self.block_size) if self._pool.device.type == "cpu" else 1 << 62
        )
        groups: list[slice] = []
        for row, span in enumerate(spans):
            begin = groups[-1].start if groups else 0
            longest = self._num_blocks(spans[begin])
            full = (row + 1 - begin) * longest > most_blocks or longest > _PADDING * self._num_blocks(
                span
            ) + 1
            if not groups or full:
                groups.append(slice(row, row + 1))
            else:
                groups[-1] = slice(begin, row + 1)
        return groups

    def _group(self, spans: Sequence[Span], rows: slice) -> _Decodes:
        device, members = self._pool.device, spans[rows]
        num_blocks = self._num_blocks(members[0])
        # Where a text has no more blocks, its own first is read: its numbers are finite if the text's are.
        table = [
            block
            for span in members
            for block in (*span.blocks[:num_blocks], *(span.blocks[:1] * (num_blocks - len(span.blocks))))
        ]
        lengths_R1 = torch.tensor([span.end for span in members], device=device).unsqueeze(1)
        bias_R1S = self._bias(lengths_R1, num_blocks * self.block_size)
        return _Decodes(rows, torch.tensor(table, device=device), bias_R1S)

    def _bias(self, lengths_R1: Tensor, num_keys: int) -> Tensor:
        """Returns [R, 1, S]: -inf where a text has no keys."""
        hidden_RS = torch.arange(num_keys, device=self.device) >= lengths_R1
        dtype = torch.float32 if self._by_elements else self._pool.dtype
        bias_RS = torch.zeros(hidden_RS.shape, dtype=dtype, device=self.device)
        return bias_RS.masked_fill_(hidden_RS, -torch.inf).unsqueeze(1)

    def _num_blocks(self, span: Span) -> int:
        return -(-span.end // self.block_size)
