"""Token files as other projects write them, made by hand."""

import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np

GPT2 = (20240520, 1, "<u2")
LLAMA3 = (20240801, 7, "<u4")


def write_llmc(path: Path, tokens: Sequence[int], kind: tuple[int, int, str] = GPT2) -> Path:
    """As ``write_datafile`` of llm.c."""
    magic, version, dtype = kind
    header = struct.pack("<3i", magic, version, len(tokens)).ljust(256 * 4, b"\0")
    path.write_bytes(header + np.array(tokens, dtype=dtype).tobytes())
    return path


def write_npy(path: Path, tokens: Sequence[int], dtype: str = "<u2") -> Path:
    """As ``write_datafile`` of build-nanogpt."""
    np.save(path, np.array(tokens, dtype=dtype))
    return path


def index_bytes(sequences: Sequence[Sequence[int]], ends: Sequence[int], *, code: int, size: int) -> bytes:
    """An ``.idx`` of Megatron-LM: lengths, byte offsets, sequences before each document."""
    lengths = [len(sequence) for sequence in sequences]
    offsets = [size * sum(lengths[:number]) for number in range(len(lengths))]
    return (
        b"MMIDIDX\x00\x00"
        + struct.pack("<QBQQ", 1, code, len(lengths), len(ends))
        + struct.pack(f"<{len(lengths)}i", *lengths)
        + struct.pack(f"<{len(offsets)}q", *offsets)
        + struct.pack(f"<{len(ends)}q", *ends)
    )


def write_indexed(prefix: Path, documents: Sequence[Sequence[Sequence[int]]], *, int32: bool = False) -> Path:
    """A ``.bin``/``.idx`` of documents of any number of sequences each."""
    sequences = [sequence for document in documents for sequence in document]
    ends = np.cumsum([0, *(len(document) for document in documents)]).tolist()
    code, size, kind = (4, 4, "<i4") if int32 else (8, 2, "<u2")
    tokens = [token for sequence in sequences for token in sequence]
    prefix.with_name(prefix.name + ".bin").write_bytes(np.array(tokens, dtype=kind).tobytes())
    prefix.with_name(prefix.name + ".idx").write_bytes(index_bytes(sequences, ends, code=code, size=size))
    return prefix
