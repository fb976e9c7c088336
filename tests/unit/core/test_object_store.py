"""Object storage: whole files or none, bytes counted once, transient errors repeated and others not."""

import errno

import pytest

from groundup.core.errors import DataError, MachineError
from groundup.core.files import checksum
from groundup.core.object_store import Download, ObjectStore, name_of

fsspec = pytest.importorskip("fsspec")
stamina = pytest.importorskip("stamina")

URL = "memory://bucket/a"


@pytest.fixture
def memory():
    """The file system behind memory://, empty but for one file."""
    filesystem = fsspec.filesystem("memory")
    filesystem.store.clear()
    filesystem.pipe_file(URL, b"x" * 1000)
    with stamina.set_testing(True, attempts=3):
        yield filesystem
    filesystem.store.clear()


def _failing(monkeypatch, filesystem, verb, errors):
    """Lets the first calls of ``verb`` fail when all is transferred; returns a list that counts all calls."""
    transfer, calls = getattr(filesystem, verb), []

    def fails(*paths, **options):
        calls.append(paths)
        transfer(*paths, **options)
        if errors:
            raise errors.pop()

    monkeypatch.setattr(filesystem, verb, fails)
    return calls


@pytest.mark.parametrize("verb", ["get_file", "put_file"])
def test_transient_errors_are_repeated_and_bytes_counted_once(memory, tmp_path, monkeypatch, verb):
    path, told = tmp_path / "new" / "a", []
    calls = _failing(monkeypatch, memory, verb, [TimeoutError("silent"), ConnectionResetError("reset")])
    if verb == "get_file":
        ObjectStore(URL).get([Download(URL, path, 1000)], on_read=told.append)
    else:
        (tmp_path / "b").write_bytes(b"y" * 1000)
        ObjectStore(URL).put(tmp_path / "b", "memory://other/folder/b", on_write=told.append)
        memory.get_file("memory://other/folder/b", path)
    assert (len(calls), len(path.read_bytes())) == (3, 1000)
    assert (sum(told), min(told)) == (1000, -1000)


@pytest.mark.parametrize(
    ("error", "num_calls", "message"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), 1, r"No space left on device\)\. Free some space"),
        (PermissionError("denied"), 1, r"a: cannot be read \(denied\)\. Set the store's credentials"),
        (FileNotFoundError("gone"), 1, r"\(gone\)\. Check the URL"),
        (OSError("reset"), 3, r"\(reset\)\. See that the store can be reached"),
    ],
)
def test_says_what_to_do_and_leaves_what_was_there(memory, tmp_path, monkeypatch, error, num_calls, message):
    (tmp_path / "a").write_text("older")
    calls = _failing(monkeypatch, memory, "get_file", [error] * 3)
    with pytest.raises(MachineError, match=message):
        ObjectStore(URL).get([Download(URL, tmp_path / "a", 1000)], on_read=lambda _: None)
    assert len(calls) == num_calls
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("a", "older")]


def test_only_what_was_expected_gets_its_name(memory, tmp_path):
    (tmp_path / ".a.123.tmp").write_text("left by a process that was killed")
    (tmp_path / "right").write_bytes(b"x" * 1000)
    store, path = ObjectStore(URL), tmp_path / "a"
    with pytest.raises(MachineError, match=r"1,000 of 999 bytes arrived"):
        store.get([Download(URL, path, 999)], on_read=lambda _: None)
    with pytest.raises(DataError, match="does not have the checksum"):
        store.get([Download(URL, path, 1000, "xxh3:0")], on_read=lambda _: None)
    assert [path.name for path in tmp_path.iterdir()] == ["right"]
    store.get([Download(URL, path, 1000, checksum(tmp_path / "right"))], on_read=lambda _: None)
    assert path.read_bytes() == b"x" * 1000


def test_lists_a_folder_and_a_pattern(memory):
    memory.pipe_file("memory://bucket/b", b"")
    memory.pipe_file("memory://bucket/folder/a", b"")
    store = ObjectStore(URL)
    for folder in ("memory://bucket", "memory://bucket/"):
        assert [name_of(url) for url in store.files(folder)] == ["a", "b"]
    assert [store.size(url) for url in store.files("memory://bucket/*/a")] == [0]
    assert store.files("memory://nowhere") == []
    sizes = [store.size(url) for url in (URL, "memory://bucket/folder", "memory://nowhere")]
    assert sizes == [1000, None, None]
