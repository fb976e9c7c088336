"""The commands of docs/guides/corpus.md run as they stand, and print what is shown."""

import contextlib
import functools
import gzip
import json
import os
import random
import signal
import subprocess
import sys
import time
import urllib.parse

import pytest

from groundup.core.compressed import open_decompressed
from groundup.core.files import read_json
from tests.guides import ROOT, blocks, commands, require_sessions, run
from tests.task_files import write_task_file
from tests.web_server import WebServer, html

GUIDE = "docs/guides/corpus.md"
QUALITY = {"gopher_repetition", "gopher_quality", "fineweb_quality"}
DUPLICATES = {"exact_duplicate", "near_duplicate"}
POSTS = ["A post that is long enough to stay.", "short", "The same   words as in a note, and no others here."]


@pytest.fixture
def folder(tmp_path):
    """With the sources that the guide takes for granted."""
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.md").write_text("The same words as in a note, and no others here.")
    (tmp_path / "notes" / "b.txt").write_text("Caf\u00c3\u00a9 is what was meant, it was decoded badly.")
    (tmp_path / "notes" / "c.txt").write_text("A line with blanks behind it.  \n\nAnd another one.\n")
    (tmp_path / "posts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in POSTS))
    (tmp_path / "sets").mkdir()
    for task in ("lambada", "hellaswag"):
        write_task_file(task, tmp_path / "sets")
    (tmp_path / "items.jsonl").write_text('{"question": "Which of these?", "options": ["This", "That"]}\n')
    (recipe,) = blocks(GUIDE, "yaml")
    (tmp_path / "recipe.yaml").write_text(recipe)
    return tmp_path


def test_what_is_shown_is_what_is_printed(folder):
    assert require_sessions(GUIDE, folder) == 1


@pytest.mark.slow
def test_every_command_runs(folder):
    printed = [run(line, folder) for line in commands(GUIDE)]
    assert len(printed) == 17
    assert printed[5] == "posts.jsonl:2 [length: too short]\nshort\n\n"
    assert printed[6].startswith("exact_duplicate: seen before: posts.jsonl:3 in corpus/excluded.jsonl.zst:")
    assert printed[6].endswith("\n  kept in its place: a.md\n")
    assert "left to other ranks" in printed[9]
    assert (folder / "documents/documents-00000-of-00001.parquet").is_file()
    assert "posts.jsonl:2" in (folder / "corpus/report.html").read_text()
    manifests = [read_json(folder / name / "manifest.json") for name in ("corpus", "shared")]
    assert manifests[0]["counts"] == manifests[1]["counts"]
    assert not (folder / "corpus" / ".stages").exists()
    assert "documents; " in printed[14] and "similarity" in printed[14]
    overlap = "lambada (sets/lambada_test.jsonl): 0 of 3 items overlap by 13 words\n"
    assert overlap in printed[15] and f"{overlap}items.jsonl: 0 of 1 items" in printed[16]


@pytest.fixture
def mirror(shared_data):
    """Serves real pages, and three that are a text, nearly the same text, and one with items of LAMBADA."""
    manifest = gzip.decompress((shared_data / "web_html/manifest.jsonl.gz").read_bytes())
    pages = [page for page in map(json.loads, manifest.splitlines()) if (page["lang"] or "").startswith("en")]
    contents = [gzip.decompress((shared_data / "web_html" / page["file"]).read_bytes()) for page in pages]
    with open_decompressed(shared_data / "corpus_en/textbooks.jsonl.zst") as lines:
        texts = [text for line in lines if 4000 < len(text := json.loads(line)["text"]) < 6000]
    items = gzip.decompress((shared_data / "lambada/lambada_test.jsonl.gz").read_bytes()).splitlines()
    one, other = (texts[number].replace("&", "and").split("\n\n") for number in (0, 7))
    passages = [json.loads(items[number])["text"] for number in (10, 20)]
    half = len(other) // 2
    made = [
        one,
        [*one, "One more sentence stands at the end of it."],
        [*other[:half], *passages, *other[half:]],
    ]
    bodies = ["".join(f"<p>{text}</p>" for text in paragraphs) for paragraphs in made]
    with WebServer() as server:
        yield server, [*(html(f"Page {n}", body).encode() for n, body in enumerate(bodies)), *contents]


def kill_when(command, folder, is_time) -> int:
    """Runs a command until it is time to kill it and all its workers; returns its exit code."""
    words = [sys.executable, "-m", *command.split()]
    process = subprocess.Popen(words, cwd=folder, start_new_session=True, stderr=subprocess.DEVNULL)
    while process.poll() is None and not is_time():
        time.sleep(0.005)
    with contextlib.suppress(ProcessLookupError):  # it had ended
        os.killpg(process.pid, signal.SIGKILL)
    return process.wait()


def place_of(url) -> str:
    """Host and path, as the server sees them."""
    parts = urllib.parse.urlsplit(url)
    return f"{parts.netloc}{urllib.parse.unquote(parts.path) or '/'}"


def holds(journal, count) -> bool:
    """Whether a journal has so many URLs."""
    return journal.exists() and journal.read_bytes().count(b'"url"') >= count


@pytest.mark.slow
def test_the_example_makes_a_corpus_of_crawled_pages(tmp_path, shared_data, mirror):
    """As a user would: with the real list of URLs, on a server of this machine, killed twice at each step."""
    server, contents = mirror
    chance = random.Random(0)
    (tmp_path / "recipe.yaml").write_bytes((ROOT / "examples/openwebtext/recipe.yaml").read_bytes())
    (tmp_path / "sets").mkdir()
    for path in ("lambada/lambada_test.jsonl", "hellaswag/hellaswag_val.jsonl"):
        lines = gzip.decompress((shared_data / f"{path}.gz").read_bytes()).splitlines(keepends=True)
        (tmp_path / "sets" / path.partition("/")[2]).write_bytes(b"".join(lines[:200]))
    links = gzip.decompress((shared_data / "urls/urls.txt.gz").read_bytes()).splitlines(keepends=True)
    (tmp_path / "urls.txt").write_bytes(b"".join(links[::250]))
    clean, crawl, make, stats, show, trace = commands("examples/openwebtext/README.md")
    assert "blocked domain" in run(clean, tmp_path)
    urls = (tmp_path / "clean_urls.txt").read_text().split()
    assert 60 < len(urls) < 120
    served = dict(zip(urls, contents, strict=False))
    server.pages = {urllib.parse.urlsplit(url).path: content for url, content in served.items()}

    crawl += f" --mirror {server.address} --host-delay 0"
    journal = tmp_path / "pages/.crawl/journal.jsonl"
    for moment in (1, chance.randrange(20, 60)):
        kill_when(crawl, tmp_path, functools.partial(holds, journal, moment))
    entries = journal.read_bytes().splitlines()
    safe = max((number for number, line in enumerate(entries) if b'{"files"' in line), default=0)
    ended = {json.loads(line)["url"] for line in entries[1:safe] if b'"url"' in line}
    asked = len(server.requests)
    run(crawl, tmp_path)
    again = {f"{host}{path}" for host, path, _ in server.requests[asked:]}
    left = {place_of(url) for url in urls if url not in ended}  # some differ in their queries alone
    assert ended and not {place_of(url) for url in ended} & again - left

    table = run(make, tmp_path)
    stages = ["01-clean", "02-exact_dedup", "03-near_dedup", "04-decontaminate"]
    for stage in sorted(chance.sample(stages, 2)):
        begun = tmp_path / "killed/.stages" / stage
        assert kill_when(make.replace("-o corpus", "-o killed"), tmp_path, begun.exists) == -signal.SIGKILL
        assert not (tmp_path / "killed/manifest.json").exists()
    run(make.replace("-o corpus", "-o killed"), tmp_path)
    for file in ("documents-00000-of-00001.jsonl.zst", "excluded.jsonl.zst", "manifest.json"):
        assert (tmp_path / "killed" / file).read_bytes() == (tmp_path / "corpus" / file).read_bytes()

    manifest = read_json(tmp_path / "corpus/manifest.json")
    assert manifest["counts"]["documents_read"] > 40 and manifest["counts"]["documents"] > 10
    dropped = {entry["rule"] for entry in manifest["counts"]["dropped"]}
    assert "near_duplicate" in dropped and dropped & QUALITY
    assert dropped <= {"language", "length", "remove_notices", *QUALITY, *DUPLICATES}
    assert [overlap["found"] for overlap in manifest["overlaps"]] == [[":11", ":21"], []]
    assert [overlap["left"] for overlap in manifest["overlaps"]] == [[], []]
    assert run(stats, tmp_path) in table
    one, copy, cut = urls[:3]
    assert "[near_duplicate: much the same as another]; kept in its place: http" in run(show, tmp_path)
    verdicts = {url: run(trace.replace(trace.split()[-1], url), tmp_path) for url in (one, copy, cut)}
    kept, gone = (one, copy) if verdicts[one].startswith("kept: ") else (copy, one)
    assert verdicts[kept].startswith(f"kept: {kept} in corpus/documents-")
    assert verdicts[gone].startswith("near_duplicate: much the same as another: ")
    assert verdicts[gone].endswith(f"\n  kept in its place: {kept}\n")
    parts = verdicts[cut].splitlines()
    assert parts[0].startswith("kept: ")
    names = "lambada_test.jsonl:11, lambada_test.jsonl:21"
    assert parts[1] == f"  without the words that it shared with {names}"
