"""Main text of pages: encodings, engines, and workers that pages hang, starve or kill."""

import ctypes
import functools
import gzip
import json
import os
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from groundup.cli.corpus_import import extract
from groundup.cli.corpus_steps import StepOptions
from groundup.core.compressed import DamagedFile, open_decompressed
from groundup.core.errors import DataError
from groundup.core.manifest import find_damage, read_manifest
from groundup.corpus.corpus_manifest import CorpusManifest
from groundup.corpus.document import Document, from_json_line
from groundup.corpus.extraction.charset import decode_page
from groundup.corpus.extraction.limits import ExtractionFailure, ExtractionLimits
from groundup.corpus.extraction.main_text import WebPage, extract_document
from groundup.corpus.extraction.worker_pool import ExtractionPool
from groundup.corpus.warc import read_warc
from tests.web_server import html

GERMAN = "Die Straße über den Fluß war für Fußgänger gesperrt, während die Brücke geprüft wurde. "
RUSSIAN = "Гавань была тиха этим утром, и никто на набережной не говорил о корабле. "
JAPANESE = "港はその朝静かで、桟橋の誰も船のことを話さなかった。漁師たちは海を見つめていた。"
CHINESE = "那天早晨港口很安静，码头上没有人谈论那艘船。渔民们望着大海，等待风停下来。"


@pytest.mark.parametrize(
    ("text", "real", "header", "markup"),
    [
        (GERMAN, "utf-8", "", ""),
        (GERMAN, "utf-8", "iso-8859-1", "iso-8859-1"),
        (GERMAN, "cp1252", "iso-8859-1", ""),
        (GERMAN + "„Anführung“ – so", "cp1252", "", "iso-8859-1"),
        (GERMAN, "cp1252", "utf-8", "utf-8"),
        (GERMAN, "utf-8-sig", "iso-8859-1", ""),
        (GERMAN, "utf-16", "", ""),
        (GERMAN, "utf-16-le", "", ""),
        (GERMAN, "utf-16-be", "iso-8859-1", ""),
        (RUSSIAN, "koi8-r", "koi8-r", "windows-1251"),
        (RUSSIAN, "cp1251", "", "windows-1251"),
        (RUSSIAN, "cp1251", "utf-8", ""),
        (RUSSIAN, "cp1251", "no-such-charset", ""),
        (JAPANESE, "shift_jis", "", "x-sjis"),
        (JAPANESE, "euc_jp", "", "iso-8859-1"),
        (JAPANESE, "iso2022_jp", "iso-2022-jp", ""),
        (CHINESE, "gb18030", "iso-8859-1", "gb2312"),
        (CHINESE, "gbk", "", ""),
        (CHINESE, "utf-8", "gb2312", "gb2312"),
    ],
)
def test_the_text_of_a_page_whatever_is_declared(text, real, header, markup):
    declaration = f'<meta http-equiv="Content-Type" content="text/html; charset={markup}">' if markup else ""
    body = f"<html><head>{declaration}</head><body><p>{text * 5}</p></body></html>".encode(real)
    decoded, name = decode_page(body, f'text/html; charset="{header}"' if header else "text/html")
    assert text * 5 in decoded
    assert body.decode(name, "replace").lstrip("\ufeff") == decoded


def test_a_few_bad_bytes_do_not_change_the_encoding():
    body = (GERMAN * 20).encode() + "Küche".encode("cp1252")
    decoded, name = decode_page(body)
    assert name == "utf-8" and decoded == GERMAN * 20 + "K\ufffdche"


def test_real_pages_are_decoded(shared_data):
    folder = shared_data / "web_html"
    rows = map(json.loads, gzip.decompress((folder / "manifest.jsonl.gz").read_bytes()).splitlines())
    found = {}
    for row in rows:
        _, name = decode_page(gzip.decompress((folder / row["file"]).read_bytes()))
        assert name == "utf-8" or not row["valid_utf8"]
        if name != "utf-8":
            found[row["id"]] = name
    assert found.pop(121) == "gb18030" and found.pop(52) == "cp1250" and found.pop(149) == "iso8859-2"
    assert set(found.values()) == {"cp1252"} and len(found) == 8


@pytest.mark.parametrize("engine", ["trafilatura", "resiliparse"])
def test_the_main_text_without_what_stands_around_it(engine):
    menu = "<nav><ul><li><a href='/'>Home</a></li><li><a href='/a'>About us</a></li></ul></nav>"
    broken = "A title &amp; more &#xD800;"
    page = WebPage(
        "1", "", html(broken, menu + f"<p>{GERMAN * 9}</p><footer>All rights reserved</footer>").encode()
    )
    document = extract_document(page, engine)
    assert GERMAN.strip() in document.text and "About us" not in document.text
    assert document.meta["title"].startswith("A title & more") and document.meta["language"] == "en"
    document.text.encode()
    for body in (b"", b"\0\0\0", b"not HTML at all", b"<" * 5000, b"<html><body></html>", os.urandom(2000)):
        assert "\0" not in extract_document(WebPage("2", "", body), engine).text
    assert extract_document(WebPage("3", "", b"<a> & so on", "text/plain"), engine).text == "<a> & so on"


def misbehave(page):
    """An extraction that does what the page says."""
    if page.body == b"sleep":
        time.sleep(3600)
    elif page.body == b"leak":
        held = []
        while True:
            held.append(bytearray(1 << 28))  # never touched, so that it is over at once
    elif page.body == b"segfault":
        ctypes.string_at(0)
    elif page.body == b"exit":
        os._exit(3)
    elif page.body == b"raise":
        raise ValueError("what is this?")
    return Document(page.id, "", page.body.decode(), {"process": os.getpid()})


def outcomes(bodies, limits):
    """Text or failure of each page, two at a time."""
    with ExtractionPool(misbehave, 2, limits) as pool, ThreadPoolExecutor(2) as threads:
        futures = [threads.submit(pool, WebPage(str(n), "", body.encode())) for n, body in enumerate(bodies)]
        errors = [future.exception() for future in futures]
    assert all(error is None or isinstance(error, ExtractionFailure) for error in errors)
    return [
        (error.reason, error.detail) if error else future.result().text
        for future, error in zip(futures, errors, strict=True)
    ]


def test_a_page_that_leaks_or_crashes_costs_that_page():
    limits = ExtractionLimits(seconds=300, memory_bytes=1 << 30)
    bodies = ["fine", "leak", "fine", "segfault", "fine", "exit", "fine", "raise", "fine"]
    assert outcomes(bodies, limits) == [
        "fine", ("extraction out of memory", ""),
        "fine", ("extraction crashed", "SIGSEGV"),
        "fine", ("extraction crashed", "exit code 3"),
        "fine", ("extraction error", "ValueError: what is this?"),
        "fine",
    ]  # fmt: skip


def test_a_page_that_hangs_is_ended():
    failure = ("extraction time limit", "over 0.2 s")
    assert outcomes(["sleep"] * 3, ExtractionLimits(seconds=0.2)) == [failure] * 3


def test_workers_are_replaced_after_so_many_pages():
    with ExtractionPool(misbehave, 1, ExtractionLimits(pages_per_worker=3)) as pool:
        processes = [pool(WebPage(str(n), "", b"fine")).meta["process"] for n in range(7)]
    assert [len({*processes[begin : begin + 3]}) for begin in (0, 3, 6)] == [1, 1, 1]
    assert len(set(processes)) == 3
    for process in processes:
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)


def write_pages(folder):
    (folder / "sub").mkdir(parents=True)
    (folder / "a.html").write_text(html("First", f"<p>{GERMAN * 9}"))
    (folder / "sub" / "b.htm.gz").write_bytes(
        gzip.compress(html("Second", f"<p>{RUSSIAN * 9}").encode("cp1251"))
    )
    (folder / "sub" / "c.xhtml").write_text("<html><p>too short")
    (folder / ".hidden.html").write_text(html("Hidden"))
    (folder / "notes.txt").write_text("no page")


def documents_in(folder):
    found = []
    for path in sorted(folder.glob("documents-*.zst")):
        with open_decompressed(path) as stream:
            found += map(from_json_line, stream)
    return found


@pytest.mark.parametrize("workers", [0, 2])
def test_a_folder_of_html_is_extracted_in_order(tmp_path, capsys, workers):
    write_pages(tmp_path / "in")
    extract(tmp_path / "in", step=StepOptions(out=tmp_path / "out", workers=workers, num_shards=2))
    assert [path.name for path in sorted((tmp_path / "out").glob("documents*"))] == [
        "documents-00000-of-00002.jsonl.zst", "documents-00001-of-00002.jsonl.zst",
    ]  # fmt: skip
    found = documents_in(tmp_path / "out")
    assert [document.id for document in found] == ["a.html", "sub/b.htm.gz"]
    assert [document.meta["origin"] for document in found] == [
        str(tmp_path / "in" / "a.html"), str(tmp_path / "in" / "sub" / "b.htm.gz"),
    ]  # fmt: skip
    assert RUSSIAN.strip() in found[1].text and found[1].meta["charset"] == "cp1251"
    assert "extract: no main text" in (printed := capsys.readouterr().out) and "sub/c.xhtml" in printed
    manifest = read_manifest(tmp_path / "out" / "manifest.json", CorpusManifest)
    assert (manifest.counts.documents_read, manifest.counts.documents) == (3, 2)
    assert find_damage(tmp_path / "out", manifest.files) is None
    extract(tmp_path / "in", step=StepOptions(out=tmp_path / "out", workers=0))
    assert len(list((tmp_path / "out").glob("documents*"))) == 1  # none is left of the run before


def test_what_holds_no_page_is_refused(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("a text")
    step = StepOptions(out=tmp_path / "out", workers=0)
    with pytest.raises(DataError, match="no WARC or HTML file in the folder"):
        extract(tmp_path / "in", step=step)
    (tmp_path / "in" / "a.warc").write_bytes(b"")
    with pytest.raises(DataError, match="no document is left of 0: the files are empty"):
        extract(tmp_path / "in", step=step)


def record(kind, content, **headers):
    lines = [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    head = [b"WARC/1.0", b"WARC-Type: " + kind.encode(), *(line.encode() for line in lines)]
    head.append(b"Content-Length: %d" % len(content))
    return b"\r\n".join(head) + b"\r\n\r\n" + content + b"\r\n\r\n"


def archive():
    """As other programs write them."""
    url = "http://a.example"
    response = {"Content_Type": "application/http; msgtype=response", "WARC_Date": "2020-02-02T02:02:02Z"}
    absent = b"HTTP/1.1 404 Not Found\r\n\r\nno"
    one = page = b"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=koi8-r\r\n"
    one += b"\r\n" + html("One").encode()
    wet = "Nur Text für WET".encode()
    packed = gzip.compress(html("Packed").encode())
    return [
        record("warcinfo", b"software: test\r\n", Content_Type="application/warc-fields"),
        record("request", b"GET / HTTP/1.1\r\n\r\n", Content_Type="application/http; msgtype=request"),
        record("response", one, WARC_Target_URI=f"{url}/1", **response),
        record("response", absent, WARC_Target_URI=f"{url}/2", **response),
        record(
            "response",
            b"HTTP/1.1 200 OK\r\nContent-Type: image/png\r\n\r\n\x89PNG",
            WARC_Target_URI=f"{url}/3",
            **response,
        ),
        record(
            "response",
            page + b"Content-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n"
            + b"%x\r\n%s\r\n0\r\n\r\n" % (len(packed), packed),
            WARC_Target_URI=f"<{url}/4>",
            **response,
        ),
        record("conversion", wet, WARC_Target_URI=f"{url}/5", Content_Type="text/plain"),
    ]  # fmt: skip


@pytest.mark.parametrize("ending", [".warc", ".warc.gz", ".warc.zst", ".WARC.GZ"])
def test_pages_of_a_warc_file(tmp_path, ending):
    import zstandard

    path = tmp_path / f"some{ending}"
    compress = {".gz": gzip.compress, ".zst": zstandard.compress}.get(path.suffix.lower(), bytes)
    path.write_bytes(b"".join(map(compress, archive())))
    pages = list(read_warc(path))
    assert [page.url.rpartition("/")[2] for page in pages] == ["1", "4", "5"]
    assert [page.meta["origin"] for page in pages] == [f"{path}:{number}" for number in (3, 6, 7)]
    assert pages[0].meta["fetched"] == "2020-02-02T02:02:02Z"
    assert pages[0].content_type == "text/html; charset=koi8-r"
    assert pages[1].body == html("Packed").encode()
    assert extract_document(pages[2], "trafilatura").text == "Nur Text für WET"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: data[:-9], "damaged in or after record 7 .it ends early"),
        (
            lambda data: data.replace(b"Content-Length: 2", b"Content-Length: 9", 1),
            "damaged in or after record",
        ),
        (lambda data: data + b"garbage\r\n" * 50, "damaged in or after record 7"),
        (lambda data: b"<html>" + data, "begins with b'<html', not with WARC/"),
    ],
)
def test_a_damaged_warc_file_is_named(tmp_path, damage, message):
    path = tmp_path / "damaged.warc"
    path.write_bytes(damage(b"".join(archive())))
    with pytest.raises(DataError, match=message) as refusal:
        list(read_warc(path))
    assert refusal.value.where == str(path)
    (tmp_path / "cut.warc.gz").write_bytes(gzip.compress(b"".join(archive()))[:-40])
    with pytest.raises(DamagedFile, match="ends early"):
        list(read_warc(tmp_path / "cut.warc.gz"))


def test_the_engines_find_the_articles_of_real_pages(shared_data):
    """A share of the words of each article; benchmarks/extraction.py measures more."""
    folder = shared_data / "web_html"
    rows = map(json.loads, gzip.decompress((folder / "manifest.jsonl.gz").read_bytes()).splitlines())
    rows = [row for row in rows if row["gold"]["type"] == "text"][:20]
    pages = [
        WebPage(str(row["id"]), "", gzip.decompress((folder / row["file"]).read_bytes())) for row in rows
    ]
    for engine, least in (("trafilatura", 0.9), ("resiliparse", 0.85)):
        shares = []
        for row, document in zip(
            rows, map(functools.partial(extract_document, engine=engine), pages), strict=True
        ):
            words = set(row["gold"]["text"].split())
            shares.append(len(words & set(document.text.split())) / len(words))
        assert sum(shares) / len(shares) > least
