"""The audit of near-duplicates: real pairs against theory."""

import random

import pytest

from groundup.corpus.dedup.audit import audit, sample_documents
from groundup.corpus.dedup.minhash import MinHash
from groundup.corpus.document import Document


@pytest.fixture(scope="module")
def documents() -> list[Document]:
    """Texts, and a copy of each in which some words are others."""
    draw = random.Random(0)
    found = []
    for number in range(250):
        words = [f"w{draw.randrange(99999)}" for _ in range(150)]
        part = number % 10 / 100
        copy = [word if draw.random() > part else f"x{draw.randrange(99999)}" for word in words]
        found += [Document(f"{number}", "", " ".join(words)), Document(f"{number}'", "", " ".join(copy))]
    return [*found, Document("empty", "", "...")]


def test_pairs_are_found_as_often_as_expected(documents):
    found = audit(documents, MinHash())
    assert found.documents == 501
    assert sum(each.pairs for each in found.bins[3:]) >= 240  # hardly a pair of copies is overlooked
    for each in found.bins:
        assert abs(each.found - each.expected) <= 4 * max(1.0, each.expected) ** 0.5
    assert found.bins[9].found == found.bins[9].pairs >= 25
    for one, other, similarity, _ in found.examples:
        assert {one, other} == {one.rstrip("'"), f"{one.rstrip(chr(39))}'"} and 0.6 < similarity < 0.8


def test_samples_do_not_depend_on_the_order(documents):
    some = sample_documents(documents, 40)
    assert {each.id for each in some} == {each.id for each in sample_documents(documents[::-1], 40)}
    assert len(some) == 40 and some == [each for each in documents if each in some]
    assert len(sample_documents(documents, 10_000)) == 501
    assert {each.id for each in sample_documents(documents, 40, seed=1)} != {each.id for each in some}


def test_nothing_to_compare():
    assert audit([], MinHash()).bins == ()
    assert audit([Document("1", "", "...")], MinHash()).documents == 1
