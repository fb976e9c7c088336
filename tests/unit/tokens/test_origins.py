from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from groundup.core.errors import DataError
from groundup.tokens.dataset.document_sources import (
    Origin,
    Origins,
    OriginsWriter,
    join_origins,
    origins_path,
)

urls = st.one_of(st.just(""), st.text(st.characters(exclude_categories=["Cs"]), max_size=5))
calls = st.lists(
    st.tuples(st.sampled_from(["a.jsonl", "bé.txt", "c"]), st.lists(st.tuples(st.integers(0, 2**40), urls))),
    max_size=6,
)


def write(path: Path, content: list[tuple[str, list[tuple[int, str]]]]) -> list[Origin]:
    with OriginsWriter(path) as writer:
        for source, documents in content:
            encoded = [url.encode() for _, url in documents]
            writer.add(
                source,
                np.array([line for line, _ in documents], dtype=np.int64),
                np.array([len(url) for url in encoded], dtype=np.int64) if any(encoded) else None,
                b"".join(encoded),
            )
    return [Origin(source, line, url) for source, documents in content for line, url in documents]


def read(prefix: Path) -> list[Origin]:
    origins = Origins(prefix)
    return [origins.origin(document) for document in range(len(origins))]


@given(st.lists(st.tuples(calls, st.integers(0, 2**33)), min_size=1, max_size=4))
def test_joined_pieces_read_back_as_written(tmp_path_factory, pieces):
    folder = tmp_path_factory.mktemp("origins")
    expected = []
    paths = []
    for number, (content, shift) in enumerate(pieces):
        paths.append((origins_path(folder / str(number)), shift))
        written = write(paths[-1][0], content)
        assert read(folder / str(number)) == written
        expected += [Origin(origin.source, origin.line + shift, origin.url) for origin in written]
    join_origins(paths, origins_path(folder / "joined"))
    assert read(folder / "joined") == expected
    in_one = origins_path(folder / "one")
    whole = [
        (source, [(line + shift, url) for line, url in documents])
        for content, shift in pieces
        for source, documents in content
    ]
    write(in_one, whole)
    assert in_one.read_bytes() == origins_path(folder / "joined").read_bytes()


def test_what_is_no_file_of_origins_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        Origins(tmp_path / "none")
    path = origins_path(tmp_path / "a")
    write(path, [("a", [(1, "u"), (2, "")])])
    with pytest.raises(IndexError):
        Origins(tmp_path / "a").origin(2)
    content = path.read_bytes()
    for damaged, says in (
        (b"", "not a file of origins"),
        (b"X" * 60, "not a file of origins"),
        (content[:-1], "holds 97 bytes, its header says 98"),
        (content[:8] + b"\x02" + content[9:], "version 2"),
    ):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=says):
            Origins(tmp_path / "a")


def test_an_error_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="stop"), OriginsWriter(tmp_path / "a.origins") as writer:
        writer.add("a", np.array([1]))
        raise ValueError("stop")
    assert not list(tmp_path.iterdir())
