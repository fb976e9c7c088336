"""Overlap with evaluation tasks, by Megatron-LM's rule."""

import dataclasses
import json
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groundup.corpus.ngram_overlap import NgramIndex, Overlap

LETTERS = " ".join(string.ascii_lowercase)
FILLER = "Nothing of a task stands in this sentence, which is here for its length alone. "


def index_of(*items: str, **settings) -> NgramIndex:
    return NgramIndex([[item] for item in items], Overlap(**settings))


def test_what_is_around_a_match_goes_up_to_the_ends_of_sentences():
    before, after = FILLER * 6, FILLER * 6
    text = f"{before}Here it is: {LETTERS.upper()}! Behind it. {after}"
    first, second = index_of(LETTERS).scan(text).clean()
    match = text.index("A B C")
    assert before.startswith(first) and first.endswith(".") and match - len(first) >= 200
    assert match - len(first) < 200 + len(FILLER) + len("Here it is: ")
    assert text.endswith(second) and len(text) - len(second) >= match + 2 * 13 - 1 + 200
    assert len(second) > 200


def test_short_pieces_go_and_a_text_without_matches_stays_whole():
    index = index_of(LETTERS)
    assert index.scan(FILLER).clean() == [FILLER]
    assert index.scan("").clean() == [""]
    assert index.scan(LETTERS).clean() == []
    assert index.scan(f"{FILLER * 2}{LETTERS}. {FILLER}").clean() == []
    text = f"{FILLER * 6}{LETTERS}. {FILLER}"
    (only,) = index.scan(text).clean()
    assert text.startswith(only)


def test_a_piece_after_a_match_is_looked_through_again():
    text = "".join(f"{FILLER * 12}{LETTERS}. " for _ in range(4))
    pieces = index_of(LETTERS).scan(text).clean()
    assert len(pieces) == 4
    assert not any("a b c d" in piece for piece in pieces)


def test_words_are_compared_without_case_and_punctuation():
    index = index_of("The quick, brown fox -- jumps over the lazy dog; and naïve_1 Übung too.")
    assert len(index) == 1  # of 13 words
    assert (
        index.scan("x THE quick brown fox jumps! over the lazy dog and NAÏVE_1 übung too y").count().total()
        == 1
    )
    assert (
        index.scan("x THE quick brown fox jumps! over the lazy dog and NAÏVE_1 übung two y").count().total()
        == 0
    )


@pytest.mark.parametrize(("words", "ngrams"), [(7, 0), (8, 1), (12, 1), (13, 1), (14, 2), (26, 14)])
def test_short_items_give_one_ngram_or_none(words, ngrams):
    item = " ".join(string.ascii_lowercase[:words])
    index = index_of(item)
    assert len(index) == ngrams
    assert index.scan(f"before {item} after").count().total() == (1 if words < 26 else 2) * bool(ngrams)


def test_common_ngrams_are_left_alone_and_items_counted():
    index = NgramIndex([[LETTERS, FILLER], [FILLER + FILLER], ["short"]], Overlap())
    both = index.scan(FILLER * 3 + LETTERS)
    assert index.num_items == 3
    assert index.items_with(both.count()) == index.items_with(both.ngrams) == {0, 1}
    letters = index.scan(LETTERS)
    assert index.items_with(letters.count()) == {0}
    common = index.scan(FILLER).ngrams
    assert 0 < len(common) < len(index)
    assert index.items_with(letters.ngrams - common) == {0}
    assert letters.clean(common) == [] and letters.clean(letters.ngrams) == [LETTERS]


def test_all_items_of_a_place_are_found_though_matches_do_not_overlap():
    words = LETTERS.split()
    index = index_of(" ".join(words[:13]), " ".join(words[4:17]), " ".join(words[4:12]))
    scan = index.scan(LETTERS)
    assert scan.count().total() == 1  # as Megatron-LM counts
    assert index.items_with(scan.ngrams) == {0, 1, 2}


def by_hand(text: str, ngrams: set[str], settings: Overlap) -> list[str]:
    """The rule with loops over characters and words."""
    kept: list[str] = []
    todo = [text]
    while todo:
        now = todo.pop(0)
        words, starts, begin = [], [], None
        for place, character in enumerate(now + " "):
            if character.isalnum() or character == "_":
                begin = place if begin is None else begin
            elif begin is not None:
                words.append(now[begin:place].lower())
                starts.append(begin)
                begin = None
        for place in range(len(words)):
            sizes = range(len(words) - place, 0, -1)
            found = next((s for s in sizes if " ".join(words[place : place + s]) in ngrams), 0)
            if found:
                ngram = " ".join(words[place : place + found])
                at = starts[place] - settings.cut_characters
                while at > 0 and now[at] not in ".!?":
                    at -= 1
                if at > 0 and len(now[: at + 1]) > settings.min_characters:
                    kept.append(now[: at + 1])
                at = starts[place] + len(ngram) + settings.cut_characters
                while at < len(now) and now[at] not in ".!?":
                    at += 1
                if at + 1 < len(now) and len(now[at + 1 :]) > settings.min_characters:
                    todo.append(now[at + 1 :])
                break
        else:
            kept.append(now)
    return kept


@given(
    st.lists(st.sampled_from(["a", "b", "c.", "d!", "e", "F", "ab", "bcd", "-  a"]), max_size=60),
    st.lists(st.lists(st.sampled_from("abcdef"), min_size=2, max_size=6), max_size=3),
    st.integers(0, 6),
    st.integers(0, 6),
)
def test_cleaning_is_that_of_a_loop(words, items, cut, least):
    settings = Overlap(max_ngram=4, min_ngram=3, cut_characters=cut, min_characters=least)
    index = NgramIndex([[" ".join(item)] for item in items], settings)
    text = " ".join(words)
    ngrams = set()
    for item in items:
        size = min(4, len(item))
        if len(item) >= 3:
            ngrams |= {" ".join(item[at : at + size]) for at in range(len(item) - size + 1)}
    assert index.scan(text).clean() == by_hand(text, ngrams, settings)
    assert len(index) == len(ngrams)


def test_settings_that_cannot_be():
    with pytest.raises(ValueError, match="above max_ngram"):
        dataclasses.replace(Overlap(), min_ngram=14)


def test_real_items_are_found_where_they_are_and_nowhere_else(shared_data):
    import gzip

    path = next(path for path in sorted((shared_data / "lambada").iterdir()) if ".jsonl" in path.name)
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open() as lines:
        items = [json.loads(line)["text"] for _, line in zip(range(300), lines, strict=False)]
    index = NgramIndex([[item] for item in items], Overlap())
    planted = FILLER * 9 + items[7] + " " + FILLER * 9
    scan = index.scan(planted)
    assert index.items_with(scan.count()) >= {7}
    assert "".join(scan.clean()).count(FILLER.strip()) >= 8
    assert index.scan("".join(scan.clean())).count().total() == 0
    assert index.scan(FILLER * 50).count().total() == 0
