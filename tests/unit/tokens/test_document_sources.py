import io
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from groundup.core.errors import DataError
from groundup.tokens.dataset.document_sources import (
    DocumentSource,
    DocumentSources,
    DocumentSourcesWriter,
    document_sources_path,
    join_document_sources,
)

urls = st.one_of(st.just(""), st.text(st.characters(exclude_categories=["Cs"]), max_size=5))
calls = st.lists(
    st.tuples(st.sampled_from(["a.jsonl", "bé.txt", "c"]), st.lists(st.tuples(st.integers(0, 2**40), urls))),
    max_size=6,
)


def write(path: Path, content: list[tuple[str, list[tuple[int, str]]]]) -> list[DocumentSource]:
    with DocumentSourcesWriter(path) as writer:
        for source, documents in content:
            encoded = [url.encode() for _, url in documents]
            writer.add(
                source,
                np.array([line for line, _ in documents], dtype=np.int64),
                np.array([len(url) for url in encoded], dtype=np.int64) if any(encoded) else None,
                b"".join(encoded),
            )
    return [DocumentSource(source, line, url) for source, documents in content for line, url in documents]


def read(prefix: Path) -> list[DocumentSource]:
    sources = DocumentSources(prefix)
    return [sources[document] for document in range(len(sources))]


@given(st.lists(st.tuples(calls, st.integers(0, 2**33)), min_size=1, max_size=4))
def test_joined_shards_read_back_as_written(tmp_path_factory, shards):
    folder = tmp_path_factory.mktemp("sources")
    expected = []
    paths = []
    for number, (content, shift) in enumerate(shards):
        paths.append((document_sources_path(folder / str(number)), shift))
        written = write(paths[-1][0], content)
        assert read(folder / str(number)) == written
        expected += [DocumentSource(one.source, one.line + shift, one.url) for one in written]
    join_document_sources(paths, document_sources_path(folder / "joined"))
    assert read(folder / "joined") == expected
    in_one = document_sources_path(folder / "one")
    whole = [
        (source, [(line + shift, url) for line, url in documents])
        for content, shift in shards
        for source, documents in content
    ]
    write(in_one, whole)
    assert in_one.read_bytes() == document_sources_path(folder / "joined").read_bytes()


def test_what_is_no_file_of_document_sources_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        DocumentSources(tmp_path / "none")
    path = document_sources_path(tmp_path / "a")
    write(path, [("a", [(1, "u"), (2, "")])])
    with pytest.raises(IndexError):
        DocumentSources(tmp_path / "a")[2]
    content = path.read_bytes()
    compressed = io.BytesIO()
    with np.load(path) as arrays:
        np.savez_compressed(compressed, **arrays)
        other = io.BytesIO()
        np.savez(other, **{**arrays, "documents": np.arange(2)})
    for damaged, says in (
        (b"", "not a whole file of document sources"),
        (b"X" * 600, "not a zip file"),
        (content[:-1], "not a whole file of document sources"),
        (content[: len(content) // 2], "not a zip file"),
        (compressed.getvalue(), "the magic string is not correct"),
        (other.getvalue(), "an array holds int64"),
    ):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=says):
            DocumentSources(tmp_path / "a")


def test_numpy_alone_reads_it(tmp_path: Path) -> None:
    write(document_sources_path(tmp_path / "a"), [("a.txt", [(0, "")]), ("é", [(7, "u"), (9, "vw")])])
    with np.load(document_sources_path(tmp_path / "a")) as arrays:
        assert arrays["documents"]["line"].tolist() == [0, 7, 9]
        assert arrays["documents"]["url_end"].tolist() == [0, 1, 3]
        assert arrays["sources"].tolist() == [(0, 5), (1, 7)]
        assert (arrays["urls"].tobytes(), arrays["names"].tobytes().decode()) == (b"uvw", "a.txté")


def test_an_error_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="stop"), DocumentSourcesWriter(tmp_path / "a.sources.npz") as writer:
        writer.add("a", np.array([1]))
        raise ValueError("stop")
    assert not list(tmp_path.iterdir())
