"""Repairs broken Unicode with ftfy: mojibake, control characters, line ends; normal form C."""

import dataclasses
import functools
import re
from typing import Literal

import ftfy

from groundup.core.config import config
from groundup.corpus.document import Document

# Characters that ftfy leaves as they are in any company of their own, with the options below: printable
# ASCII; no-break space, dashes, curly quotes and the ellipsis, which are never the first byte of a UTF-8
# sequence together with its continuation in one of the encodings that mojibake goes through; CJK
# punctuation, kana, ideographs, Hangul syllables and full-width forms (all stable under NFC).
_HARMLESS = (
    r"\t\n\f -~\u00a0\u2013\u2014\u2018\u2019\u201c\u201d\u2026"
    r"\u3000-\u3029\u3041-\u3096\u30a1-\u30fc\u4e00-\u9fff\uac00-\ud7a3\uff01-\uff5e"
)
_UNUSUAL = re.compile(f"[^{_HARMLESS}]")


@config
class FixUnicode:
    r"""Repairs broken Unicode, with options that leave code and Chinese text alone.

    ftfy's defaults also change text that is not broken: they straighten quotes, make full-width forms
    narrow (the comma of Chinese is one) and take ligatures apart. Here these are off. Always done: line
    ends become ``\n``, control characters and terminal escapes go, and the text is in NFC.

    Attributes:
        mojibake: Undo text that was decoded with the wrong encoding (``sÃ³`` -> ``só``).
        html_entities: Replace ``&amp;`` and the like, in text that holds no ``<``. For text that was
            taken from web pages; in code and Markdown about HTML it does damage.
        ligatures: Take ``ﬁ`` and its like apart: for text taken from PDF.
    """

    kind: Literal["fix_unicode"] = "fix_unicode"
    mojibake: bool = True
    html_entities: bool = False
    ligatures: bool = False

    def apply(self, document: Document) -> Document:
        """The document with its text repaired."""
        text = document.text
        if self.html_entities and "&" in text:
            fixed = ftfy.fix_text(text, _ftfy_config(self.mojibake, "auto", self.ligatures))
        elif _UNUSUAL.search(text):
            fixed = self._fix_lines(text)
        else:
            return document
        return document if fixed == text else dataclasses.replace(document, text=fixed)

    def _fix_lines(self, text: str) -> str:
        """The text with the lines repaired that need it: ftfy works by line itself, and few need it."""
        ftfy_config = _ftfy_config(self.mojibake, False, self.ligatures)
        lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        return "\n".join(
            ftfy.fix_text(line, ftfy_config) if _UNUSUAL.search(line) else line for line in lines
        )


@functools.cache
def _ftfy_config(mojibake: bool, entities: Literal["auto", False], ligatures: bool) -> ftfy.TextFixerConfig:
    return ftfy.TextFixerConfig(
        unescape_html=entities,
        fix_encoding=mojibake,
        restore_byte_a0=mojibake,
        replace_lossy_sequences=mojibake,
        decode_inconsistent_utf8=mojibake,
        fix_c1_controls=mojibake,
        fix_latin_ligatures=ligatures,
        fix_character_width=False,
        uncurl_quotes=False,
        normalization="NFC",
        explain=False,
    )
