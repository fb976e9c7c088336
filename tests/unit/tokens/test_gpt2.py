import hashlib
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from groundup.core.errors import MachineError
from groundup.tokens.tokenizer import gpt2
from groundup.tokens.tokenizer.base import Tokenizer
from groundup.tokens.tokenizer.gpt2 import cache_dir, gpt2_at_hand, gpt2_files
from groundup.tokens.tokenizer.load_tokenizer import load_tokenizer

NOWHERE = "http://127.0.0.1:9"  # the discard port: nothing listens there


@pytest.fixture
def published(small_tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small tokenizer's two files, which count as GPT-2's, and a machine that has none of them."""
    folder = tmp_path / "published"
    small_tokenizer.save(folder)
    for name, file in (("VOCAB_SHA256", "vocab.json"), ("MERGES_SHA256", "merges.txt")):
        monkeypatch.setattr(gpt2, name, hashlib.sha256((folder / file).read_bytes()).hexdigest())
    for variable in ("XDG_CACHE_HOME", "HF_HOME"):
        monkeypatch.setenv(variable, str(tmp_path / variable))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return folder


class _Handler(http.server.SimpleHTTPRequestHandler):
    asked: list[str]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        super().do_GET()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@pytest.fixture
def server(published: Path) -> Iterator[tuple[str, list[str]]]:
    """Address of a server of the folder, and the paths that were asked for."""
    asked: list[str] = []
    handler = type("Handler", (_Handler,), {"asked": asked})
    with http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), lambda *arguments: handler(*arguments, directory=str(published))
    ) as running:
        thread = threading.Thread(target=running.serve_forever, args=[0.01])
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}", asked
        running.shutdown()
        thread.join()


def _sources(address: str) -> list[tuple[str, str]]:
    return [(f"{address}/vocab.json", f"{address}/merges.txt")]


def test_fetches_once_and_keeps(
    server: tuple[str, list[str]], small_tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, asked = server
    monkeypatch.setattr(gpt2, "SOURCES", _sources(address))
    files = gpt2_files(_sources(address))
    assert asked == ["/vocab.json", "/merges.txt"]
    assert files == (cache_dir() / "vocab.json", cache_dir() / "merges.txt")
    assert sorted(path.name for path in cache_dir().iterdir()) == ["merges.txt", "vocab.json"]
    assert gpt2_files(_sources(address)) == files
    assert load_tokenizer(Path("gpt2")).fingerprint == small_tokenizer.fingerprint
    assert load_tokenizer("tiktoken:gpt2").fingerprint == small_tokenizer.fingerprint
    assert len(asked) == 2


def test_a_damaged_copy_is_fetched_again(server: tuple[str, list[str]]) -> None:
    files = gpt2_files(_sources(server[0]))
    files[1].write_bytes(files[1].read_bytes()[:-5])
    assert gpt2_at_hand() is None
    assert gpt2_files(_sources(server[0])) == files
    assert gpt2_at_hand() == files


def test_wrong_bytes_are_refused_and_leave_nothing(published: Path, server: tuple[str, list[str]]) -> None:
    merges = published / "merges.txt"
    merges.write_bytes(merges.read_bytes() + b"a b\n")
    with pytest.raises(MachineError, match=r"merges\.txt \(its \d+ bytes are another file: sha256") as caught:
        gpt2_files(_sources(server[0]))
    assert not cache_dir().exists()
    assert str(cache_dir()) in str(caught.value)


def test_the_next_source_is_tried(server: tuple[str, list[str]]) -> None:
    missing = (f"{server[0]}/absent/vocab.json", f"{server[0]}/absent/merges.txt")
    files = gpt2_files([*_sources(NOWHERE), missing, *_sources(server[0])])
    assert gpt2_at_hand() == files


def test_without_a_network_it_says_what_to_do(published: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpt2, "_TIMEOUT_SECONDS", 2)
    with pytest.raises(MachineError) as caught:
        gpt2_files(_sources(NOWHERE))
    message = str(caught.value)
    assert f"{NOWHERE}/vocab.json ([Errno" in message
    assert "https://huggingface.co/openai-community/gpt2/resolve/main/merges.txt" in message
    assert str(cache_dir()) in message
    assert "--vocab-file and --merge-file" in message
    assert not cache_dir().exists()


@pytest.mark.parametrize(
    ("place", "names"),
    [
        ("here", ("vocab.json", "merges.txt")),
        ("here", ("gpt2-vocab.json", "gpt2-merges.txt")),
        ("XDG_CACHE_HOME/groundup/gpt2", ("encoder.json", "vocab.bpe")),
        ("HF_HOME/hub/models--openai-community--gpt2/snapshots/607a30d", ("vocab.json", "merges.txt")),
    ],
)
def test_what_is_on_the_machine_is_taken(
    published: Path, tmp_path: Path, place: str, names: tuple[str, str]
) -> None:
    assert gpt2_at_hand() is None
    folder = tmp_path / place
    folder.mkdir(parents=True, exist_ok=True)
    for old, new in zip(("vocab.json", "merges.txt"), names, strict=True):
        (folder / new).write_bytes((published / old).read_bytes())
    found = gpt2_files([])
    assert [path.resolve() for path in found] == [folder / name for name in names]


def test_other_files_of_these_names_are_passed_over(published: Path, tmp_path: Path) -> None:
    for name in ("vocab.json", "merges.txt"):
        (tmp_path / "here" / name).write_text("{}")
    assert gpt2_at_hand() is None


def test_a_path_that_exists_wins_over_the_name(
    published: Path, tmp_path: Path, small_tokenizer: Tokenizer
) -> None:
    small_tokenizer.save(tmp_path / "here" / "gpt2")
    assert load_tokenizer("gpt2").fingerprint == small_tokenizer.fingerprint


def test_the_cache_follows_xdg(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_dir() == tmp_path / "groundup" / "gpt2"
    monkeypatch.setenv("HOME", "/home/somebody")
    for unset in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", unset)
        assert cache_dir() == Path("/home/somebody/.cache/groundup/gpt2")


def test_the_real_files_are_known(shared_data: Path) -> None:
    assert gpt2.is_gpt2(shared_data / "gpt2" / "vocab.json", shared_data / "gpt2" / "merges.txt")
