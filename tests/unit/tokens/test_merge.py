import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from groundup.core.errors import ConfigError, DataError
from groundup.corpus.bad_records import BadRecordCounts
from groundup.tokens.dataset import indexed_writer
from groundup.tokens.dataset.dataset_manifest import (
    TokensCounts,
    describe_dataset,
    find_manifest,
    manifest_path,
    tokenizer_of,
)
from groundup.tokens.dataset.document_sources import (
    DocumentSources,
    DocumentSourcesWriter,
    document_sources_path,
)
from groundup.tokens.dataset.indexed import IndexedDataset, bin_path, idx_path
from groundup.tokens.dataset.merge import merge_tokens
from tests.unit.tokens.token_files import GPT2, LLAMA3, index_bytes, write_indexed, write_llmc, write_npy

DOCUMENTS = st.lists(st.lists(st.lists(st.integers(0, 8), max_size=5), max_size=3), max_size=8)


def _described(prefix, documents, tokenizer, *, text_bytes):
    """A dataset of one sequence a document, with manifest and document sources as a build leaves them."""
    write_indexed(prefix, [[document] for document in documents])
    bad = BadRecordCounts(bad=1, by_reason={prefix.name: 1}, offenders=(f"{prefix.name}:3",))
    counts = {"text_bytes": text_bytes, "bad_records": bad}
    about = {"key": "text", "append_end_of_document": True}
    describe_dataset(prefix, tokenizer, inputs={"sources": prefix.name}, counts=counts, about=about)
    with DocumentSourcesWriter(document_sources_path(prefix)) as sources:
        lines = np.arange(1, len(documents) + 1)
        urls = [f"https://{prefix.name}/{line}".encode() if line % 2 else b"" for line in lines]
        sources.add(f"{prefix.name}.jsonl", lines, np.array(list(map(len, urls))), b"".join(urls))
    return prefix


def _sources(prefix):
    sources = DocumentSources(prefix)
    return [(found.source, found.line, found.url) for found in map(sources.__getitem__, range(len(sources)))]


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


def test_manifests_and_document_sources_go_along(tmp_path, small_tokenizer):
    one = _described(tmp_path / "one", [[1, 2], [3], [4, 5]], small_tokenizer, text_bytes=10)
    two = _described(tmp_path / "two", [[6], [7, 8]], small_tokenizer, text_bytes=5)
    merge_tokens([two, one], tmp_path / "out" / "all")
    both = tmp_path / "out" / "all"
    merge_tokens([two, two], tmp_path / "out" / "twice")
    assert list(find_manifest(tmp_path / "out" / "twice").inputs) == ["two", "two (1)"]
    manifest = find_manifest(both)
    bad = BadRecordCounts(bad=2, by_reason={"two": 1, "one": 1}, offenders=("two:3", "one:3"))
    assert manifest.counts == TokensCounts(documents=5, tokens=8, text_bytes=15, bad_records=bad)
    assert list(manifest.inputs) == ["two", "one"]
    assert (manifest.about.key, manifest.about.append_end_of_document) == ("text", True)
    assert tokenizer_of(both).fingerprint == small_tokenizer.fingerprint
    assert _sources(both) == _sources(two) + _sources(one)


def test_a_part_without_a_manifest(tmp_path, small_tokenizer, gpt2, caplog):
    one = _described(tmp_path / "one", [[1, 2]], small_tokenizer, text_bytes=3)
    two = write_indexed(tmp_path / "two", [[[3]]])
    out = tmp_path / "out"
    manifest_path(out).write_text("{}")  # of an earlier merge: never left beside new files
    document_sources_path(out).write_bytes(b"old")
    with caplog.at_level("WARNING", logger="groundup"):
        merge_tokens([one, two], out)
    assert "no manifest is written" in caplog.text
    assert "no document sources are written" in caplog.text
    assert not manifest_path(out).exists()
    assert not document_sources_path(out).exists()
    merge_tokens([one, two], out, tokenizer=small_tokenizer)
    assert find_manifest(out).counts == TokensCounts(documents=2, tokens=3)
    with pytest.raises(DataError, match="one: was built with the tokenizer"):
        merge_tokens([one, two], out, tokenizer=gpt2)


@pytest.mark.parametrize("kind", ["npy", "gpt2", "llama3"])
def test_converts_shards(tmp_path, small_tokenizer, kind, monkeypatch):
    monkeypatch.setattr("groundup.tokens.dataset.merge._BATCH_TOKENS", 4)
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
    assert (report.num_shards, report.num_documents, report.num_tokens) == (3, 5, 20)
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
    monkeypatch.setattr("groundup.tokens.dataset.merge.require_free_space", refuse)
    size = 6 + 2 * idx_path(whole).stat().st_size
    with pytest.raises(DataError, match=f"merging needs {size}"):
        merge_tokens([whole], tmp_path / "out")


def test_a_second_merge_finds_its_work_done(tmp_path, small_tokenizer):
    one = _described(tmp_path / "one", [[1, 2], [3]], small_tokenizer, text_bytes=10)
    two = _described(tmp_path / "two", [[6], [7, 8]], small_tokenizer, text_bytes=5)
    out = tmp_path / "out"
    first = merge_tokens([one, two], out)
    assert not first.reused
    assert set(find_manifest(out).files) == {"out.bin", "out.idx", "out.sources.npz"}
    written = bin_path(out).stat().st_ino

    again = merge_tokens([one, two], out)
    assert again == dataclasses.replace(first, reused=True)
    assert bin_path(out).stat().st_ino == written
    assert not merge_tokens([two, one], out).reused
    assert IndexedDataset(out).tokens.tolist() == [6, 7, 8, 1, 2, 3]
    _described(two, [[6], [7, 9]], small_tokenizer, text_bytes=5)
    assert not merge_tokens([two, one], out).reused
    assert IndexedDataset(out).tokens.tolist() == [6, 7, 9, 1, 2, 3]
    document_sources_path(out).unlink()
    assert not merge_tokens([two, one], out).reused
    assert merge_tokens([two, one], out).reused


def test_a_second_conversion_finds_its_work_done(tmp_path, small_tokenizer):
    opening = small_tokenizer.end_of_document_id
    shard = write_npy(tmp_path / "a.npy", [opening, 1, opening, 2])
    out = tmp_path / "out"
    assert not merge_tokens([shard], out, tokenizer=small_tokenizer).reused
    again = merge_tokens([shard], out, tokenizer=small_tokenizer)
    assert (again.reused, again.num_documents, again.num_tokens, again.num_shards) == (True, 2, 4, 1)
    assert not merge_tokens([shard], out, tokenizer=small_tokenizer, end_of_document_id=1).reused
