"""The page of a corpus says what the run has left, and nothing else; it asks nobody for anything."""

import html.parser
import json
import re
from pathlib import Path

import pytest

from groundup.core.errors import DataError
from groundup.core.executor.tasks import SerialRunner
from groundup.corpus.clean import Clean
from groundup.corpus.dedup.exact import ExactDedup
from groundup.corpus.dedup.near import NearDedup
from groundup.corpus.filters import Language, Length, NormalizeWhitespace
from groundup.corpus.import_sources import Import
from groundup.corpus.look_up import corpus_manifest
from groundup.corpus.pipeline import run_recipe
from groundup.corpus.recipe import Recipe
from groundup.corpus.shuffle import Shuffle
from groundup.report.corpus_page import share, write_corpus_page
from groundup.report.page import link, text

SENTENCES = [
    "The harbour was quiet that morning, and nobody on the quay spoke of the ship. ",
    "My brother keeps his old records in a box below the stairs of our house. ",
    "Most of the garden had been given to beans, which grew well in the heat. ",
    "When the train came in at last, all of us had forgotten where we wanted to go. ",
    "A teacher who does not like questions should have become something else. ",
    "They built the bridge twice, because the first one was washed away in spring. ",
]
GERMAN = "Der Hafen war still an diesem Morgen, und niemand am Kai sprach von dem Schiff. "
_VOID = {"meta", "link", "br", "img", "input"}


class Page(html.parser.HTMLParser):
    """Every element with its attributes, and the text by the section in which it stands."""

    def __init__(self, markup: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.sections: dict[str, str] = {}
        self._open: list[str] = []
        self._section = ""
        self.feed(markup)
        assert self._open == []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in _VOID:
            self._open.append(tag)
        if tag == "section":
            self._section = dict(attrs)["id"] or ""

    def handle_endtag(self, tag):
        assert self._open.pop() == tag, tag

    def handle_data(self, data):
        if "style" not in self._open:
            self.sections[self._section] = self.sections.get(self._section, "") + f" {data}"

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    rows = [
        {"id": f"d{n}", "text": f"{sentence * 3}\n", "url": f"https://www.site{n % 2}.example/{n}"}
        for n, sentence in enumerate(SENTENCES)
    ]
    rows += [{"id": "again", "text": rows[0]["text"]}]
    rows += [{"id": "<b>short</b>", "text": "<script>alert(1)</script>"}]
    rows += [{"id": "deutsch", "text": GERMAN * 4, "url": "http://site.example/de?a=1&b=2"}]
    (folder / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + "broken\n")
    clean = Clean(filters=(NormalizeWhitespace(), Length(min_characters=60), Language(keep=("en",))))
    stages = (Import(sources=(folder / "in.jsonl",)), clean, ExactDedup(), NearDedup(), Shuffle(seed=3))
    run_recipe(Recipe(stages=stages, num_shards=2), folder / "corpus", SerialRunner())
    return folder / "corpus"


def test_the_page_says_what_the_manifest_says(corpus):
    path = write_corpus_page(corpus)
    assert path == corpus / "report.html"
    shown = Page(path.read_text()).sections
    counts = corpus_manifest(corpus).counts
    assert [stage.documents for stage in counts.stages] == [9, 7, 6, 6, 6]
    assert re.findall(r"(\d)\. (\w+)\s+(?:−\d+\s+)?(\d+)", shown["stages"].partition("Show as")[0]) == [
        (str(number), stage.kind, str(stage.documents)) for number, stage in enumerate(counts.stages, 1)
    ]
    for entry in counts.dropped:
        assert re.search(rf"{entry.rule}: {entry.reason}\s+{entry.documents}\s", shown["dropped"])
    assert "Der Hafen war still" in shown["dropped"] and "de 1" in shown["dropped"]
    assert re.search(rf"English\s+en\s+{counts.documents}\s.*German\s+de\s+0\s+−1", shown["languages"])
    assert "site0.example" in shown["domains"] and "site.example/de" not in shown["domains"]
    assert "exact_duplicate: seen before 1 14.3%" in shown["duplicates"]
    assert "not JSON" in shown["bad-records"] and "in.jsonl:10" in shown["bad-records"]
    assert "min_characters: 60" in shown["recipe"] and "evaluation-items" not in shown
    assert corpus_manifest(corpus).fingerprint in shown["provenance"]
    assert sum(counts.profile.lengths) == counts.documents and sum(counts.read_profile.lengths) == 9
    assert counts.read_profile.domains == {"site0.example": 3, "site1.example": 3, "site.example": 1}


def test_the_page_asks_nobody_and_hides_nothing_from_a_reader_without_eyes(corpus, tmp_path):
    markup = write_corpus_page(corpus, tmp_path / "page.html").read_text()
    page = Page(markup)
    assert not {"script", "link", "img", "iframe", "object"} & {tag for tag, _ in page.elements}
    assert "url(" not in markup and "@import" not in markup
    assert all("src" not in attributes for _, attributes in page.elements)
    outside = [a["href"] for a in page.of("a") if not (a["href"] or "").startswith("#")]
    assert outside and all(re.match(r"https?://", address) for address in outside)
    anchors = {section["id"] for section in page.of("section")} | {page.of("main")[0]["id"]}
    assert {a["href"] for a in page.of("a") if (a["href"] or "").startswith("#")} == {
        f"#{id_}" for id_ in anchors
    }
    # What a plot shows stands in a table or in words too.
    assert all(figure.get("role") == "img" and figure.get("aria-label") for figure in page.of("svg"))
    assert len(page.of("table")) >= len(page.of("svg")) and len(page.of("caption")) == len(page.of("table"))
    for bar in page.of("span"):
        assert bar["class"] != "bar" or bar["aria-hidden"] == "true"
    assert {th["scope"] for th in page.of("th")} == {"col", "row"}
    assert "prefers-color-scheme: dark" in markup and page.of("html")[0]["lang"] == "en"


def test_nothing_of_a_document_is_taken_for_markup(corpus, tmp_path):
    markup = write_corpus_page(corpus, tmp_path / "page.html").read_text()
    assert "<script" not in markup and "&lt;script&gt;alert(1)" in markup and "&lt;b&gt;short" in markup
    assert text("a\x00\u202eb<") == "a\ufffd\ufffdb&lt;"
    assert link("javascript:alert(1)") == "javascript:alert(1)"
    assert link('https://a/"><b>') == (
        '<a href="https://a/&quot;&gt;&lt;b&gt;" rel="noreferrer noopener nofollow">https://a/&quot;&gt;&lt;b&gt;</a>'
    )


def test_the_same_corpus_gives_the_same_page(corpus, tmp_path):
    first = write_corpus_page(corpus, tmp_path / "a.html").read_bytes()
    assert write_corpus_page(corpus, tmp_path / "b.html").read_bytes() == first


def test_what_is_no_corpus_has_no_page(tmp_path):
    with pytest.raises(DataError, match="is not a finished corpus"):
        write_corpus_page(tmp_path)


def test_shares_in_words():
    assert (share(1, 3), share(0, 3), share(1, 10_000), share(1, 0)) == ("33.3%", "0.0%", "<0.1%", "")
