"""Crawls of a real web server on this machine, also of one that misbehaves, and of one that is killed."""

import asyncio
import errno
import functools
import gzip
import json
import os
import signal
import socket
import subprocess
import sys
import time

import orjson
import pytest

from groundup.cli.crawl import crawl as crawl_verb
from groundup.core.compressed import open_decompressed
from groundup.core.errors import ConfigError, DataError, MachineError
from groundup.core.executor.tasks import SerialRunner
from groundup.core.folder_lock import locked_folder
from groundup.core.manifest import find_damage, read_manifest
from groundup.corpus.crawl import crawl_loop
from groundup.corpus.crawl.crawl_config import CrawlConfig, FetchLimits
from groundup.corpus.crawl.crawler import CrawlManifest, crawl
from groundup.corpus.crawl.frontier import Frontier, Visit
from groundup.corpus.crawl.journal import Journal
from groundup.corpus.document import from_json_line
from groundup.corpus.extraction.main_text import WebPage, extract_document
from groundup.corpus.extraction.page_reader import PageReading
from groundup.corpus.import_sources import Import
from groundup.corpus.page_outcomes import Outcome
from groundup.corpus.pipeline import run_recipe
from groundup.corpus.recipe import Recipe
from groundup.corpus.warc import read_warc
from tests.web_server import WebServer, html

PATIENT = {"seconds": 60.0, "first_pause_s": 0.0}


@pytest.fixture
def server():
    with WebServer() as running:
        yield running


@pytest.fixture
def config(tmp_path):
    """Makes a config for a list of URLs; fast and without limits that a slow machine reaches."""

    def make(urls, *, limits=None, out="pages", **settings):
        path = tmp_path / f"{out}.txt"
        path.write_text("".join(f"{url}\n" for url in urls))
        quick = {
            "engine": "resiliparse", "allow_hosts": ("127.0.0.1",), "host_delay_s": 0.0,
            "host_connections": 8, "workers": 1,
        }  # fmt: skip
        fetch = FetchLimits(**{**PATIENT, **(limits or {})})
        return CrawlConfig(urls=path, output_dir=tmp_path / out, limits=fetch, **{**quick, **settings})

    return make


def documents(folder):
    found = []
    for path in sorted(folder.glob("documents-*.jsonl.zst")):
        with open_decompressed(path) as stream:
            found += [from_json_line(line) for line in stream]
    return found


def outcomes(folder):
    """URL -> its entry in the journal."""
    lines = (folder / ".crawl" / "journal.jsonl").read_bytes().splitlines()[1:]
    records = [record for record in map(orjson.loads, lines) if "url" in record]
    assert len({record["url"] for record in records}) == len(records)
    return {record["url"]: record for record in records}


def test_pages_become_documents(server, config):
    urls = [server.url(f"/page/{number}") for number in range(30)]
    counts = crawl(config([*urls, "# a comment", "", urls[3]], keep_warc=True))
    assert counts.by_kind == {"document": 30} and counts.total == 30
    folder = config([]).output_dir
    found = {document.id: document for document in documents(folder)}
    assert found.keys() == set(urls) and len(documents(folder)) == 30
    document = found[urls[7]]
    assert document.text.startswith("Page 7") and "nobody on the quay" in document.text
    assert document.url == urls[7]
    fetched, seconds = document.meta.pop("fetched"), document.meta.pop("seconds")
    assert 0 < seconds < 60
    assert document.meta == {"status": 200, "charset": "utf-8", "title": "Page 7", "language": "en"}
    assert fetched.endswith("+00:00")
    manifest = read_manifest(folder / "manifest.json", CrawlManifest)
    assert manifest.counts == {"urls": 30, "document": 30} and find_damage(folder, manifest.files) is None
    assert set(manifest.files) == {"documents-00000.jsonl.zst", "warc/pages-00000.warc.gz"}
    assert len(server.paths()) == 30
    assert crawl(config([*urls, server.url("/page/new")], keep_warc=True)).total == 31
    assert server.paths()[30:] == ["/page/new"] and len(documents(folder)) == 31
    manifest = read_manifest(folder / "manifest.json", CrawlManifest)
    assert len(manifest.files) == 4 and find_damage(folder, manifest.files) is None


BAD = {
    "/endless/": "too large",
    "/announced/": "too large",
    "/bomb/gzip": "too large",
    "/bomb/deflate": "too large",
    "/type/application/pdf": "not a page",
    "/reset/": "connection broken",
    "/nonsense/": "malformed response",
    "/loop_back/1": "too many redirects",
    "/to/ftp://example.com/x": "bad redirect",
    "/to/http://[bad": "bad redirect",
    "/bytes/location": "bad redirect",
    "/bytes/content-type": "not a page",
    "/status/404": "not found",
    "/status/410": "not found",
    "/status/403": "forbidden",
    "/status/418": "other status",
    "/status/302": "other status",
    "/status/500": "server error",
    "/status/429": "asked to wait",
    "/empty": "no main text",
}


def test_each_misbehaviour_has_its_outcome_and_costs_one_url(server, config):
    server.pages["/empty"] = b""
    good = [server.url(path) for path in ("/page/1", "/gzipped/", "/to//page/2", "/charset/koi8-r,utf-8")]
    others = {
        f"https://127.0.0.1:{server.port}/page/1": "TLS failure",
        f"http://127.0.0.1:{free_port()}/": "no connection",
        "http://no-such-host.invalid/page": "name not resolved",
        "ftp://example.com/file": "malformed URL",
        "http://[::1/page": "malformed URL",
        "http://127.0.0.1:port/": "malformed URL",
        "no URL": "malformed URL",
    }
    urls = [*good, *(server.url(path) for path in BAD), *others]
    limits = {"page_bytes": 100_000, "redirects": 3, "retries": 0, "host_failures": 100}
    counts = crawl(config(urls, limits=limits))
    found = outcomes(config([]).output_dir)
    expected = {**{server.url(path): kind for path, kind in BAD.items()}, **others}
    assert {url: found[url]["kind"] for url in expected} == expected
    assert {found[url]["kind"] for url in good} == {"document"}
    assert counts.total == len(urls) and counts.by_kind["document"] == 4
    texts = {document.id: document for document in documents(config([]).output_dir)}
    assert "Гавань была тиха" in texts[good[3]].text and texts[good[3]].meta["charset"] == "koi8-r"
    assert texts[good[2]].url == server.url("/page/2") and texts[good[2]].id == good[2]
    assert "not found" in counts.table() and "/status/404 (404)" in counts.table()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_a_url_has_a_wall_clock_limit_however_slowly_it_drips(server, config):
    urls = [server.url(path) for path in ("/tarpit/1", "/silence/")]
    counts = crawl(config(urls, limits={"seconds": 0.5, "retries": 0}))
    assert counts.by_kind == {"time limit": 2}


def test_the_limit_holds_for_robots_txt_too(server, config):
    server.robots["127.0.0.1"] = "/tarpit/1"
    counts = crawl(config([server.url("/page/1")], limits={"seconds": 0.5, "retries": 0}))
    assert counts.by_kind == {"time limit": 1} and "/page/1" not in server.paths()


def test_what_may_pass_is_tried_again(server, config):
    urls = [server.url("/flaky/2"), server.url("/flaky/3")]
    counts = crawl(config(urls, limits={"retries": 2}))
    assert counts.by_kind == {"document": 1, "server error": 1}
    assert server.paths() and server.paths().count("/flaky/2") == server.paths().count("/flaky/3") == 3
    assert crawl(config(urls)).total == 2 and len(server.paths()) == 6
    counts = crawl(config(urls, retry_failed=True))
    assert dict(+counts.by_kind) == {"document": 2} and counts.total == 2
    assert server.paths().count("/flaky/3") == 4 and len(documents(config([]).output_dir)) == 2
    assert crawl(config(urls, retry_failed=True)).total == 2 and len(server.paths()) == 7


def test_retry_after_is_obeyed(server, config):
    urls = [server.url("/busy/429,1"), server.url("/busy/503,1")]
    counts = crawl(config(urls, host_connections=1))
    assert counts.by_kind == {"document": 2}
    for path in ("/busy/429,1", "/busy/503,1"):
        first, second = (when for _, asked, when in server.requests if asked == path)
        assert second - first >= 1.0  # a second was asked for; it may be more


def test_a_host_that_asks_for_too_much_is_given_up(server, config):
    urls = [server.url("/busy/503,9999"), *(server.url(f"/page/{number}") for number in range(20))]
    counts = crawl(config(urls, host_connections=1))
    assert counts.by_kind == {"asked to wait": 1, "host given up": 20}
    assert server.paths() == ["/busy/503,9999"]
    assert crawl(config(urls, retry_failed=True)).by_kind["document"] == 21


def test_a_dead_host_is_given_up(config):
    port = free_port()
    urls = [f"http://127.0.0.1:{port}/{number}" for number in range(50)]
    counts = crawl(config(urls, limits={"retries": 1, "host_failures": 3}, host_connections=1))
    assert counts.by_kind == {"no connection": 3, "host given up": 47}


def test_robots_txt_is_obeyed(server, config):
    server.robots = {
        "127.0.0.1": "User-agent: *\nDisallow: /page/private\n\nUser-agent: other\nDisallow: /",
        "closed.example": "User-agent: tester\nDisallow: /*secret$\n",
        "ill.example": 503,
    }
    urls = [
        server.url("/page/private1"), server.url("/to//page/private2"), server.url("/page/1"),
        "http://closed.example/page/secret", "http://closed.example/page/secrets", "http://ill.example/page/1",
        "http://free.example/page/private",
    ]  # fmt: skip
    run = functools.partial(
        config,
        urls,
        mirror=server.address,
        user_agent="tester/1.0 (+http://example.com)",
        limits={"retries": 0},
    )
    crawl(run())
    kinds = [outcomes(run().output_dir)[url]["kind"] for url in urls]
    assert kinds == [
        "forbidden by robots.txt", "forbidden by robots.txt", "document", "forbidden by robots.txt",
        "document", "robots.txt unavailable", "document",
    ]  # fmt: skip
    assert sorted(server.paths()) == sorted(
        ["/to//page/private2", "/page/1", "/page/secrets", "/page/private"]
    )
    robots = [host for host, path, _ in server.requests if path == "/robots.txt"]
    assert len(robots) == len(set(robots)) == 4
    crawl(run(out="all", obey_robots=False))
    assert {entry["kind"] for entry in outcomes(run(out="all").output_dir).values()} == {"document"}


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.2",
        "2130706433",
        "0",
        "127.1",
        "0177.0.0.1",
        "127.0.0.1.",
        "0x7f.1",
        "[::ffff:127.0.0.1]",
        "localhost",
        "inside.example",
    ],
)
def test_no_request_goes_to_a_private_address(server, config, monkeypatch, host):
    real = socket.getaddrinfo

    def resolve(name, *rest, **options):
        return real("127.0.0.1" if name == "inside.example" else name, *rest, **options)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    target = f"http://{host}:{server.port}/page/1"
    urls = [target, server.url(f"/to/{target}"), server.url("/page/2")]
    counts = crawl(config(urls))
    assert counts.by_kind == {"private address": 2, "document": 1}
    assert server.paths() == [f"/to/{target}", "/page/2"] or server.paths() == ["/page/2", f"/to/{target}"]
    counts = crawl(config(urls, out="allowed", allow_hosts=("127.0.0.1", "localhost", "inside.example")))
    assert counts.by_kind["document"] == (3 if host in ("localhost", "inside.example") else 1)


def test_a_mirror_answers_for_all_hosts(server, config):
    urls = ["http://one.example/page/1", "https://two.example/page/2", "http://three.example:8080/page/3"]
    counts = crawl(config(urls, mirror=server.address, allow_hosts=()))
    assert counts.by_kind == {"document": 3}
    assert {host for host, _, _ in server.requests} == {"one.example", "two.example", "three.example:8080"}
    with pytest.raises(ConfigError, match="no host and port"):
        crawl(config(urls, out="other", mirror="nowhere"))


def test_a_host_with_more_urls_than_room_does_not_stop_the_others(server, config, monkeypatch):
    monkeypatch.setattr(crawl_loop, "Frontier", functools.partial(Frontier, room=20, room_per_host=5))
    monkeypatch.setattr(crawl_loop, "_READ_AT_ONCE", 10)
    urls = [f"http://big.example/page/{number}" for number in range(100)]
    urls += [f"http://small{number}.example/page/1" for number in range(30)]
    passes = []
    real = crawl_loop.urls_of
    monkeypatch.setattr(crawl_loop, "urls_of", lambda path: passes.append(path) or real(path))
    counts = crawl(config(urls, mirror=server.address))
    assert counts.by_kind == {"document": 130} and len(server.paths()) == 130
    assert len(passes) <= 40  # each takes at least 3 of the 100, whatever the time they take


class VirtualLoop(asyncio.SelectorEventLoop):
    """Nothing takes time but waiting, which is over at once."""

    def __init__(self):
        super().__init__()
        self.now = 100.0
        select = self._selector.select

        def at_once(timeout=None):
            self.now += timeout or 0.0
            return select(0)

        self._selector.select = at_once

    def time(self):
        return self.now


def test_each_host_is_visited_at_its_pace():
    async def visits():
        frontier = Frontier(host_connections=1, host_delay_s=2.0)
        for name in ("a", "a", "a", "b", "b", "c"):
            assert frontier.add(Visit(f"http://{name}/", f"http://{name}/", name))
        frontier["c"].delay_s = 10.0
        frontier.add(Visit("http://c/2", "http://c/2", "c"))
        frontier.close()
        found = []
        began = asyncio.get_running_loop().time()
        while (visit := await frontier.next()) is not None:
            found.append((visit.host, round(asyncio.get_running_loop().time() - began, 3)))
            if visit.host == "b" and visit.attempts == 0:
                visit.attempts = 1
                frontier.pause("b", 7.0)
                frontier.put_back(visit)
                frontier.release(visit.host)
                continue
            frontier.release(visit.host)
            frontier.end()
        return found

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        found = runner.run(visits())
    times = {name: [when for host, when in found if host == name] for name in "abc"}
    assert times == {"a": [0, 2, 4], "b": [0, 7, 9, 16], "c": [0, 10]}


def test_no_more_than_so_many_at_once_to_a_host():
    async def most_at_once():
        frontier = Frontier(host_connections=3, host_delay_s=0.0)
        for number in range(10):
            frontier.add(Visit(f"http://a/{number}", "http://a/", "a"))
        frontier.close()
        active = [await frontier.next() for _ in range(3)]
        assert None not in active
        fourth = asyncio.create_task(frontier.next())
        await asyncio.sleep(1)
        assert not fourth.done()
        frontier.release("a")
        return await fourth

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        assert runner.run(most_at_once()).url == "http://a/3"


def test_pages_kept_raw_give_the_same_documents(server, config, tmp_path):
    urls = [server.url(f"/page/{number}") for number in range(5)]
    urls += [server.url("/charset/cp1251,koi8-r"), server.url("/gzipped/")]
    assert crawl(config(urls)).by_kind == {"document": 7}
    assert crawl(config(urls, out="raw", engine="none")).by_kind == {"page kept": 7}
    assert not list((tmp_path / "raw").glob("documents*"))
    first = Import(sources=(tmp_path / "raw",), pages=PageReading(engine="resiliparse"))
    report = run_recipe(Recipe(stages=(first,)), tmp_path / "texts", SerialRunner())
    assert (report.counts.documents_read, report.counts.documents) == (7, 7)
    texts = {document.id: document.text for document in documents(tmp_path / "pages")}
    extracted = documents(tmp_path / "texts")
    assert {document.id: document.text for document in extracted} == texts
    origin = tmp_path / "raw" / "warc" / "pages-00000.warc.gz"
    assert [document.meta["origin"] for document in extracted] == [f"{origin}:{n}" for n in range(1, 8)]


def test_a_folder_is_of_one_crawl(server, config):
    urls = [server.url("/page/1")]
    crawl(config(urls))
    with pytest.raises(ConfigError, match="engine: the crawl in this folder was begun with 'resiliparse'"):
        crawl(config(urls, engine="trafilatura"))
    with (
        locked_folder(config(urls).output_dir / ".crawl", doing="crawling"),
        pytest.raises(MachineError, match="is crawling in this folder"),
    ):
        crawl(config(urls))
    (config(urls).output_dir / "documents-00000.jsonl.zst").unlink()
    with pytest.raises(DataError, match="the file has 0 bytes, the journal says"):
        crawl(config(urls))
    (config(urls).output_dir / ".crawl" / "journal.jsonl").write_text("something else\n")
    with pytest.raises(DataError, match="not the journal of a crawl"):
        crawl(config(urls))
    with pytest.raises(DataError, match="all are blank or comments"):
        crawl(config(["# nothing"]))
    with pytest.raises(DataError, match="no such file"):
        crawl(CrawlConfig(urls=config([]).urls.with_name("absent"), output_dir=config([]).output_dir))
    with pytest.raises(ConfigError, match=r"--connections = 0.*\n.*--max-bytes = 0"):
        crawl_verb(config([]).urls, out=config([]).output_dir, connections=0, max_bytes=0)


def test_a_full_disk_ends_a_crawl_which_then_goes_on(server, config, monkeypatch):
    urls = [server.url(f"/page/{number}") for number in range(60)]
    real, left = os.fsync, [4]

    def fsync(descriptor):
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(crawl_loop, "_FLUSH_SECONDS", 0.05)
    with monkeypatch.context() as patch:
        patch.setattr("groundup.corpus.crawl.journal.os.fsync", fsync)
        with pytest.raises(OSError, match="No space left"):
            crawl(config(urls, host_delay_s=0.01))
    assert server.paths() and crawl(config(urls)).by_kind == {"document": 60}
    assert sorted(document.id for document in documents(config([]).output_dir)) == sorted(urls)
    outcomes(config([]).output_dir)


def test_a_journal_that_was_cut_anywhere_goes_on_without_gap_or_repetition(tmp_path):
    """Whatever was written of the last batch, to whichever file, is undone."""

    def opened():
        return Journal(tmp_path / "pages", {"engine": "x"}, documents_per_shard=4)

    def add(journal, numbers):
        for number in numbers:
            line = json.dumps({"id": str(number), "url": "", "text": "x", "meta": {}}).encode() + b"\n"
            journal.add(Outcome(f"u{number}", "document"), line)
        journal.flush()

    inner = tmp_path / "pages" / ".crawl"
    journal = opened()
    add(journal, range(3))
    before = {path: path.stat().st_size for path in inner.iterdir()}
    add(journal, [3])  # completes a shard
    add(journal, [4, 5])
    journal.close(complete=False)
    whole = {path: path.read_bytes() for path in (tmp_path / "pages").rglob("*") if path.is_file()}
    written = inner / "journal.jsonl"
    for end in range(before[written], len(whole[written]) + 1):
        for path, content in whole.items():
            path.write_bytes(content)
        written.write_bytes(whole[written][:end])
        journal = opened()
        done = journal.counts.total
        assert done in (3, 4, 6) and len(journal.done) == done
        add(journal, range(done, 8))
        journal.close(complete=True)
        assert [document.id for document in documents(tmp_path / "pages")] == [str(n) for n in range(8)]
        for path in (tmp_path / "pages").glob("documents*"):
            path.unlink()


@pytest.mark.parametrize("moments", [(1, 40), (15,)])
def test_a_killed_crawl_goes_on_where_it_was(server, config, moments):
    urls = [server.url(f"/page/{number}") for number in range(120)]
    settings = config(urls, host_connections=2)
    journal = settings.output_dir / ".crawl" / "journal.jsonl"
    command = [
        sys.executable, "-m", "groundup", "corpus", "crawl", str(settings.urls), "--out",
        str(settings.output_dir), "--engine", "resiliparse", "--allow-host", "127.0.0.1",
        "--host-delay", "0.02", "--workers", "1",
    ]  # fmt: skip
    for moment in moments:
        process = subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL)
        while process.poll() is None and (
            not journal.exists() or journal.read_bytes().count(b'"url"') < moment
        ):
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    lines = journal.read_bytes().splitlines(keepends=True)
    committed = max((number for number, line in enumerate(lines) if b'{"files"' in line), default=0)
    ended = {orjson.loads(line)["url"] for line in lines[1:committed] if b'"url"' in line}
    asked = len(server.paths())
    counts = crawl(settings)
    assert counts.by_kind == {"document": 120}
    assert sorted(document.id for document in documents(settings.output_dir)) == sorted(urls)
    again = {server.url(path) for path in server.paths()[asked:]}
    assert not again & ended and again | ended == set(urls)
    assert ended


def test_real_pages_come_out_as_the_library_alone_gives_them(shared_data, server, config):
    folder = shared_data / "web_html"
    rows = map(json.loads, gzip.decompress((folder / "manifest.jsonl.gz").read_bytes()).splitlines())
    pages = {f"/real/{row['id']}": gzip.decompress((folder / row["file"]).read_bytes()) for row in rows}
    server.pages = pages
    settings = config([server.url(path) for path in pages], min_characters=1, keep_warc=True)
    counts = crawl(settings)
    assert counts.by_kind["document"] >= 155 and counts.total == 161
    found = {document.id: document.text for document in documents(settings.output_dir)}
    for path, body in pages.items():
        page = WebPage(server.url(path), "", body, "text/html")
        assert found.get(page.id, "") == extract_document(page, "resiliparse").text
    [warc] = (settings.output_dir / "warc").iterdir()
    assert {page.url: page.body for page in read_warc(warc)} == {
        server.url(path): body for path, body in pages.items()
    }


def test_a_page_that_kills_its_worker_costs_that_page(server, config, monkeypatch):
    """Deep nesting and long attributes are what parsers break on; the limits are made tiny for them."""
    server.pages = {"/huge": html("Huge", "<p>word " * 200_000).encode()}
    urls = [server.url("/page/1"), server.url("/huge"), server.url("/page/2")]
    tiny = {"memory_bytes": 1 << 28, "seconds": 60.0}
    settings = config(urls, engine="trafilatura")
    counts = crawl(CrawlConfig(**{**vars(settings), "extraction": type(settings.extraction)(**tiny)}))
    assert counts.by_kind["document"] == 2 and counts.total == 3
    assert {kind for kind in counts.by_kind if kind.startswith("extraction")}


@pytest.mark.parametrize(
    ("module", "message"),
    [
        ("aiohttp", "groundup: this needs aiohttp. Type: pip install 'groundup[crawl]'"),
        ("trafilatura", "groundup: engine: trafilatura cannot be used (import of trafilatura halted"),
    ],
)
def test_a_missing_library_is_named_before_anything_is_fetched(tmp_path, module, message):
    (tmp_path / "urls.txt").write_text("http://127.0.0.1:1/page\n")
    code = (
        f"import sys; sys.modules[{module!r}] = None; from groundup.__main__ import main\n"
        f"sys.argv = 'groundup corpus crawl {tmp_path}/urls.txt --out {tmp_path}/out'.split()\n"
        "main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1 and message in done.stderr and "Traceback" not in done.stderr
