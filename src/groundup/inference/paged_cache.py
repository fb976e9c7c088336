"""Keys and values in blocks, and attention to them.

The new tokens of all texts stand one behind the other in a single row. Those that decode come first and
attend together, the texts of about one length at a time; each prefilled chunk attends by itself.

Shapes: M new tokens of all texts, R texts of a group, T keys, C blocks, N heads, K kv heads, H head dim.
"""

import contextlib
import dataclasses
import math
import mmap
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from groundup.inference.decode_attention import BagAttention, GatheredAttention
from groundup.inference.layer_blocks import LayerBlocks
from groundup.inference.prompt_attention import PromptAttention, prompts_at_once
from groundup.models.masks import CausalMask

_KEYS_AT_ONCE = 1 << 20
"""Elements of keys that a group of decoding texts reads on a CPU, so that its indices stay in the caches."""

_PADDING = 8
"""Blocks that may fill up the shorter texts of a group: so many, or one for so many of the texts' own."""


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
    """A group of texts with one new token each."""

    rows: slice
    attention: GatheredAttention | BagAttention


@dataclasses.dataclass(frozen=True)
class _Prompts:
    """The first chunks of several texts."""

    rows: slice
    attention: PromptAttention


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
        self._pool = _zeros((len(layers), 2, num_blocks, block_size * num_kv_heads * head_dim), dtype, device)
        self._layers = {
            layer: LayerBlocks(keys, values, block_size=block_size, num_kv_heads=num_kv_heads)
            for layer, (keys, values) in zip(layers, self._pool, strict=True)
        }
        self._attention = BagAttention if device.type == "cpu" else GatheredAttention
        self._places: tuple[Tensor, ...] = ()  # block, and where in it, of each new token
        self._parts: list[_Decodes | _Prompts | _Prefill] = []

    @property
    def device(self) -> torch.device:
        """Returns where the model computes."""
        return self._pool.device

    @property
    def block_bytes(self) -> int:
        """Returns the bytes of a block's keys in one layer, or of its values."""
        return self._pool.shape[-1] * self._pool.itemsize

    def change(self, *, cleared: Sequence[int], copies: Mapping[int, int]) -> None:
        """Fills blocks with zeros, then gives blocks, the keys of ``copies``, the content of others."""
        if cleared:
            self._pool[:, :, list(cleared)] = 0
        if copies:
            self._pool[:, :, list(copies)] = self._pool[:, :, list(copies.values())]

    def prepare(self, spans: Sequence[Span]) -> None:
        """Prepares for a forward pass over the tokens of these spans, in their order.

        Args:
            spans: Those of one token come first, the longest texts before the shorter; then those that
                continue texts, and then first chunks.
        """
        size, device = self.block_size, self._pool.device
        places = [at for span in spans for at in range(span.start, span.end)]
        blocks = [span.blocks[at // size] for span in spans for at in range(span.start, span.end)]
        self._places = tuple(torch.tensor([blocks, [at % size for at in places]], device=device))
        num_decodes = sum(span.num_tokens == 1 for span in spans)
        self._parts = [self._group(spans, rows) for rows in self._groups(spans[:num_decodes])]
        row, chunks, together = num_decodes, spans[num_decodes:], list[Span]()
        if device.type != "cpu":
            num_first = sum(not span.start for span in chunks)
            chunks, together = chunks[: len(chunks) - num_first], list(chunks[len(chunks) - num_first :])
        for span in chunks:
            assert span.num_tokens > 1, "spans of one token come first"
            table = torch.tensor(span.blocks, device=device) if span.start else None
            self._parts.append(_Prefill(slice(row, row + span.num_tokens), table, span.end))
            row += span.num_tokens
        for lengths in prompts_at_once([span.num_tokens for span in together]):
            rows = slice(row, row + sum(lengths))
            self._parts.append(_Prompts(rows, PromptAttention(lengths, device)))
            row = rows.stop

    def prepare_decodes(
        self, blocks_R: Tensor, places_R: Tensor, table_RC: Tensor, lengths_R1: Tensor
    ) -> None:
        """Prepares for a forward pass over one token each of texts, by tensors that a graph reads.

        Args:
            blocks_R: Block that the keys and values of each go to.
            places_R: Where in the block.
            table_RC: Blocks of each text, filled up with any whose numbers are finite if the text's are.
            lengths_R1: Tokens of each text that are cached after this.
        """
        self._places = (blocks_R, places_R)
        self._parts = [_Decodes(slice(0, len(blocks_R)), self._attention_to(table_RC, lengths_R1))]

    def attend(self, layer: int, q_BNTH: Tensor, k_BKTH: Tensor, v_BKTH: Tensor) -> Tensor:
        """Stores a layer's new keys and values; returns attention to each text's own so far [1, N, M, H].

        Behind the new tokens there may be padding, which gets zeros.
        """
        num_tokens = len(self._places[0])  # what stands behind them is padding
        q_MNH, k_MKH, v_MKH = (x[0].transpose(0, 1)[:num_tokens] for x in (q_BNTH, k_BKTH, v_BKTH))
        y_MNH = self.attend_tokens(layer, q_MNH, k_MKH, v_MKH)
        if padding := q_BNTH.shape[2] - num_tokens:
            y_MNH = torch.cat((y_MNH, y_MNH.new_zeros(padding, *y_MNH.shape[1:])))
        return y_MNH.transpose(0, 1).unsqueeze(0)

    def attend_tokens(self, layer: int, q_MNH: Tensor, k_MKH: Tensor, v_MKH: Tensor) -> Tensor:
        """Stores a layer's new keys and values; returns attention to each text's own so far [M, N, H]."""
        blocks = self._layers[layer]
        blocks.store(self._places, k_MKH, v_MKH)
        found: list[Tensor] = []  # in the order of the tokens
        for part in self._parts:
            if isinstance(part, _Decodes):
                found.append(part.attention.attend(q_MNH[part.rows], blocks))
                continue
            q_1NTH, k_1KTH, v_1KTH = (
                x_MNH[part.rows].transpose(0, 1).unsqueeze(0) for x_MNH in (q_MNH, k_MKH, v_MKH)
            )
            if isinstance(part, _Prompts):
                found.append(part.attention.attend(q_1NTH, k_1KTH, v_1KTH))
                continue
            if part.table is not None:
                k_1KTH, v_1KTH = blocks.of_text(part.table, part.end)
            elif part.end % 2:  # products of odd sizes take up to twice as long in bf16
                q_1NTH, k_1KTH, v_1KTH = (pad(x_1NTH, (0, 0, 0, 1)) for x_1NTH in (q_1NTH, k_1KTH, v_1KTH))
            y_1NTH = CausalMask().attend(q_1NTH, k_1KTH, v_1KTH, dropout=0.0)
            found.append(y_1NTH[0].transpose(0, 1)[: part.rows.stop - part.rows.start])
        return found[0] if len(found) == 1 else torch.cat(found)

    def _groups(self, spans: Sequence[Span]) -> list[slice]:
        """Cuts texts of falling lengths where padding or the gathered keys would be too much."""
        most_blocks = _KEYS_AT_ONCE // self._pool.shape[-1] if self._pool.device.type == "cpu" else 1 << 62
        groups: list[slice] = []
        longest = own = 0
        for row, span in enumerate(spans):
            begin = groups[-1].start if groups else 0
            own += self._num_blocks(span)
            filled = (row + 1 - begin) * longest
            if groups and filled <= min(most_blocks, own + max(_PADDING, own // _PADDING)):
                groups[-1] = slice(begin, row + 1)
            else:
                groups.append(slice(row, row + 1))
                longest = own = self._num_blocks(span)
        return groups

    def _group(self, spans: Sequence[Span], rows: slice) -> _Decodes:
        device, members = self._pool.device, spans[rows]
        num_blocks = self._num_blocks(members[0])
        # Where a text has no more blocks, its own first is read: its numbers are finite if the text's are.
        table_RC = torch.tensor(
            [
                span.blocks[:num_blocks] + span.blocks[:1] * (num_blocks - len(span.blocks))
                for span in members
            ],
            device=device,
        )
        lengths_R1 = torch.tensor([[span.end] for span in members], device=device)
        return _Decodes(rows, self._attention_to(table_RC, lengths_R1))

    def _attention_to(self, table_RC: Tensor, lengths_R1: Tensor) -> GatheredAttention | BagAttention:
        hidden_RT = torch.arange(table_RC.shape[1] * self.block_size, device=self.device) >= lengths_R1
        bias_RT = torch.zeros_like(hidden_RT, dtype=self._pool.dtype).masked_fill_(hidden_RT, -torch.inf)
        return self._attention(table_RC, bias_RT.unsqueeze(1))

    def _num_blocks(self, span: Span) -> int:
        return -(-span.end // self.block_size)
