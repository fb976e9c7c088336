"""The text of a page's bytes, whatever its server and its markup say of the encoding."""

import codecs
import re

_BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_IN_HEADER = re.compile(r"charset\s*=\s*[\"']?([\w.:-]+)", re.IGNORECASE)
_IN_MARKUP = re.compile(
    rb"""<(?:meta|\?xml)[^>]{0,300}?(?:charset|encoding)\s*=\s*["']?\s*([\w.:-]+)""", re.I
)
_HEAD_BYTES = 4096
_BAD_SHARE = 0.5  # a page of UTF-8 may hold some characters of an advertiser's in another encoding
_SEVERAL_BYTES = ("gb", "big5", "cp932", "cp949", "euc", "iso2022")
_SUPERSETS = {"shift_jis": "cp932", "gbk": "gb18030", "euc_kr": "cp949"}


def decode_page(body: bytes, content_type: str = "") -> tuple[str, str]:
    """The text of a page and the name of its encoding.

    What decodes as UTF-8 is UTF-8, be it declared as whatever: in other encodings such bytes make no words.
    Otherwise the declaration (of the header before that of the markup) is followed where the page decodes by
    it, unless it names an encoding of single bytes, which fit anything, and the bytes are found to be in one
    of several. Last, the encoding is detected. Labels mean what browsers take them for, so ``iso-8859-1`` is
    ``cp1252``.

    Args:
        body: The page without content encoding (gzip).
        content_type: The header of that name.
    """
    for mark, name in _BYTE_ORDER_MARKS:
        if body.startswith(mark):
            return body[len(mark) :].decode(name, "replace"), name
    declared = _declared(body, content_type)
    if declared == "iso2022_jp" and b"\x1b" in body:
        return body.decode(declared, "replace"), declared
    if (blind := _without_mark(body)) is not None:
        return body.decode(blind, "replace"), blind
    try:
        return body.decode(), "utf-8"
    except UnicodeDecodeError:
        pass
    name = _choose(body, declared)
    return body.decode(name, "replace"), name


def _choose(body: bytes, declared: str) -> str:
    from resiliparse.parse.encoding import detect_encoding

    replaced = body.decode("utf-8", "replace")
    bad = replaced.count("\ufffd")
    if bad <= _BAD_SHARE * sum(character > "\x7f" and character != "\ufffd" for character in replaced):
        return "utf-8"
    detected = _python_name(detect_encoding(body) or "") or "cp1252"
    if declared in ("", "utf-8") or declared.startswith("utf-16"):
        return detected
    if detected.startswith(_SEVERAL_BYTES) and not declared.startswith(_SEVERAL_BYTES):
        return detected
    characters = body.decode(declared, "replace")
    return declared if characters.count("\ufffd") * 100 <= len(characters) else detected


def _declared(body: bytes, content_type: str) -> str:
    """The codec that the header or the markup names; empty where neither names a known one."""
    if (match := _IN_HEADER.search(content_type)) and (name := _python_name(match[1])):
        return name
    if found := _IN_MARKUP.search(body[:_HEAD_BYTES]):
        return _python_name(found[1].decode("ascii", "replace"))
    return ""


def _python_name(label: str) -> str:
    """The codec of what browsers take a label for, or of its superset; empty where it is unknown."""
    from resiliparse.parse.encoding import map_encoding_to_html5

    name = map_encoding_to_html5(label, False) or ""
    return _SUPERSETS.get(name, name)


def _without_mark(body: bytes) -> str | None:
    """The byte order of UTF-16 without a mark, told by the zeros of its Latin letters."""
    head = body[:_HEAD_BYTES]
    even, odd = head[::2].count(0), head[1::2].count(0)
    if max(even, odd) * 4 < len(head):
        return None
    return "utf-16-le" if odd > even else "utf-16-be"
