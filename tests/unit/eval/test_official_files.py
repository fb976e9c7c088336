"""``groundup eval fetch`` from a local server in place of the web."""

import dataclasses
import gzip
import hashlib
import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from groundup.cli.app import build_app
from groundup.core.errors import ConfigError, DataError, MachineError
from groundup.eval import official_files as module
from groundup.eval.official_files import OfficialFiles, fetch_official_files, official_files
from groundup.eval.tasks import TASKS
from tests.task_files import write_task_file
from tests.tiny import tiny_model
from tests.web_server import WebServer

pytest.importorskip("fsspec")
stamina = pytest.importorskip("stamina")


@pytest.fixture(autouse=True)
def no_waiting():
    with stamina.set_testing(True, attempts=2):
        yield


@pytest.fixture
def web():
    with WebServer() as server:
        yield server


def zipped(members):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return stream.getvalue()


def tarred(members):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return stream.getvalue()


def item_file(kind, folder, count=6):
    return write_task_file(kind, folder, count=count).read_bytes()


def serve(web, name, content, *, files, items, also=()):
    """The row of what the server has at a path now."""
    web.pages[f"/{name}"] = content
    return OfficialFiles(
        urls=[*also, web.url(f"/{name}")],
        size=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
        recorded="here",
        files=files,
        items=items,
    )


def archive_members(kind, row, folder):
    """Members as the authors' archives have them, with others beside."""
    members = {"top/readme.txt": b"x", f"__MACOSX/top/._{kind}": b"y"}
    for target, glob in row.files.items():
        name = glob.replace("*/", "top/", 1).replace("*", "boating")
        if target.endswith(".lst"):
            members[name] = b"0\n1\n" * 3
        else:
            members[name] = item_file(kind, folder)
    return members


@pytest.mark.parametrize("name", list(official_files()))
def test_the_files_of_each_task_are_found_by_it(web, name, tmp_path):
    """By the layout of the real archives; what arrives is measured from the folder as it is."""
    real, kind = official_files()[name], {"wikitext2": "wikitext"}.get(name, name)
    data = tmp_path / "data"
    if "" in real.files.values():
        content, served = item_file(kind, tmp_path), Path(real.urls[0]).name
    else:
        members = archive_members(kind, real, tmp_path)
        is_zip = real.urls[0].endswith(".zip")
        content, served = (zipped if is_zip else tarred)(members), "a.zip" if is_zip else "a.tar"
    items = 6 if kind not in ("lambada", "wikitext") else 5  # newlines
    row = serve(web, served, content, files=real.files, items=items)
    found = fetch_official_files([name], data, {name: row})[name]
    assert sorted(found) == sorted(path for path in data.rglob("*") if path.is_file())
    results = TASKS[kind](**({"stride": 0} if kind == "wikitext" else {})).measure(tiny_model("gpt2"), [data])
    assert len(results.items) == (0 if kind == "wikitext" else 6)


def test_what_is_there_is_left_alone(web, tmp_path):
    row = serve(web, "h.jsonl", item_file("hellaswag", tmp_path), files={"hellaswag_val.jsonl": ""}, items=6)
    data = tmp_path / "data"
    (path,) = fetch_official_files(["hellaswag"], data, {"hellaswag": row})["hellaswag"]
    before = path.stat()
    assert fetch_official_files(["hellaswag"], data, {"hellaswag": row}) == {"hellaswag": []}
    assert (path.stat().st_ino, web.paths()) == (before.st_ino, ["/h.jsonl"])
    path.write_bytes(path.read_bytes().replace(b"tide", b"reef"))
    with pytest.raises(DataError, match=r"hellaswag_val\.jsonl: is there and is not the official file"):
        fetch_official_files(["hellaswag"], data, {"hellaswag": row})


def test_an_archive_of_two_tasks_is_downloaded_once(web, tmp_path):
    members = {"a/easy.jsonl": item_file("arc_easy", tmp_path), "a/hard.jsonl": item_file("piqa", tmp_path)}
    easy = serve(web, "arc.zip", zipped(members), files={"ARC-Easy-Test.jsonl": "*/easy.jsonl"}, items=6)
    hard = dataclasses.replace(easy, files={"piqa_valid.jsonl": "*/hard.jsonl"})
    found = fetch_official_files(["arc_easy", "piqa"], tmp_path / "d", {"arc_easy": easy, "piqa": hard})
    assert web.paths() == ["/arc.zip"]
    assert all(len(paths) == 1 for paths in found.values())


def test_the_next_server_is_asked_and_a_busy_one_again(web, tmp_path, monkeypatch):
    content = item_file("sciq", tmp_path)
    web.pages["/other.json"] = content.replace(b"tide", b"reef")
    others = [web.url("/status/404"), web.url("/other.json")]
    row = serve(web, "t.json", content, files={"sciq_test.json": ""}, items=6, also=others)
    fetch_official_files(["sciq"], tmp_path / "data", {"sciq": row})
    assert (tmp_path / "data/sciq_test.json").read_bytes() == content
    assert set(web.paths()) == {"/status/404", "/other.json", "/t.json"}
    busy = dataclasses.replace(row, urls=[web.url("/status/503")])
    with pytest.raises(MachineError, match=r"status/503: cannot be read \(HTTP 503\)"):
        fetch_official_files(["sciq"], tmp_path / "second", {"sciq": busy})
    assert web.paths().count("/status/503") == 2
    gone = dataclasses.replace(row, urls=others)
    with pytest.raises(MachineError, match=r"none of its servers has it: .*status/404.*other\.json"):
        fetch_official_files(["sciq"], tmp_path / "second", {"sciq": gone})
    assert not list((tmp_path / "second").iterdir())


def test_what_arrives_cut_or_changed_leaves_nothing(web, tmp_path):
    content = item_file("boolq", tmp_path)
    row = serve(web, "b.jsonl", content, files={"boolq_val.jsonl": ""}, items=6)
    for served, message in ((content[:-9], "bytes arrived"), (content[::-1], "does not have the checksum")):
        web.pages["/b.jsonl"] = served
        with pytest.raises((DataError, MachineError), match=message):
            fetch_official_files(["boolq"], tmp_path / "data", {"boolq": row})
        assert not list((tmp_path / "data").iterdir())
    web.pages["/b.jsonl"] = content
    with pytest.raises(DataError, match="holds 6 items, the official file of boolq 7"):
        fetch_official_files(["boolq"], tmp_path / "data", {"boolq": dataclasses.replace(row, items=7)})
    lacking = serve(web, "b.zip", zipped({"x": b""}), files={"boolq_val.jsonl": "*/val.jsonl"}, items=6)
    with pytest.raises(DataError, match=r"b\.zip: has no member like \*/val\.jsonl"):
        fetch_official_files(["boolq"], tmp_path / "data", {"boolq": lacking})
    assert not list((tmp_path / "data").iterdir())


def test_what_a_killed_process_left_is_removed(web, tmp_path):
    (tmp_path / "data/.eval-fetch-x1/files").mkdir(parents=True)
    row = serve(web, "p.jsonl", item_file("piqa", tmp_path), files={"piqa_valid.jsonl": ""}, items=6)
    fetch_official_files(["piqa"], tmp_path / "data", {"piqa": row})
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["piqa_valid.jsonl"]


def test_without_a_network_the_server_is_named(tmp_path):
    row = OfficialFiles(
        urls=["http://127.0.0.1:9/x"], size=1, sha256="0" * 64, recorded="", files={"x": ""}, items=1
    )
    with pytest.raises(
        MachineError, match=r"http://127\.0\.0\.1:9/x: cannot be read .*See that the store can"
    ):
        fetch_official_files(["x"], tmp_path, {"x": row})


def test_the_command_says_what_it_did(web, tmp_path, monkeypatch, capsys):
    row = serve(web, "h.jsonl", item_file("hellaswag", tmp_path), files={"hellaswag_val.jsonl": ""}, items=6)
    monkeypatch.setattr(module, "official_files", lambda: {"hellaswag": row, "lambada": row})

    def groundup(*words):
        build_app()(["eval", "fetch", *words, "--data", str(tmp_path / "d")], result_action="return_value")
        return capsys.readouterr().out

    assert groundup("hellaswag") == (
        f"hellaswag: {tmp_path}/d/hellaswag_val.jsonl; 6 items, sha256 {row.sha256[:12]}...\n"
    )
    assert "there already" in groundup("hellaswag")
    for words, message in (
        ((), r"names no task; there are hellaswag \(0 MB\), lambada \(0 MB\)"),
        (("storycloze",), "fill in the form at https://cs.rochester.edu/nlp/rocstories/"),
        (("helaswag",), "'helaswag' has no official files; there are .*Did you mean 'hellaswag'"),
    ):
        with pytest.raises(ConfigError, match=message):
            groundup(*words)


def test_the_recorded_checksum_of_lambada_is_that_of_the_real_file(shared_data):
    content = gzip.decompress((shared_data / "lambada/lambada_test.jsonl.gz").read_bytes())
    row = official_files()["lambada"]
    found = (len(content), hashlib.sha256(content).hexdigest(), content.count(b"\n"))
    assert found == (row.size, row.sha256, row.items)


def test_every_task_with_official_files_says_where_from():
    known = official_files()
    assert known.keys() >= TASKS.keys() - {"perplexity", "storycloze"}
    for row in known.values():
        assert row.recorded and row.items > 0 and len(row.sha256) == 64
        assert all(url.startswith("https://") for url in row.urls)
