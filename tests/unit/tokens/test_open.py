import itertools
import os
import pickle
import shutil
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from groundup.core.errors import ConfigError, DataError
from groundup.tokens.dataset.dataset_manifest import describe_dataset, manifest_path
from groundup.tokens.dataset.flat import FlatShards
from groundup.tokens.dataset.indexed import IndexedDataset
from groundup.tokens.dataset.indexed_shards import IndexedShards
from groundup.tokens.dataset.open import open_shards, open_source, shards_by_split
from tests.unit.tokens.token_files import GPT2, LLAMA3, write_indexed, write_llmc, write_npy

END = 9


def _documents(source):
    return [
        source.tokens[source.token_begin(k) : source.token_begin(k + 1)].tolist()
        for k in range(source.num_documents)
    ]


def _agrees_with_itself(source):
    """Lengths, positions and slices of a source say the same as its documents."""
    documents = _documents(source)
    stream = [token for document in documents for token in document]
    total = len(stream)
    assert len(source.tokens) == total
    assert source.tokens[:].tolist() == stream
    middle = source.num_documents // 2
    assert source.document_lengths(0, source.num_documents).tolist() == list(map(len, documents))
    assert source.document_lengths(middle, source.num_documents).tolist() == list(
        map(len, documents[middle:])
    )
    owners = [number for number, document in enumerate(documents) for _ in document]
    assert source.documents_at(np.arange(total).reshape(1, -1)).tolist() == [owners]
    if total:
        assert int(source.documents_at(total - 1)) == owners[-1]
    for begin in range(0, total, 3):
        assert source.tokens[begin : begin + 4].tolist() == stream[begin : begin + 4]
    again = pickle.loads(pickle.dumps(source))
    assert again.fingerprint == source.fingerprint
    assert _documents(again) == documents


@given(
    texts=st.lists(st.lists(st.integers(0, 8), max_size=7), min_size=1, max_size=12),
    cuts=st.lists(st.integers(0, 90), max_size=5),
    kind=st.sampled_from(["npy", "gpt2", "llama3"]),
    begins_within=st.booleans(),
)
@settings(max_examples=60)
def test_documents_are_found_over_shards(tmp_path_factory, texts, cuts, kind, begins_within):
    folder = tmp_path_factory.mktemp("shards")
    documents = [[END, *text] for text in texts]
    if begins_within and texts[0]:
        documents[0] = texts[0]  # its beginning is in a shard that is not here
    stream = [token for document in documents for token in document]
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    for number, (begin, end) in enumerate(itertools.pairwise(edges)):
        if kind == "npy":
            write_npy(folder / f"edufineweb_train_{number:06d}.npy", stream[begin:end])
        else:
            path = folder / f"fineweb_train_{number:06d}.bin"
            write_llmc(path, stream[begin:end], GPT2 if kind == "gpt2" else LLAMA3)
    source = open_source(folder, end_of_document_id=END)
    assert isinstance(source, FlatShards)
    assert source.dtype == (np.uint32 if kind == "llama3" else np.uint16)
    assert _documents(source) == documents
    _agrees_with_itself(source)


@given(
    parts=st.lists(
        st.lists(st.lists(st.lists(st.integers(0, 8), max_size=4), max_size=3), max_size=4),
        min_size=2,
        max_size=5,
    )
)
@settings(max_examples=60)
def test_parts_are_one_source(tmp_path_factory, parts):
    folder = tmp_path_factory.mktemp("parts")
    for number, documents in enumerate(parts):
        write_indexed(folder / f"part_{number}", documents)
    source = open_source(folder)
    assert isinstance(source, IndexedShards)
    assert _documents(source) == [sequence for part in parts for document in part for sequence in document]
    _agrees_with_itself(source)
    for number in range(len(parts)):
        _agrees_with_itself(open_source(folder / f"part_{number}"))


def test_many_sequences_are_found_without_copying_the_index(tmp_path):
    lengths = np.random.default_rng(1).integers(0, 3, 10_000).tolist()
    write_indexed(tmp_path / "many", [[[1] * length] for length in lengths])
    data = IndexedDataset(tmp_path / "many")
    owners = np.repeat(np.arange(len(lengths)), lengths)
    assert (data.documents_at(np.arange(data.num_tokens)) == owners).all()


def test_a_slice_within_one_shard_is_a_view(tmp_path):
    write_npy(tmp_path / "a_0.npy", [1, 2, 3, 4])
    write_npy(tmp_path / "a_1.npy", [5, 6])
    tokens = open_source(tmp_path).tokens
    assert np.shares_memory(tokens[0:3], tokens[2:4])
    assert not np.shares_memory(tokens[0:5], tokens[0:3])
    assert not tokens[4:6].flags.writeable
    assert tokens[5:2].tolist() == []
    with pytest.raises(ValueError, match="steps"):
        tokens[::2]


@pytest.mark.skipif(sys.platform != "linux", reason="counts open files in /proc")
def test_few_of_many_parts_are_open(tmp_path):
    for number in range(150):
        write_indexed(tmp_path / f"part_{number:03d}", [[[number, 1]]])
        write_npy(tmp_path / f"shard_{number:03d}.npy", [END, number])
    before = len(list(Path("/proc/self/fd").iterdir()))
    parts, shards = (open_source(tmp_path / glob) for glob in ("part_*.idx", "*.npy"))
    assert [parts.tokens[k : k + 2].tolist() for k in range(0, 300, 2)] == [[k, 1] for k in range(150)]
    assert [shards.tokens[k : k + 2].tolist() for k in range(0, 300, 2)] == [[END, k] for k in range(150)]
    assert len(list(Path("/proc/self/fd").iterdir())) - before <= 3 * 64 + 8


def test_documents_need_the_id_that_opens_them(tmp_path, caplog):
    path = write_llmc(tmp_path / "a.bin", [1, 2, 3])
    source = open_source(path)
    assert source.tokens[1:].tolist() == [2, 3]
    with pytest.raises(ConfigError, match=r"a\.bin: where its documents begin"):
        _ = source.num_documents
    with caplog.at_level("WARNING", logger="groundup"):
        assert open_source(path, end_of_document_id=7).num_documents == 1
    assert "id 7, which should open each document, is nowhere in it" in caplog.text


def test_the_fingerprint_is_of_the_content(tmp_path):
    (tmp_path / "here").mkdir()
    write_npy(tmp_path / "here" / "a.npy", range(5000))
    write_llmc(tmp_path / "here" / "b.bin", range(5000))
    write_indexed(tmp_path / "here" / "c", [[list(range(5000))]])
    here = [open_source(tmp_path / "here" / name).fingerprint for name in ("a.npy", "b.bin", "c")]
    shutil.copytree(tmp_path / "here", tmp_path / "there", copy_function=shutil.copyfile)
    there = [open_source(tmp_path / "there" / name).fingerprint for name in ("a.npy", "b.bin", "c")]
    assert here == there
    assert len(set(here)) == 3
    write_npy(tmp_path / "there" / "a.npy", range(1, 5001))
    write_llmc(tmp_path / "there" / "b.bin", range(4999))
    write_indexed(tmp_path / "there" / "c", [[list(range(1, 5001))]])
    changed = [open_source(tmp_path / "there" / name).fingerprint for name in ("a.npy", "b.bin", "c")]
    assert not set(here) & set(changed)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (struct.pack("<3i", 1, 1, 0), r"has no \.idx beside it, and begins with 1, .*20240520, 20240801"),
        (b"", "has no .idx beside it"),
        (struct.pack("<3i", 20240522, 1, 3).ljust(1024, b"\0"), "evaluation set of llm.c"),
        (struct.pack("<3i", 20240520, 2, 0).ljust(1024, b"\0"), "llm.c's version 2, expected 1"),
        (struct.pack("<3i", 20240801, 1, 0).ljust(1024, b"\0"), "llm.c's version 1, expected 7"),
        (struct.pack("<3i", 20240520, 1, -1).ljust(1024, b"\0"), "its header is damaged"),
        (struct.pack("<3i", 20240520, 1, 0), "its header is damaged"),
        (
            struct.pack("<3i", 20240520, 1, 3).ljust(1024, b"\0") + b"\1\0\2\0",
            r"holds 1,028 bytes, its header says 1,030 \(3 tokens of uint16\)",
        ),
    ],
)
def test_refuses_a_wrong_bin_shard(tmp_path, content, message):
    (tmp_path / "a.bin").write_bytes(content)
    with pytest.raises(DataError, match=rf"a\.bin: .*{message}"):
        open_source(tmp_path / "a.bin")


def test_refuses_a_wrong_npy_shard(tmp_path):
    path = tmp_path / "a.npy"
    for array, message in [
        (np.zeros(3), r"holds float64 of shape \(3,\)"),
        (np.zeros((2, 2), np.uint16), r"holds uint16 of shape \(2, 2\)"),
    ]:
        np.save(path, array)
        with pytest.raises(DataError, match=message):
            open_source(path)
    write_npy(path, [1, 2, 3])
    whole = path.read_bytes()
    for content, message in [
        (b"1 2 3", "is not a .npy file"),
        (whole[:40], "its header cannot be read"),
        (whole[:-1], r"holds 133 bytes, its header says 134 \(3 tokens of uint16\)"),
    ]:
        path.write_bytes(content)
        with pytest.raises(DataError, match=message):
            open_source(path)


def test_refuses_what_does_not_go_together(tmp_path, small_tokenizer):
    write_npy(tmp_path / "a.npy", [1])
    write_npy(tmp_path / "b.npy", [1], "<u4")
    with pytest.raises(DataError, match=r"b\.npy: holds uint32, a\.npy holds uint16"):
        open_source(tmp_path)
    write_llmc(tmp_path / "c.bin", [1])
    with pytest.raises(DataError, match=r"different kinds .* a\.npy is of build-nanogpt's .* c\.bin of llm"):
        open_source(tmp_path)
    (tmp_path / "parts").mkdir()
    one = write_indexed(tmp_path / "parts" / "one", [[[1]]])
    two = write_indexed(tmp_path / "parts" / "two", [[[1]]], int32=True)
    with pytest.raises(DataError, match=r"two: holds int32, .*one holds uint16"):
        open_source(tmp_path / "parts")
    write_indexed(two, [[[1]]])
    for prefix, mark in ((one, "aaa"), (two, "bbb")):
        describe_dataset(prefix, small_tokenizer, inputs={})
        manifest = manifest_path(prefix)
        manifest.write_text(manifest.read_text().replace(small_tokenizer.fingerprint, mark))
    with pytest.raises(DataError, match=r"two: was built with the tokenizer bbb, .*one with aaa"):
        open_source(tmp_path / "parts")
    with pytest.raises(DataError, match="no token files were named"):
        open_shards([])


def test_refuses_what_is_no_token_file(tmp_path):
    (tmp_path / "text.jsonl").write_text('{"text": "one"}\n')
    for path, message in [
        (tmp_path / "text.jsonl", "is not a file of tokens.*groundup tokens build"),
        (tmp_path, "holds no token files"),
        (tmp_path / "*.jsonl", "no token file .* matches"),
        (tmp_path / "absent", "no such token files"),
        (tmp_path / "absent.bin", "no such token files"),
    ]:
        with pytest.raises(DataError, match=message):
            open_source(path)
    (tmp_path / "lone.idx").write_bytes(b"")
    with pytest.raises(DataError, match=r"lone\.bin: no such file"):
        open_source(tmp_path)


def test_what_a_path_means(tmp_path, monkeypatch):
    for name in ("data-1", "data", "data.v2"):
        write_indexed(tmp_path / name, [[[1]]])
    (tmp_path / "data").mkdir()  # a folder of the same name does not hide the prefix
    for name in ("data", "data.bin", "data.idx"):
        assert open_source(tmp_path / name).prefix == tmp_path / "data"
    assert open_source(tmp_path / "data.v2").prefix == tmp_path / "data.v2"
    write_npy(tmp_path / "data_indexmap_4ns_doc_idx.npy", [1])  # early Megatron-LM's cache
    monkeypatch.chdir(tmp_path)
    # In the order of the prefixes, as Megatron-LM merges: by file names data-1.bin would be first.
    assert [prefix.name for prefix in open_source(Path()).prefixes] == ["data", "data-1", "data.v2"]
    assert open_source(Path("data-?.bin")).name == "data-1"


def test_splits_by_name(tmp_path):
    for name in ("edufineweb_val_000000", "edufineweb_train_000001", "edufineweb_train_000002"):
        write_npy(tmp_path / f"{name}.npy", [END])
    found = shards_by_split(tmp_path)
    assert {name: [path.name for path in paths] for name, paths in found.items()} == {
        "train": ["edufineweb_train_000001.npy", "edufineweb_train_000002.npy"],
        "validation": ["edufineweb_val_000000.npy"],
    }
    write_npy(tmp_path / "more.npy", [END])
    assert list(shards_by_split(tmp_path)) == ["all"]
    (tmp_path / "parts").mkdir()
    for name in ("x_train", "x_validation", "x_test"):
        write_indexed(tmp_path / "parts" / name, [[[1]]])
    assert sorted(shards_by_split(tmp_path / "parts")) == ["test", "train", "validation"]
    assert list(shards_by_split(tmp_path / "parts" / "x_test")) == ["all"]  # no train beside it
    assert list(shards_by_split(tmp_path / "parts" / "x_t*")) == ["test", "train"]


@pytest.fixture
def reads(monkeypatch, tmp_path):
    """The shards' tokens are kept track of in a cache of their own; counts how often all are read."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("groundup.tokens.dataset.flat._WORTH_KEEPING_TOKENS", 1)
    found = []
    find = FlatShards._find_begins

    def counted(self, opening):
        found.append(opening)
        return find(self, opening)

    monkeypatch.setattr(FlatShards, "_find_begins", counted)
    return found


def _shards(folder):
    folder.mkdir()
    stream = [END, *range(5), END, 1, END] * 2000
    write_npy(folder / "a.npy", stream[:9000])
    write_npy(folder / "b.npy", stream[9000:])
    return folder


def test_documents_are_found_once(reads, tmp_path):
    folder = _shards(tmp_path / "shards")
    first, second = (open_source(folder, end_of_document_id=END) for _ in range(2))
    assert first.num_documents == second.num_documents == 6000
    assert reads == [END]
    assert _documents(first) == _documents(second)
    _agrees_with_itself(second)
    assert isinstance(second._begins.base, np.memmap)
    assert open_source(folder, end_of_document_id=1).num_documents == 4001  # another id is another matter
    assert open_source(folder / "a.npy", end_of_document_id=END).num_documents == 3000
    assert reads == [END, 1, END]


def test_a_changed_shard_is_read_again(reads, tmp_path):
    folder = _shards(tmp_path / "shards")
    assert open_source(folder, end_of_document_id=END).num_documents == 6000
    tokens = np.load(folder / "a.npy")
    before = open_source(folder).fingerprint
    tokens[1500] = 0 if tokens[1500] == END else END  # between the samples that the fingerprint takes
    stat = (folder / "a.npy").stat()
    np.save(folder / "a.npy", tokens)
    assert open_source(folder).fingerprint == before
    os.utime(folder / "a.npy", ns=(stat.st_atime_ns, stat.st_mtime_ns + 1_000_000))
    assert open_source(folder, end_of_document_id=END).num_documents != 6000
    assert reads == [END, END]


def test_a_cache_that_fails_is_a_line_in_the_log(reads, tmp_path, caplog):
    folder = _shards(tmp_path / "shards")
    caplog.set_level("INFO", logger="groundup")
    (tmp_path / "cache").write_text("a file")
    for _ in range(2):
        assert open_source(folder, end_of_document_id=END).num_documents == 6000
    assert "cannot be kept" in caplog.text
    assert reads == [END, END]
    (tmp_path / "cache").unlink()
    assert open_source(folder, end_of_document_id=END).num_documents == 6000
    (kept,) = (tmp_path / "cache" / "groundup" / "documents").iterdir()
    whole = kept.read_bytes()
    for content in (b"", b"junk", whole[:-8], whole[:-8] + b"\0" * 8):
        kept.write_bytes(content)
        assert open_source(folder, end_of_document_id=END).num_documents == 6000
        assert kept.read_bytes() == whole
    assert len(reads) == 7


def test_little_is_not_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert open_source(_shards(tmp_path / "shards"), end_of_document_id=END).num_documents == 6000
    assert not (tmp_path / "cache").exists()
