import dataclasses
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from groundup.core.concatenate import append_range
from groundup.core.errors import ConfigError, DataError
from groundup.core.manifest import Manifest
from groundup.tokens.files import divide, indexed_writer
from groundup.tokens.files.check import check_index
from groundup.tokens.files.divide import divide_tokens
from groundup.tokens.files.division import Division
from groundup.tokens.files.indexed import IndexedDataset, bin_path, idx_path
from groundup.tokens.files.manifests import manifest_path, tokenizer_of
from groundup.tokens.files.merge import merge_tokens
from groundup.tokens.files.origins import Origins, OriginsWriter, origins_path
from groundup.tokens.files.provenance import write_manifest
from groundup.tokens.samples.plan import split_ranges
from tests.unit.tokens.token_files import GPT2, LLAMA3, index_bytes, write_indexed, write_llmc, write_npy

END = 9

DOCUMENTS = st.lists(st.lists(st.lists(st.integers(0, 8), max_size=5), max_size=3), max_size=8)


def _bytes(prefix):
    return bin_path(prefix).read_bytes(), idx_path(prefix).read_bytes()


def _described(prefix, documents, tokenizer, *, text_bytes):
    """A dataset of one sequence a document, with manifest and origins as a build leaves them."""
    write_indexed(prefix, [[document] for document in documents])
    counts = {
        "documents": len(documents),
        "tokens": sum(map(len, documents)),
        "text_bytes": text_bytes,
        "bad_records": {"bad": 1, "by_reason": {prefix.name: 1}, "offenders": [f"{prefix.name}:3"]},
    }
    about = {"key": "text", "append_end_of_document": True}
    write_manifest(prefix, tokenizer, inputs={"sources": prefix.name}, counts=counts, about=about)
    with OriginsWriter(origins_path(prefix)) as origins:
        lines = np.arange(1, len(documents) + 1)
        urls = [f"https://{prefix.name}/{line}".encode() if line % 2 else b"" for line in lines]
        origins.add(f"{prefix.name}.jsonl", lines, np.array(list(map(len, urls))), b"".join(urls))
    return prefix


def _origins(prefix):
    origins = Origins(prefix)
    return [(found.source, found.line, found.url) for found in map(origins.origin, range(len(origins)))]


@given(parts=st.lists(DOCUMENTS, min_size=1, max_size=4), int32=st.booleans())
@settings(max_examples=60)
def test_merges_as_megatron_does(tmp_path_factory, parts, int32):
    # Documents of no sequences are what newer Megatron-LM makes of empty ones; the older leaves them out.
    folder = tmp_path_factory.mktemp("merge")
    prefixes = [
        write_indexed(folder / f"part_{number}", documents, int32=int32)
        for number, documents in enumerate(parts)
    ]
    merge_tokens(prefixes, folder / "out", tokenizer=None)
    sequences, ends = [], [0]
    for documents in parts:
        before = len(sequences)
        sequences += [sequence for document in documents for sequence in document]
        ends += (before + np.cumsum([len(document) for document in documents], dtype=int)).tolist()
    code, size = (4, 4) if int32 else (8, 2)
    assert idx_path(folder / "out").read_bytes() == index_bytes(sequences, ends, code=code, size=size)
    assert bin_path(folder / "out").read_bytes() == b"".join(bin_path(p).read_bytes() for p in prefixes)
    assert sorted(path.name for path in folder.iterdir() if "out" in path.name) == ["out.bin", "out.idx"]


@given(
    documents=DOCUMENTS.filter(bool),
    way=st.sampled_from(["parts", "documents", "tokens"]),
    number=st.integers(1, 9),
)
@settings(max_examples=100)
def test_merging_what_was_split_gives_the_same_bytes(tmp_path_factory, documents, way, number):
    folder = tmp_path_factory.mktemp("divide")
    whole = write_indexed(folder / "whole", documents)
    if way == "parts":
        number = min(number, len(documents))
    parts = divide_tokens(whole, folder / "parts" / "x", Division(**{way: number}))
    for part in parts:
        check_index(IndexedDataset(part.prefix))
    if way == "parts":
        assert len(parts) == number
    elif way == "documents":
        assert [part.num_documents for part in parts[:-1]] == [number] * (len(parts) - 1)
    else:
        assert all(part.num_tokens >= number for part in parts[:-1])
        longest = max(sum(map(len, document)) for document in documents)
        assert all(part.num_tokens < number + longest for part in parts if part.num_tokens)
    assert all(part.num_documents for part in parts)
    merge_tokens([folder / "parts"], folder / "again")
    assert _bytes(folder / "again") == _bytes(whole)


def test_splits_of_real_data_are_those_of_training(megatron, tmp_path):
    whole = megatron / "indexed" / "wt2_200_text_document"
    data = IndexedDataset(whole)
    parts = divide_tokens(whole, tmp_path / "wt2", Division(split="969,30,1"))
    names = [part.prefix.name for part in parts]
    assert names == ["wt2_train", "wt2_validation"]  # one document in 1000 of 200 is none
    for part, (begin, end) in zip(parts, split_ranges("969,30,1", 200).values(), strict=False):
        expected = data.tokens[data.token_begin(begin) : data.token_begin(end)]
        assert IndexedDataset(part.prefix).tokens.tobytes() == expected.tobytes()
    merge_tokens([part.prefix for part in parts], tmp_path / "again")
    assert _bytes(tmp_path / "again") == _bytes(whole)
    parts = divide_tokens(whole, tmp_path / "seven", Division(parts=7))
    sizes = [part.num_tokens for part in parts]
    assert max(sizes) - min(sizes) <= 2 * data.lengths.max()


def test_manifests_and_origins_go_along(tmp_path, small_tokenizer):
    one = _described(tmp_path / "one", [[1, 2], [3], [4, 5]], small_tokenizer, text_bytes=10)
    two = _described(tmp_path / "two", [[6], [7, 8]], small_tokenizer, text_bytes=5)
    merge_tokens([two, one], tmp_path / "out" / "all")
    both = tmp_path / "out" / "all"
    merge_tokens([two, two], tmp_path / "out" / "twice")
    assert list(Manifest.read(manifest_path(tmp_path / "out" / "twice"), "tokens").inputs) == [
        "two",
        "two (1)",
    ]
    manifest = Manifest.read(manifest_path(both), "tokens")
    assert manifest.counts == {
        "documents": 5,
        "tokens": 8,
        "text_bytes": 15,
        "bad_records": {"bad": 2, "by_reason": {"two": 1, "one": 1}, "offenders": ["two:3", "one:3"]},
    }
    assert list(manifest.inputs) == ["two", "one"]
    assert (manifest.about["key"], manifest.about["append_end_of_document"]) == ("text", True)
    assert tokenizer_of(both).fingerprint == small_tokenizer.fingerprint
    assert _origins(both) == _origins(two) + _origins(one)

    parts = divide_tokens(both, tmp_path / "parts" / "p", Division(documents=2))
    assert [origin for part in parts for origin in _origins(part.prefix)] == _origins(both)
    assert [Manifest.read(manifest_path(part.prefix), "tokens").counts for part in parts] == [
        {"documents": 2, "tokens": 3},
        {"documents": 2, "tokens": 3},
        {"documents": 1, "tokens": 2},
    ]
    assert tokenizer_of(parts[0].prefix).fingerprint == small_tokenizer.fingerprint
    prints = {Manifest.read(manifest_path(part.prefix), "tokens").fingerprint for part in parts}
    assert len(prints) == 3
    merge_tokens([tmp_path / "parts"], tmp_path / "again")
    assert _bytes(tmp_path / "again") == _bytes(both)
    assert origins_path(tmp_path / "again").read_bytes() == origins_path(both).read_bytes()


def test_a_part_without_a_manifest(tmp_path, small_tokenizer, gpt2, caplog):
    one = _described(tmp_path / "one", [[1, 2]], small_tokenizer, text_bytes=3)
    two = write_indexed(tmp_path / "two", [[[3]]])
    out = tmp_path / "out"
    manifest_path(out).write_text("{}")  # of an earlier merge: never left beside new files
    origins_path(out).write_bytes(b"old")
    with caplog.at_level("WARNING", logger="groundup"):
        merge_tokens([one, two], out)
    assert "no manifest is written" in caplog.text
    assert "no origins are written" in caplog.text
    assert not manifest_path(out).exists()
    assert not origins_path(out).exists()
    merge_tokens([one, two], out, tokenizer=small_tokenizer)
    assert Manifest.read(manifest_path(out), "tokens").counts == {"documents": 2, "tokens": 3}
    with pytest.raises(DataError, match="one: was built with the tokenizer"):
        merge_tokens([one, two], out, tokenizer=gpt2)


@pytest.mark.parametrize("kind", ["npy", "gpt2", "llama3"])
def test_converts_shards(tmp_path, small_tokenizer, kind, monkeypatch):
    monkeypatch.setattr("groundup.tokens.files.merge._GROUP_TOKENS", 4)
    opening = small_tokenizer.end_of_document_id
    documents = [[opening, *range(k)] for k in (3, 0, 9, 1, 2)]
    stream = [token for document in documents for token in document]
    (tmp_path / "shards").mkdir()
    for number, begin in enumerate(range(0, len(stream), 7)):
        if kind == "npy":
            write_npy(tmp_path / "shards" / f"s_{number}.npy", stream[begin : begin + 7])
        else:
            path = tmp_path / "shards" / f"s_{number}.bin"
            write_llmc(path, stream[begin : begin + 7], GPT2 if kind == "gpt2" else LLAMA3)
    report = merge_tokens([tmp_path / "shards"], tmp_path / "named", tokenizer=small_tokenizer)
    assert (report.num_parts, report.num_documents, report.num_tokens) == (3, 5, 20)
    merge_tokens([tmp_path / "shards"], tmp_path / "numbered", end_of_document_id=opening)
    for name, dtype in (("named", "uint16"), ("numbered", "int32" if kind == "llama3" else "uint16")):
        data = IndexedDataset(tmp_path / name)
        assert data.dtype == dtype
        assert [data.sequence(k).tolist() for k in range(data.num_sequences)] == documents
    assert tokenizer_of(tmp_path / "named").fingerprint == small_tokenizer.fingerprint
    assert not manifest_path(tmp_path / "numbered").exists()
    with pytest.raises(ConfigError, match="--end-of-document-id"):
        merge_tokens([tmp_path / "shards"], tmp_path / "nobody")


def test_converting_names_a_foreign_id(tmp_path, small_tokenizer):
    opening = small_tokenizer.end_of_document_id
    write_npy(tmp_path / "a.npy", [opening, 1, opening, 2])
    write_npy(tmp_path / "b.npy", [3, 291])
    with pytest.raises(DataError, match=r"token 291 at position 3 of document 1 is outside .* 291 ids"):
        merge_tokens([tmp_path / "*.npy"], tmp_path / "out", tokenizer=small_tokenizer)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.npy", "b.npy"]


def test_refuses_what_would_destroy(tmp_path, small_tokenizer):
    one, two = (write_indexed(tmp_path / name, [[[1]], [[2]]]) for name in ("one", "two"))
    with pytest.raises(ConfigError, match="would replace one of the files"):
        merge_tokens([one, two], tmp_path / "two")
    with pytest.raises(ConfigError, match=r"knows its documents by its \.idx"):
        merge_tokens([one, two], tmp_path / "out", end_of_document_id=5)
    divide_tokens(one, tmp_path / "x", Division(parts=2))
    with pytest.raises(DataError, match=r"x_00001\..*of another division"):
        divide_tokens(one, tmp_path / "x", Division(parts=1))
    divide_tokens(one, tmp_path / "x", Division(parts=2))
    with pytest.raises(ConfigError, match="would replace the whole"):
        divide_tokens(write_indexed(tmp_path / "w_00001", [[[1]], [[2]]]), tmp_path / "w", Division(parts=2))
    with pytest.raises(ConfigError, match="3 parts of 2 documents"):
        divide_tokens(one, tmp_path / "y", Division(parts=3))
    write_indexed(tmp_path / "none", [])
    with pytest.raises(DataError, match="no documents to divide"):
        divide_tokens(tmp_path / "none", tmp_path / "y", Division(parts=1))


@pytest.mark.parametrize(
    "given", [{}, {"parts": 1, "tokens": 1}, {"parts": -1}, {"split": "1", "documents": 2}]
)
def test_a_division_is_one_thing(given):
    with pytest.raises(ConfigError, match="one of parts, documents, tokens and split"):
        Division(**given)


def test_a_split_never_cuts_a_document(tmp_path):
    write_indexed(tmp_path / "sentences", [[[1], [2], [3]], [[4]]])
    with pytest.raises(ConfigError, match=r"ends train after sequence 2, within document 0"):
        divide_tokens(tmp_path / "sentences", tmp_path / "x", Division(split="1,1"))
    parts = divide_tokens(tmp_path / "sentences", tmp_path / "x", Division(split="3,1"))
    assert [part.num_tokens for part in parts] == [3, 1]


def test_an_interruption_leaves_nothing(tmp_path, monkeypatch):
    one, two = (write_indexed(tmp_path / name, [[[1]], [[2]]]) for name in ("one", "two"))
    copied = []

    def interrupt(target, source, begin, end):
        copied.append(source)
        if len(copied) == 2:
            raise KeyboardInterrupt
        return end - begin

    monkeypatch.setattr(indexed_writer, "append_range", interrupt)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(KeyboardInterrupt):
        merge_tokens([one, two], tmp_path / "out")
    assert sorted(tmp_path.iterdir()) == before


def test_needs_the_disk_space(tmp_path, monkeypatch):
    def refuse(folder, size_bytes, what):
        raise DataError(f"{what} needs {size_bytes}")

    whole = write_indexed(tmp_path / "whole", [[[1, 2, 3]]])
    monkeypatch.setattr("groundup.tokens.files.merge.require_free_space", refuse)
    monkeypatch.setattr(divide, "require_free_space", refuse)
    size = 6 + 2 * idx_path(whole).stat().st_size
    with pytest.raises(DataError, match=f"merging needs {size}"):
        merge_tokens([whole], tmp_path / "out")
    with pytest.raises(DataError, match=f"splitting needs {size}"):
        divide_tokens(whole, tmp_path / "out", Division(parts=1))


def test_a_second_merge_finds_its_work_done(tmp_path, small_tokenizer):
    one = _described(tmp_path / "one", [[1, 2], [3]], small_tokenizer, text_bytes=10)
    two = _described(tmp_path / "two", [[6], [7, 8]], small_tokenizer, text_bytes=5)
    out = tmp_path / "out"
    first = merge_tokens([one, two], out)
    assert not first.reused
    assert set(Manifest.read(manifest_path(out), "tokens").files) == {"out.bin", "out.idx", "out.origins"}
    written = bin_path(out).stat().st_ino

    again = merge_tokens([one, two], out)
    assert again == dataclasses.replace(first, reused=True)
    assert bin_path(out).stat().st_ino == written
    assert not merge_tokens([two, one], out).reused
    assert IndexedDataset(out).tokens.tolist() == [6, 7, 8, 1, 2, 3]
    _described(two, [[6], [7, 9]], small_tokenizer, text_bytes=5)
    assert not merge_tokens([two, one], out).reused
    assert IndexedDataset(out).tokens.tolist() == [6, 7, 9, 1, 2, 3]
    origins_path(out).unlink()
    assert not merge_tokens([two, one], out).reused
    assert merge_tokens([two, one], out).reused


def test_a_second_conversion_finds_its_work_done(tmp_path, small_tokenizer):
    opening = small_tokenizer.end_of_document_id
    shard = write_npy(tmp_path / "a.npy", [opening, 1, opening, 2])
    out = tmp_path / "out"
    assert not merge_tokens([shard], out, tokenizer=small_tokenizer).reused
    again = merge_tokens([shard], out, tokenizer=small_tokenizer)
    assert (again.reused, again.num_documents, again.num_tokens, again.num_parts) == (True, 2, 4, 1)
    assert not merge_tokens([shard], out, tokenizer=small_tokenizer, end_of_document_id=1).reused


@pytest.mark.parametrize("with_manifest", [True, False])
def test_an_interrupted_split_goes_on(tmp_path, small_tokenizer, monkeypatch, caplog, with_manifest):
    documents = [[number, number + 1] for number in range(8)]
    whole = _described(tmp_path / "whole", documents, small_tokenizer, text_bytes=10)
    if not with_manifest:
        manifest_path(whole).unlink()
        origins_path(whole).unlink()
    divide_tokens(whole, tmp_path / "expected" / "x", Division(parts=4))
    copied = []

    def interrupt(target, source, begin, end):
        copied.append(source)
        if len(copied) == 3:
            raise KeyboardInterrupt
        return append_range(target, source, begin, end)

    with monkeypatch.context() as patch:
        patch.setattr(indexed_writer, "append_range", interrupt)
        with caplog.at_level("INFO", logger="groundup"), pytest.raises(KeyboardInterrupt):
            divide_tokens(whole, tmp_path / "parts" / "x", Division(parts=4))
    assert "2 of 4 parts are done" in caplog.text
    left = {path.name.split(".")[0] for path in (tmp_path / "parts").iterdir()}
    assert left == {"x_00000", "x_00001"} | ({"x_tokenizer"} if with_manifest else set())

    with caplog.at_level("INFO", logger="groundup"):
        parts = divide_tokens(whole, tmp_path / "parts" / "x", Division(parts=4))
    assert "2 of 4 parts are done already" in caplog.text
    assert [part.reused for part in parts] == [True, True, False, False]
    assert [part.num_tokens for part in parts] == [4] * 4
    for path in (tmp_path / "expected").glob("x_*.*"):
        assert (tmp_path / "parts" / path.name).read_bytes() == path.read_bytes()
    again = divide_tokens(whole, tmp_path / "parts" / "x", Division(parts=4))
    assert all(part.reused for part in again)

    bin_path(parts[1].prefix).write_bytes(b"\0")
    later = bin_path(whole).stat().st_mtime_ns + 10**10
    again = divide_tokens(whole, tmp_path / "parts" / "x", Division(parts=4))
    assert [part.reused for part in again] == [True, False, True, True]
    os.utime(bin_path(whole), ns=(later, later))  # of the same size, but perhaps of other tokens
    again = divide_tokens(whole, tmp_path / "parts" / "x", Division(parts=4))
    assert not any(part.reused for part in again)
