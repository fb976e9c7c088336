import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from groundup.core.errors import DataError
from groundup.tokens.dataset.check import check_ids, check_index
from groundup.tokens.dataset.indexed import IndexedDataset, bin_path, idx_path, token_dtype
from groundup.tokens.dataset.indexed_writer import IndexedWriter


def _write(prefix: Path, documents: list[list[int]], vocab_size: int = 300) -> None:
    with IndexedWriter(prefix, vocab_size=vocab_size) as writer:
        for document in documents:
            writer.add(np.array(document, dtype=np.int64), np.array([len(document)]))


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    _write(tmp_path / "data", [[1, 2, 3], [4], [5, 299]])
    return tmp_path / "data"


def _patch(path: Path, offset: int, content: bytes) -> None:
    whole = bytearray(path.read_bytes())
    whole[offset : offset + len(content)] = content
    path.write_bytes(whole)


def test_layout_is_megatrons(prefix: Path) -> None:
    assert idx_path(prefix).read_bytes() == (
        b"MMIDIDX\x00\x00"
        + struct.pack("<QBQQ", 1, 8, 3, 4)
        + struct.pack("<3i", 3, 1, 2)
        + struct.pack("<3q", 0, 6, 8)
        + struct.pack("<4q", 0, 1, 2, 3)
    )
    assert bin_path(prefix).read_bytes() == struct.pack("<6H", 1, 2, 3, 4, 5, 299)
    assert sorted(path.name for path in prefix.parent.iterdir()) == ["data.bin", "data.idx"]


@given(
    documents=st.lists(st.lists(st.integers(0, 65_000), max_size=9), max_size=9),
    large=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_what_is_written_reads_back(
    tmp_path_factory: pytest.TempPathFactory, documents: list[list[int]], large: bool
) -> None:
    prefix = tmp_path_factory.mktemp("indexed") / "data.v1"
    _write(prefix, documents, 70_000 if large else 65_001)
    data = IndexedDataset(prefix.with_name("data.v1.bin"))
    check_index(data)
    assert data.dtype == (np.int32 if large else np.uint16)
    assert [data.sequence(k).tolist() for k in range(data.num_sequences)] == documents
    assert data.tokens.tolist() == [token for document in documents for token in document]
    assert [data.token_begin(k) for k in range(len(documents) + 1)] == [
        sum(map(len, documents[:k])) for k in range(len(documents) + 1)
    ]


def test_equals_megatrons_files(megatron: Path, tmp_path: Path) -> None:
    theirs = IndexedDataset(megatron / "indexed" / "wt2_200_text_document")
    assert (theirs.num_documents, theirs.num_tokens, theirs.dtype) == (200, 36449, np.uint16)
    check_index(theirs)
    check_ids(theirs, 50257)
    with IndexedWriter(tmp_path / "ours", vocab_size=50257) as writer:
        writer.add(theirs.tokens[: theirs.token_begin(7)], theirs.lengths[:7])
        writer.add(theirs.tokens[theirs.token_begin(7) :], theirs.lengths[7:])
    assert bin_path(tmp_path / "ours").read_bytes() == bin_path(theirs.prefix).read_bytes()
    assert idx_path(tmp_path / "ours").read_bytes() == idx_path(theirs.prefix).read_bytes()


def test_dtype_is_megatrons_choice(tmp_path: Path) -> None:
    assert [str(token_dtype(size)) for size in (50257, 65499, 65500)] == ["uint16", "uint16", "int32"]
    with pytest.raises(DataError, match="65,537 ids do not fit uint16"):
        IndexedWriter(tmp_path / "data", vocab_size=65537, dtype=np.uint16)
    with pytest.raises(DataError, match="do not fit float32"):
        IndexedWriter(tmp_path / "data", vocab_size=10, dtype=np.float32)


def test_a_failed_write_leaves_what_was_there(prefix: Path) -> None:
    before = idx_path(prefix).read_bytes(), bin_path(prefix).read_bytes()

    def fail() -> None:
        with IndexedWriter(prefix, vocab_size=300) as writer:
            writer.add(np.array([7]), np.array([1]))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert (idx_path(prefix).read_bytes(), bin_path(prefix).read_bytes()) == before
    assert len(list(prefix.parent.iterdir())) == 2


@pytest.mark.parametrize(
    ("offset", "content", "message"),
    [
        (0, b"TNTIDX\x00\x00", "older TNTIDX"),
        (0, b"notanidx", "not an index"),
        (9, struct.pack("<Q", 2), "version 2, expected 1"),
        (17, b"\x06", "floating-point"),
        (17, b"\x07", "floating-point"),
        (17, b"\x09", "dtype code 9"),
        (17, b"\x04", "holds 12 bytes, its index data.idx says 16"),
        (18, struct.pack("<Q", 4), "its header says"),
        (34 + 12 + 24, struct.pack("<q", 1), "do not cover"),
    ],
)
def test_refuses_a_wrong_index(prefix: Path, offset: int, content: bytes, message: str) -> None:
    _patch(idx_path(prefix), offset, content)
    with pytest.raises(DataError, match=message):
        IndexedDataset(prefix)


def test_refuses_files_that_do_not_match(prefix: Path) -> None:
    whole = bin_path(prefix).read_bytes()
    for content in (whole[:-2], whole + b"\x00"):
        bin_path(prefix).write_bytes(content)
        with pytest.raises(DataError, match=rf"holds {len(content)} bytes, its index data.idx says 12"):
            IndexedDataset(prefix)
    bin_path(prefix).unlink()
    with pytest.raises(DataError, match=r"data\.bin: no such file"):
        IndexedDataset(prefix)


@pytest.mark.parametrize("size", [5, 20, 60])
def test_refuses_a_truncated_index(prefix: Path, size: int) -> None:
    idx_path(prefix).write_bytes(idx_path(prefix).read_bytes()[:size])
    with pytest.raises(DataError):
        IndexedDataset(prefix)


def test_refuses_half_a_token(prefix: Path) -> None:
    _patch(idx_path(prefix), 34 + 12 + 16, struct.pack("<q", 9))  # 9 + 2 * 2 bytes
    bin_path(prefix).write_bytes(bytes(13))
    with pytest.raises(DataError, match="13 bytes, no whole number of uint16 tokens"):
        IndexedDataset(prefix)


def test_another_process_maps_the_files_itself(tmp_path: Path) -> None:
    _write(tmp_path / "data", [list(range(250)) * 40])
    data = IndexedDataset(tmp_path / "data")
    again = pickle.loads(pickle.dumps(data))
    assert again.tokens.tolist() == data.tokens.tolist()
    assert len(pickle.dumps(data)) < 1000


def test_refuses_a_multimodal_index(prefix: Path) -> None:
    idx_path(prefix).write_bytes(idx_path(prefix).read_bytes() + b"\x00\x00\x00")
    with pytest.raises(DataError, match="multimodal"):
        IndexedDataset(prefix)


def test_check_names_the_offender(prefix: Path) -> None:
    data = IndexedDataset(prefix)
    check_ids(data, 300)
    with pytest.raises(DataError, match=r"token 299 at position 1 of document 2 is outside .* 299 ids"):
        check_ids(data, 299)
    _patch(idx_path(prefix), 34 + 12 + 8, struct.pack("<q", 4))
    with pytest.raises(DataError, match=r"sequence 1 has offset 4 .* expected offset 6"):
        check_index(IndexedDataset(prefix))


def test_reads_documents_of_no_or_several_sequences(tmp_path: Path) -> None:
    # Newer Megatron-LM keeps an empty document as one without sequences; sentence splitting makes several.
    (tmp_path / "data.bin").write_bytes(struct.pack("<3H", 1, 2, 3))
    (tmp_path / "data.idx").write_bytes(
        b"MMIDIDX\x00\x00"
        + struct.pack("<QBQQ", 1, 8, 2, 4)
        + struct.pack("<2i", 1, 2)
        + struct.pack("<2q", 0, 2)
        + struct.pack("<4q", 0, 0, 2, 2)
    )
    data = IndexedDataset(tmp_path / "data")
    check_index(data)
    check_ids(data, 4)
    assert (data.num_recorded_documents, data.num_documents, data.num_sequences) == (3, 2, 2)
