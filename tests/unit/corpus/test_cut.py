"""Cutting long documents loses nothing and ends parts where a reader would."""

from hypothesis import given
from hypothesis import strategies as st

from groundup.corpus.cut import cut_document
from groundup.corpus.document import Document


def parts(text, limit):
    document = Document(id="a", url="u", text=text, meta={"origin": "f:1"})
    return list(cut_document(document, limit))


@given(text=st.text(alphabet="ab \n", max_size=300), limit=st.integers(1, 50))
def test_the_parts_join_to_the_text_and_keep_the_limit(text, limit):
    cut = parts(text, limit)
    assert "".join(part.text for part in cut) == text
    assert all(len(part.text) <= limit for part in cut)
    assert len({part.id for part in cut}) == len(cut)


def test_a_blank_line_is_the_best_place_then_a_line_end_then_a_space():
    assert [p.text for p in parts("one two\n\nthree four\nfive", 14)] == [
        "one two\n\n",
        "three four\n",
        "five",
    ]
    assert [p.text for p in parts("aaaa bbbb cccc", 10)] == ["aaaa bbbb ", "cccc"]
    assert [p.text for p in parts("a" * 10, 4)] == ["aaaa", "aaaa", "aa"]


def test_a_short_document_stays_as_it_is():
    (part,) = parts("short", 10)
    assert part.id == "a"
    assert part.meta == {"origin": "f:1"}
