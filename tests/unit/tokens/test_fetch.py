"""``groundup tokens fetch`` from stores in memory, in folders, and from web servers."""

import http.server
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from groundup.core.errors import ConfigError, DataError, MachineError
from groundup.tokens.dataset.dataset_manifest import describe_dataset, manifest_path, tokenizer_of
from groundup.tokens.dataset.document_sources import DocumentSourcesWriter, document_sources_path
from groundup.tokens.dataset.fetch import fetch_tokens
from groundup.tokens.dataset.indexed import bin_path, idx_path
from tests.unit.tokens.token_files import write_indexed, write_llmc, write_npy

fsspec = pytest.importorskip("fsspec")
stamina = pytest.importorskip("stamina")


class _Handler(http.server.BaseHTTPRequestHandler):
    """Serves the server's ``files``, and lists none; ``fail`` is what goes wrong with the next .bin files."""

    protocol_version = "HTTP/1.1"

    def do_HEAD(self):
        self._answer(head=True)

    def do_GET(self):
        self._answer(head=False)

    def _answer(self, *, head):
        server = self.server
        content = server.files.get(self.path)
        if content is None:
            self._send(server.missing_status, b"", head=head)
        elif head or not server.fail or not self.path.endswith(".bin"):
            server.requests.append((self.command, self.path))
            self._send(200, content, head=head)
        elif (trouble := server.fail.pop()) == "cut":
            self._send(200, content, head=head, sent=len(content) // 2)
            self.close_connection = True
        elif trouble == "hang":
            self._send(200, content, head=head, sent=len(content) // 2)
            self.wfile.flush()
            server.hanging.set()
            server.released.wait(60)
            self.close_connection = True
        else:
            self._send(trouble, b"", head=head)

    def _send(self, status, body, *, head, sent=None):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if not head:
            self.wfile.write(body[:sent])

    def log_message(self, *_):
        pass


@pytest.fixture
def web():
    """A web server on the loopback device."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    server.files, server.requests, server.fail, server.missing_status = {}, [], [], 404
    server.hanging, server.released = threading.Event(), threading.Event()
    server.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, args=[0.01], daemon=True).start()
    yield server
    server.released.set()
    server.shutdown()
    server.server_close()


@pytest.fixture(autouse=True)
def no_waiting():
    with stamina.set_testing(True, attempts=3):
        yield


@pytest.fixture
def memory():
    """An empty store in memory: ``put`` copies a folder into it."""
    store = fsspec.filesystem("memory")
    store.store.clear()

    def put(folder, name):
        for path, content in _files(folder).items():
            store.pipe_file(f"/{name}/{path}", content)

    yield put
    store.store.clear()


@pytest.fixture
def dataset(tmp_path, small_tokenizer):
    """A dataset with all that belongs to it, in a folder of its own."""
    (tmp_path / "there").mkdir()
    tokens = np.random.default_rng(1).integers(0, 291, 3000).tolist()
    prefix = write_indexed(
        tmp_path / "there" / "web", [[tokens[at : at + 100]] for at in range(0, 3000, 100)]
    )
    with DocumentSourcesWriter(document_sources_path(prefix)) as sources:
        sources.add("web.jsonl", np.arange(1, 31))
    describe_dataset(prefix, small_tokenizer, inputs={})
    return prefix


def _files(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def _serve(web, folder):
    web.files.update({f"/{name}": content for name, content in _files(folder).items()})


def _fetch(*urls, prefix):
    return fetch_tokens(urls, prefix, connections=3)


def test_a_dataset_comes_with_all_that_belongs_to_it(memory, dataset, tmp_path):
    memory(dataset.parent, "bucket")
    there = _files(dataset.parent)
    report = _fetch("memory://bucket/web", prefix=tmp_path / "here" / "web")
    assert _files(tmp_path / "here") == there
    assert (report.num_fetched, report.num_there, report.with_checksums) == (len(there) - 1, 0, True)
    assert report.fetched_bytes == sum(map(len, there.values())) - len(there["web.json"])
    again = _fetch("memory://bucket/web.idx", prefix=tmp_path / "here" / "web")
    assert (again.num_fetched, again.num_there, again.fetched_bytes) == (0, 3, 0)


def test_into_the_present_folder(memory, dataset, tmp_path, monkeypatch):
    memory(dataset.parent, "bucket")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    _fetch("memory://bucket/web", prefix=Path())
    assert _files(tmp_path / "here") == _files(dataset.parent)


def test_under_another_name(dataset, tmp_path, small_tokenizer):
    here = tmp_path / "here" / "mine"
    _fetch(f"file://{dataset}.bin", prefix=here)
    assert bin_path(here).read_bytes() == bin_path(dataset).read_bytes()
    assert tokenizer_of(here).fingerprint == small_tokenizer.fingerprint
    assert '"mine.sources.npz"' in manifest_path(here).read_text()
    assert "web." not in manifest_path(here).read_text()
    assert _fetch(f"file://{dataset}", prefix=here).num_fetched == 0


def test_a_folder_of_shards_and_a_pattern(memory, tmp_path):
    (tmp_path / "there").mkdir()
    for number in range(3):
        write_npy(tmp_path / "there" / f"a_train_{number}.npy", range(900 * number))
    write_npy(tmp_path / "there" / "x_doc_idx.npy", [1])
    (tmp_path / "there" / "README.md").write_text("shards")
    memory(tmp_path / "there", "shards")
    report = _fetch("memory://shards/", prefix=tmp_path / "here")
    assert [path.name for path in report.paths] == [f"a_train_{number}.npy" for number in range(3)]
    assert sorted(_files(tmp_path / "here")) == [f"a_train_{number}.npy" for number in range(3)]
    assert not report.with_checksums
    _fetch("memory://shards/*_[12].npy", prefix=tmp_path / "some")
    assert sorted(_files(tmp_path / "some")) == ["a_train_1.npy", "a_train_2.npy"]


def test_a_folder_of_datasets_shares_a_tokenizer(memory, dataset, tmp_path, small_tokenizer):
    two = write_indexed(dataset.with_name("two"), [[[1, 2], [3]]])
    describe_dataset(two, small_tokenizer, inputs={})
    manifest = manifest_path(two)  # as a build of two keys writes it
    manifest.write_text(manifest.read_text().replace("two_tokenizer", "web_tokenizer"))
    shutil.rmtree(two.with_name("two_tokenizer"))
    memory(dataset.parent, "bucket")
    report = _fetch("memory://bucket", prefix=tmp_path / "here")
    assert [path.name for path in report.paths] == ["two", "web"]
    assert _files(tmp_path / "here") == _files(dataset.parent)


def test_from_a_web_server(web, dataset, tmp_path, caplog):
    _serve(web, dataset.parent)
    web.missing_status = 403  # as public buckets answer that may not be listed
    web.fail = ["cut", 503]
    with caplog.at_level("INFO", logger="groundup"):
        _fetch(f"{web.url}/web", prefix=tmp_path / "here" / "web")
    assert _files(tmp_path / "here") == _files(dataset.parent)
    assert f"{web.url}/web.bin: HTTP 503; trying again" in caplog.text


def test_gives_up_and_continues_with_the_files_that_are_not_there(web, tmp_path):
    (tmp_path / "there").mkdir()
    write_npy(tmp_path / "there" / "a.npy", range(900))
    write_llmc(tmp_path / "there" / "b.bin", range(900))
    _serve(web, tmp_path / "there")
    urls, here = [f"{web.url}/a.npy", f"{web.url}/b.bin"], tmp_path / "here"
    web.fail = [500] * 3
    with pytest.raises(MachineError, match=r"b\.bin: cannot be read \(HTTP 500\)\. See that the store"):
        fetch_tokens(urls, here, connections=1)
    assert list(_files(here)) == ["a.npy"]
    web.requests.clear()
    assert (_fetch(*urls, prefix=here).num_there, _fetch(*urls, prefix=here).num_there) == (1, 2)
    assert [path for verb, path in web.requests if verb == "GET"] == ["/b.bin"]
    assert _files(here) == _files(tmp_path / "there")


def test_damage_there_is_found(memory, dataset, tmp_path):
    content = bytearray(bin_path(dataset).read_bytes())
    content[2500] ^= 1
    bin_path(dataset).write_bytes(content)
    memory(dataset.parent, "bucket")
    for _ in range(2):  # nor does the second run believe what the first has fetched
        with pytest.raises(DataError, match=r"bucket/web\.bin: what arrived does not have the checksum"):
            _fetch("memory://bucket/web", prefix=tmp_path / "here" / "web")
        assert not {"web.bin", "web.idx", "web.json"} & set(_files(tmp_path / "here"))


def test_a_file_there_of_another_size_is_not_downloaded(memory, dataset, tmp_path):
    bin_path(dataset).write_bytes(b"x" * 10)
    memory(dataset.parent, "bucket")
    with pytest.raises(DataError, match=r"bucket/web\.bin: its manifest says 6,000 bytes, there are 10"):
        _fetch("memory://bucket/web", prefix=tmp_path / "here" / "web")
    assert not (tmp_path / "here").exists()


@pytest.mark.parametrize("damage", [b"", b"x"])
def test_another_file_in_the_way_is_kept(memory, dataset, tmp_path, damage):
    memory(dataset.parent, "bucket")
    here = tmp_path / "here" / "web"
    _fetch("memory://bucket/web", prefix=here)
    other = damage + bin_path(here).read_bytes()[1:]
    bin_path(here).write_bytes(other)
    idx_path(here).unlink()
    with pytest.raises(DataError, match=r"here/web\.bin: is there and is not memory://bucket/web\.bin"):
        _fetch("memory://bucket/web", prefix=here)
    assert bin_path(here).read_bytes() == other
    bin_path(here).unlink()
    assert _fetch("memory://bucket/web", prefix=here).num_fetched == 2
    assert _files(tmp_path / "here") == _files(dataset.parent)


def test_megatrons_files_have_no_manifest(memory, tmp_path):
    (tmp_path / "there").mkdir()
    prefix = write_indexed(tmp_path / "there" / "gpt2", [[[1, 2, 3]]])
    memory(tmp_path / "there", "bucket")
    report = _fetch("memory://bucket/gpt2", prefix=tmp_path / "here" / "gpt2")
    assert not report.with_checksums
    assert _files(tmp_path / "here") == _files(tmp_path / "there")
    bin_path(prefix).write_bytes(b"\1\0")
    memory(tmp_path / "there", "bucket")
    with pytest.raises(DataError, match=r"gpt2\.bin: holds 2 bytes"):
        _fetch("memory://bucket/gpt2", prefix=tmp_path / "new" / "gpt2")


def test_what_is_not_there(memory, web, dataset, tmp_path):
    memory(dataset.parent, "bucket")
    memory(dataset.parent, "other")
    for urls, error, message in [
        (["memory://bucket/nothing"], DataError, "is neither the prefix of a .bin and .idx"),
        (["memory://bucket/*.npy"], DataError, r"no token files .* match"),
        ([f"{web.url}/shards"], DataError, "nor a folder that lists token files"),
        (["memory://bucket/web", "memory://other/web"], DataError, "has the name of memory://bucket/web"),
        (["web"], ConfigError, "expected URLs of one store, got web"),
        ([], ConfigError, "expected URLs of one store, got none"),
        (["memory://bucket/web", f"{web.url}/x"], ConfigError, "expected URLs of one store"),
        (["nowhere://bucket/x"], ConfigError, "fsspec knows no nowhere://"),
        (["http://127.0.0.1:1/x"], MachineError, "cannot be read"),
    ]:
        with pytest.raises(error, match=message):
            _fetch(*urls, prefix=tmp_path / "here")
    assert not (tmp_path / "here").exists()


@pytest.mark.parametrize("missing", ["fsspec", "aiohttp", "stamina", "s3fs"])
def test_names_the_library_that_is_not_installed(missing, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, missing, None)
    fix = "s3fs" if missing == "s3fs" else r"'groundup\[remote\]'"
    with pytest.raises(MachineError, match=f"pip install {fix}"):
        _fetch("http://b/x" if missing == "aiohttp" else "s3://b/x", prefix=tmp_path / "here")


def test_a_manifest_cannot_name_other_folders(memory, dataset, tmp_path):
    text = manifest_path(dataset).read_text()
    for name, changed in [
        ("web.bin", "../web.bin"),
        ("web_tokenizer", "../web_tokenizer"),
        ("web_tokenizer", ".."),
    ]:
        manifest_path(dataset).write_text(text.replace(f'"{name}"', f'"{changed}"'))
        memory(dataset.parent, "bucket")
        with pytest.raises(DataError, match="which are not all of web"):
            _fetch("memory://bucket/web", prefix=tmp_path / "deep" / "here" / "web")
    assert not (tmp_path / "deep").exists()


def test_a_wrong_tokenizer_is_told_before_the_tokens_come(memory, dataset, tmp_path, gpt2):
    gpt2.save(dataset.with_name("web_tokenizer"))
    memory(dataset.parent, "bucket")
    with pytest.raises(DataError, match=r"web_tokenizer: the tokenizer here is \w+, the data was built with"):
        _fetch("memory://bucket/web", prefix=tmp_path / "here" / "web")
    assert sorted((tmp_path / "here").iterdir()) == [tmp_path / "here" / "web_tokenizer"]


def test_needs_the_disk_space(memory, dataset, tmp_path, monkeypatch):
    memory(dataset.parent, "bucket")
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=10))
    with pytest.raises(MachineError, match="fetching needs"):
        _fetch("memory://bucket/web", prefix=tmp_path / "here" / "web")


def test_interrupted_as_a_user_does(web, dataset, tmp_path):
    _serve(web, dataset.parent)
    web.fail = ["hang"] * 8
    words = ["tokens", "fetch", f"{web.url}/web", "--prefix", str(tmp_path / "here" / "web")]
    command = [sys.executable, "-m", "groundup", *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert web.hanging.wait(60)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out == ""
    assert err.splitlines()[-1] == "groundup: interrupted; the same command continues or begins again"
    assert "Traceback" not in err
    assert not [name for name in _files(tmp_path / "here") if name.startswith((".", "web.bin", "web.idx"))]
    web.fail = []
    web.released.set()
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"{tmp_path / 'here' / 'web'}\n")
    assert done.stdout.endswith("; checksums are right\n")
    assert _files(tmp_path / "here") == _files(dataset.parent)
