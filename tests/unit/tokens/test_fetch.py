"""``groundup tokens fetch`` from stores in memory, in folders, and from web servers of every temper."""

import http.server
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from groundup.core import remote
from groundup.core.errors import ConfigError, DataError, MachineError
from groundup.core.fetch import Fetch, Wanted
from groundup.core.remote import Store
from groundup.tokens.files.fetch import fetch_tokens
from groundup.tokens.files.indexed import IndexedDataset, bin_path, idx_path
from groundup.tokens.files.manifests import manifest_path, tokenizer_of
from groundup.tokens.files.origins import OriginsWriter, origins_path
from groundup.tokens.files.provenance import write_manifest
from groundup.tokens.files.shards import open_source
from tests.unit.tokens.token_files import write_indexed, write_llmc, write_npy

fsspec = pytest.importorskip("fsspec")


class _Handler(http.server.BaseHTTPRequestHandler):
    """Serves the server's ``files``; knows ranges, unless told to be worse."""

    protocol_version = "HTTP/1.1"

    def do_HEAD(self):
        self._answer(head=True)

    def do_GET(self):
        self._answer(head=False)

    def _answer(self, *, head):
        server = self.server
        content = server.files.get(self.path)
        if content is None:
            self._send(server.missing_status, b"", 0, head=head)
            return
        asked_for = self.headers.get("Range", "")
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", asked_for)
        if not head:
            server.requests.append((self.path, asked_for))
        if server.fail and self.path.endswith(".bin") and not head and asked_for != "bytes=1-1":
            trouble = server.fail.pop()
            if trouble == "cut":
                self.send_response(206)
                self.send_header("Content-Length", "1000")
                self.end_headers()
                self.wfile.write(b"x")
                self.close_connection = True
                return
            if trouble == "hang":
                server.hanging.set()
                server.released.wait(60)
                self.close_connection = True
                return
            self._send(trouble, b"", 0, head=head)
            return
        if asked and server.knows_ranges:
            begin, end = int(asked[1]), min(int(asked[2]) + 1, len(content))
            self._send(206, content[begin:end], end - begin, head=head, of=(begin, end, len(content)))
        else:
            self._send(200, content, len(content), head=head)

    def _send(self, status, body, size, *, head, of=None):
        self.send_response(status)
        self.send_header("Content-Length", str(size))
        if of:
            self.send_header("Content-Range", f"bytes {of[0]}-{of[1] - 1}/{of[2]}")
        self.end_headers()
        if not head:
            self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def web():
    """A web server; ``files`` are what it has, ``fail`` what goes wrong with the next requests."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    server.files, server.requests, server.fail = {}, [], []
    server.knows_ranges, server.missing_status = True, 404
    server.hanging, server.released = threading.Event(), threading.Event()
    server.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.released.set()
    server.shutdown()
    server.server_close()


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    monkeypatch.setattr(remote, "WAITS_SECONDS", (0,) * 5)


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
    with OriginsWriter(origins_path(prefix)) as origins:
        origins.add("web.jsonl", np.arange(1, 31))
    write_manifest(prefix, small_tokenizer, inputs={}, counts={"documents": 30, "tokens": 3000}, about={})
    return prefix


def _files(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def _serve(web, folder):
    web.files.update({f"/{name}": content for name, content in _files(folder).items()})


def _fetch(*urls, prefix, **settings):
    return fetch_tokens(urls, prefix, **{"range_bytes": 1000, "connections": 3, **settings})


def test_a_dataset_comes_with_all_that_belongs_to_it(memory, dataset, tmp_path):
    memory(dataset.parent, "bucket")
    report = _fetch("memory://bucket/web", prefix=tmp_path / "here" / "web")
    assert _files(tmp_path / "here") == _files(dataset.parent)
    assert (report.num_fetched, report.num_there, report.with_checksums) == (3, 0, True)
    assert report.fetched_bytes == sum(p(dataset).stat().st_size for p in (bin_path, idx_path, origins_path))
    again = _fetch("memory://bucket/web.idx", prefix=tmp_path / "here" / "web")
    assert (again.num_fetched, again.num_there, again.fetched_bytes) == (0, 3, 0)


def test_under_another_name(dataset, tmp_path, small_tokenizer):
    here = tmp_path / "here" / "mine"
    _fetch(f"file://{dataset}.bin", prefix=here)
    assert bin_path(here).read_bytes() == bin_path(dataset).read_bytes()
    assert tokenizer_of(here).fingerprint == small_tokenizer.fingerprint
    text = manifest_path(here).read_text()
    assert '"mine.origins"' in text
    assert "web." not in text
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
    assert len(open_source(tmp_path / "here").tokens) == 2700
    assert not report.with_checksums
    _fetch("memory://shards/*_[12].npy", prefix=tmp_path / "some")
    assert sorted(_files(tmp_path / "some")) == ["a_train_1.npy", "a_train_2.npy"]


def test_a_folder_of_datasets_shares_a_tokenizer(memory, dataset, tmp_path, small_tokenizer):
    two = write_indexed(dataset.with_name("two"), [[[1, 2], [3]]])
    counts = {"documents": 1, "tokens": 3}
    write_manifest(two, small_tokenizer, inputs={}, counts=counts, about={}, tokenizer_folder="web_tokenizer")
    memory(dataset.parent, "bucket")
    report = _fetch("memory://bucket", prefix=tmp_path / "here")
    assert [path.name for path in report.paths] == ["two", "web"]
    assert _files(tmp_path / "here") == _files(dataset.parent)
    for path in dataset.parent.glob("two.*"):
        path.unlink()
    memory(dataset.parent, "smaller")  # of a single dataset, and a folder all the same
    _fetch("memory://smaller/", prefix=tmp_path / "one")
    assert _files(tmp_path / "one") == _files(dataset.parent)


@pytest.mark.skipif(sys.platform != "linux", reason="counts open files in /proc")
def test_few_of_many_files_are_open(memory, tmp_path, monkeypatch):
    (tmp_path / "there").mkdir()
    for number in range(60):
        write_npy(tmp_path / "there" / f"a_{number:02d}.npy", range(10 * number))
    memory(tmp_path / "there", "shards")
    most = []
    read = Store._read

    def counting(self, *where):
        most.append(len(list(Path("/proc/self/fd").iterdir())))
        return read(self, *where)

    monkeypatch.setattr(Store, "_read", counting)
    before = len(list(Path("/proc/self/fd").iterdir()))
    _fetch("memory://shards", prefix=tmp_path / "here")
    assert max(most) - before < 30
    assert _files(tmp_path / "here") == _files(tmp_path / "there")


def test_a_store_that_never_answered_is_given_up_sooner(monkeypatch, tmp_path, caplog):
    monkeypatch.setattr(remote, "WAITS_SECONDS", (0,) * 20)
    with caplog.at_level("INFO", logger="groundup"), pytest.raises(MachineError):
        _fetch("http://127.0.0.1:1/web", prefix=tmp_path / "here")
    assert caplog.text.count("trying again") == 3


def test_from_a_web_server(web, dataset, tmp_path):
    _serve(web, dataset.parent)
    web.missing_status = 403  # as public buckets answer that may not be listed
    web.fail = ["cut", 503, "cut", 429]
    _fetch(f"{web.url}/web", prefix=tmp_path / "here" / "web")
    assert _files(tmp_path / "here") == _files(dataset.parent)
    ranges = {asked for path, asked in web.requests if path == "/web.bin"}
    assert {"bytes=0-999", "bytes=5000-5999"} <= ranges


def test_from_a_web_server_without_ranges(web, dataset, tmp_path):
    _serve(web, dataset.parent)
    web.knows_ranges = False
    web.fail = ["cut"]
    _fetch(f"{web.url}/web", prefix=tmp_path / "here" / "web")
    assert _files(tmp_path / "here") == _files(dataset.parent)


def test_gives_up_and_goes_on_where_it_was(web, dataset, tmp_path):
    _serve(web, dataset.parent)
    prefix = tmp_path / "here" / "web"
    store = Store(web.url)
    read = store.read
    whole = []

    def fails_later(url, begin, end, stop):
        if begin >= 3000:
            web.fail = [500] * 100
        else:
            whole.append((url, begin))
        return read(url, begin, end, stop)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Store, "read", lambda self, *where: fails_later(*where))
        with pytest.raises(MachineError, match=r"web\.bin: cannot be read \(HTTP 500\)\. See that the store"):
            _fetch(f"{web.url}/web", prefix=prefix, connections=1)
    assert not bin_path(prefix).exists()
    assert not manifest_path(prefix).exists()
    assert whole == [(f"{web.url}/web.bin", begin) for begin in (0, 1000, 2000)]
    web.fail, web.requests = [], []
    with (tmp_path / "here" / "web_fetch" / "web.bin.ranges").open("a") as journal:
        journal.write("5")  # of a line that was being written: not believed
    report = _fetch(f"{web.url}/web", prefix=prefix)
    of_tokens = sorted(asked for path, asked in web.requests if path == "/web.bin" and asked != "bytes=1-1")
    assert of_tokens == ["bytes=3000-3999", "bytes=4000-4999", "bytes=5000-5999"]
    assert (
        report.fetched_bytes == sum(len(web.files[f"/web.{end}"]) for end in ("bin", "idx", "origins")) - 3000
    )
    assert _files(tmp_path / "here") == _files(dataset.parent)


def test_what_changed_there_is_fetched_anew(memory, tmp_path):
    (tmp_path / "there").mkdir()
    old, new = [1] * 3000, [2] * 3000
    write_llmc(tmp_path / "there" / "a.bin", old)
    memory(tmp_path / "there", "shards")
    store = Store("memory://shards")

    def halves(*, of):
        fetch = Fetch(store, of, tmp_path / "staging", range_bytes=1000)
        return fetch.missing_bytes, list(fetch.run(2))

    wanted = Wanted(store.find("memory://shards/a.bin"), "a.bin")
    assert halves(of=[wanted])[0] == 7024
    assert halves(of=[wanted])[0] == 0
    write_llmc(tmp_path / "there" / "a.bin", new)
    memory(tmp_path / "there", "shards")
    changed = Wanted(store.find("memory://shards/a.bin"), "a.bin")
    assert halves(of=[changed])[0] == 7024
    assert (tmp_path / "staging" / "a.bin").read_bytes() == (tmp_path / "there" / "a.bin").read_bytes()


def test_damage_there_is_found(memory, dataset, tmp_path):
    content = bytearray(bin_path(dataset).read_bytes())
    content[2500] ^= 1
    bin_path(dataset).write_bytes(content)
    memory(dataset.parent, "bucket")
    for _ in range(2):  # nor does the second run believe what the first has fetched
        with pytest.raises(DataError, match=r"bucket/web\.bin: what came does not have the checksum"):
            _fetch("memory://bucket/web", prefix=tmp_path / "here" / "web")
        assert not bin_path(tmp_path / "here" / "web").exists()


def test_damage_here_is_mended_and_other_files_are_kept(memory, dataset, tmp_path, caplog):
    memory(dataset.parent, "bucket")
    here = tmp_path / "here" / "web"
    _fetch("memory://bucket/web", prefix=here)
    bin_path(here).write_bytes(bin_path(here).read_bytes()[:-2])
    with caplog.at_level("WARNING", logger="groundup"):
        assert _fetch("memory://bucket/web", prefix=here).num_fetched == 1
    assert "web.bin is damaged: it is fetched again" in caplog.text
    assert _files(tmp_path / "here") == _files(dataset.parent)
    other = write_indexed(tmp_path / "other", [[[1, 2]]])
    with pytest.raises(DataError, match=r"other\.bin: is there and is not memory://bucket/web\.bin"):
        _fetch("memory://bucket/web", prefix=other)
    assert IndexedDataset(other).num_tokens == 2


def test_megatrons_files_have_no_manifest(memory, tmp_path):
    (tmp_path / "there").mkdir()
    prefix = write_indexed(tmp_path / "there" / "gpt2", [[[1, 2, 3]]])
    memory(tmp_path / "there", "bucket")
    report = _fetch("memory://bucket/gpt2", prefix=tmp_path / "here" / "gpt2")
    assert not report.with_checksums
    assert _files(tmp_path / "here") == _files(tmp_path / "there")
    bin_path(prefix).write_bytes(b"\1\0")
    memory(tmp_path / "there", "bucket")
    with pytest.raises(DataError, match=r"bucket/gpt2: its files do not belong together \(holds 2 bytes"):
        _fetch("memory://bucket/gpt2", prefix=tmp_path / "new" / "gpt2")


def test_what_is_not_there(memory, web, dataset, tmp_path, monkeypatch):
    memory(dataset.parent, "bucket")
    here = tmp_path / "here"
    for url, error, message in [
        ("memory://bucket/nothing", DataError, "is neither the prefix of a .bin and .idx"),
        ("memory://bucket/*.npy", DataError, r"no token file .* matches"),
        (f"{web.url}/shards", DataError, "nor a folder with token files that this server lists"),
        ("web", ConfigError, "web is no URL"),
        ("memory://bucket/web_tokenizer", DataError, "nor a folder with token files"),
        ("nowhere://bucket/x", ConfigError, "fsspec knows no nowhere://"),
        ("http://127.0.0.1:1/x", MachineError, "cannot be read"),
    ]:
        with pytest.raises(error, match=message):
            _fetch(url, prefix=here)
    with pytest.raises(ConfigError, match="no URL was named"):
        _fetch(prefix=here)
    with pytest.raises(ConfigError, match="URLs of different stores"):
        _fetch("memory://bucket/web", f"{web.url}/x", prefix=here)
    assert not here.exists()
    for missing, url, fix in [
        ("fsspec", "s3://b/x", r"groundup\[remote\]"),
        ("aiohttp", "http://b/x", "pip install aiohttp"),
        ("s3fs", "s3://b/x", "pip install s3fs"),
    ]:
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, missing, None)
            with pytest.raises(MachineError, match=fix):
                _fetch(url, prefix=here)


def test_a_wrong_tokenizer_is_told_before_the_tokens_come(memory, dataset, tmp_path, gpt2):
    gpt2.save(dataset.with_name("web_tokenizer"))
    memory(dataset.parent, "bucket")
    with pytest.raises(
        DataError, match=r"web_tokenizer: the tokenizer there is \w+, the data was built with"
    ):
        _fetch("memory://bucket/web", prefix=tmp_path / "here" / "web")
    assert sorted((tmp_path / "here").iterdir()) == [tmp_path / "here" / "web_fetch"]
    gpt2.save(tmp_path / "mine" / "web_tokenizer")
    with pytest.raises(DataError, match="is another tokenizer than that of memory://bucket/web"):
        _fetch("memory://bucket/web", prefix=tmp_path / "mine" / "web")


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
    web.fail = []
    web.released.set()
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"{tmp_path / 'here' / 'web'}\n")
    assert done.stdout.endswith("(3 files); checksums are right\n")
    assert _files(tmp_path / "here") == _files(dataset.parent)
