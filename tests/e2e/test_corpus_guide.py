"""The commands of docs/guides/corpus.md run as they stand, and print what is shown."""

import gzip
import json

import pytest

from groundup.core.files import read_json
from tests.guides import ROOT, blocks, commands, require_sessions, run
from tests.task_files import write_task_file
from tests.web_server import WebServer

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
    assert len(printed) == 14
    assert printed[2] == "posts.jsonl:2 [length: too short]\nshort\n\n"
    assert printed[3].startswith("exact_duplicate: seen before: posts.jsonl:3 in corpus/excluded.jsonl.zst:")
    assert printed[3].endswith("\n  kept in its place: a.md\n")
    assert "left to other ranks" in printed[6]
    manifests = [read_json(folder / name / "manifest.json") for name in ("corpus", "shared")]
    assert manifests[0]["counts"] == manifests[1]["counts"]
    assert not (folder / "corpus" / ".stages").exists()
    assert "documents; " in printed[11] and "similarity" in printed[11]
    overlap = "lambada (sets/lambada_test.jsonl): 0 of 3 items overlap by 13 words\n"
    assert overlap in printed[12] and f"{overlap}items.jsonl: 0 of 1 items" in printed[13]


@pytest.mark.slow
def test_the_example_makes_a_corpus_of_crawled_pages(folder, shared_data):
    """The three commands of examples/openwebtext, with a server of this machine in place of the web."""
    example = ROOT / "examples/openwebtext"
    (folder / "recipe.yaml").write_bytes((example / "recipe.yaml").read_bytes())
    items = gzip.decompress((shared_data / "lambada/lambada_test.jsonl.gz").read_bytes())
    (folder / "lambada.jsonl").write_bytes(items)
    manifest = gzip.decompress((shared_data / "web_html/manifest.jsonl.gz").read_bytes())
    pages = [json.loads(line) for line in manifest.splitlines()]
    pages = [page for page in pages if page["lang"] and page["lang"].startswith("en")][:40]
    urls = [f"http://example-{number}.org/{page['id']}/article" for number, page in enumerate(pages)]
    (folder / "urls.txt").write_text("".join(f"{url}\n" for url in [*urls, urls[0], "http://x", "no url"]))
    clean, crawl, make = commands("examples/openwebtext/README.md")
    with WebServer() as server:
        for page in pages:
            content = gzip.decompress((shared_data / "web_html" / page["file"]).read_bytes())
            server.pages[f"/{page['id']}/article"] = content
        run(clean, folder)
        assert (folder / "clean_urls.txt").read_text().split() == urls
        run(f"{crawl} --mirror {server.address} --host-delay 0", folder)
    table = run(make, folder)
    report = read_json(folder / "corpus" / "manifest.json")["counts"]
    assert report["documents_read"] >= 30 and report["documents"] >= 10
    dropped = {entry["rule"] for entry in report["dropped"]}
    assert "gopher_quality" in dropped and dropped <= {
        "language",
        "length",
        "remove_notices",
        *QUALITY,
        *DUPLICATES,
    }
    assert "kept" in table
