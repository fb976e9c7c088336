import pickle

import ftfy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from groundup.corpus.dedup import exact
from groundup.corpus.document import Document
from groundup.corpus.filter import Drop, drop_reasons
from groundup.corpus.filters import FixUnicode, Length, NormalizeWhitespace
from groundup.corpus.filters import fix_unicode as fix_unicode_module
from tests.instances import FILTERS

harmless = st.from_regex(f"[{fix_unicode_module._HARMLESS}]*", fullmatch=True)


def applied(step, text: str) -> str:
    result = step.apply(Document("1", "", text))
    assert isinstance(result, Document)
    return result.text


@pytest.mark.parametrize("step", FILTERS, ids=repr)
def test_every_filter_keeps_the_contract(step):
    assert pickle.loads(pickle.dumps(step)) == step
    assert all(isinstance(reason, str) for reason in drop_reasons(type(step)))
    document = Document("1", "u", "naïve “text”\u0301 \r\n" * 3, {"a": 1})
    once = step.apply(document)
    assert once == step.apply(document)
    assert isinstance(once, Document) and (once.id, once.url, once.meta) == ("1", "u", {"a": 1})
    assert step.apply(once) is once  # nothing left to do, and no copy made


def test_reasons_are_the_literals_of_the_verdict():
    assert drop_reasons(Length) == ("too short", "too long")
    assert drop_reasons(FixUnicode) == ()


@pytest.mark.parametrize(
    ("text", "fixed"),
    [
        ("sÃ³ “quoted” ok", "só “quoted” ok"),
        ("cafe\u0301", "café"),
        ("a\r\nb\rc", "a\nb\nc"),
        ("x\x07\x1b[31my\ufeff", "xy"),
        ("你好，世界！（全角）ＡＢ", "你好，世界！（全角）ＡＢ"),
        ("print('&amp;', \"‘’\")  # ﬁ\n\tif a <\n", "print('&amp;', \"‘’\")  # ﬁ\n\tif a <\n"),
    ],
)
def test_fix_unicode(text, fixed):
    assert applied(FixUnicode(), text) == fixed


def test_fix_unicode_options():
    assert applied(FixUnicode(html_entities=True), "a &amp; b") == "a & b"
    assert applied(FixUnicode(ligatures=True), "ﬁn") == "fin"
    assert applied(FixUnicode(mojibake=False), "sÃ³") == "sÃ³"


@given(harmless)
def test_harmless_lines_need_no_ftfy(text):
    """The short cut past ftfy changes nothing."""
    ftfy_config = fix_unicode_module._ftfy_config(True, False, False)
    assert ftfy.fix_text(text, ftfy_config) == text


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_fixing_by_line_is_fixing_the_whole(text):
    ftfy_config = fix_unicode_module._ftfy_config(True, False, False)
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    assert applied(FixUnicode(), text) == "\n".join(ftfy.fix_text(line, ftfy_config) for line in lines)


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("a  \n\tb\t\n", "a\n\tb\n"),
        ("a\n\n\n\n\n\nb", "a\n\n\nb"),
        (" \n\n    indented: kept\n\n\n", "    indented: kept\n"),
        ("  \n ", ""),
        ("a   b", "a   b"),
    ],
)
def test_normalize_whitespace(text, clean):
    assert applied(NormalizeWhitespace(), text) == clean


@given(st.text(alphabet="ab \t\n\r\f", max_size=30), st.integers(0, 3))
def test_normalize_whitespace_keeps_the_words_and_is_done_at_once(text, blank_lines):
    step = NormalizeWhitespace(max_blank_lines=blank_lines)
    clean = applied(step, text)
    assert clean.split() == text.split()
    assert applied(step, clean) == clean
    assert "\n" * (blank_lines + 2) not in clean and " \n" not in clean


@pytest.mark.parametrize(
    ("text", "verdict"),
    [("a" * 4, "too short"), (" " * 9, "too short"), ("a" * 5, ""), ("a" * 8, ""), ("a" * 9, "too long")],
)
def test_length(text, verdict):
    result = Length(min_characters=5, max_characters=8).apply(Document("1", "", text))
    assert (result.reason if isinstance(result, Drop) else "") == verdict


def test_length_refuses_bounds_that_keep_nothing():
    with pytest.raises(ValueError, match="below"):
        Length(min_characters=5, max_characters=4)


# Exact duplicates


@given(st.text(alphabet="ab \n\u3000é", max_size=6), st.text(alphabet="ab \n\u3000é", max_size=6))
def test_texts_of_the_same_words_have_the_same_key(one, other):
    assert (exact.text_key(one) == exact.text_key(other)) == (one.split() == other.split())


@given(st.text(alphabet="ab \n", max_size=30), st.integers(1, 6))
def test_the_key_of_a_long_text_is_that_of_its_pieces(text, piece):
    whole = exact.text_key(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exact, "_PIECE_CHARACTERS", piece)
        assert exact.text_key(text) == whole
