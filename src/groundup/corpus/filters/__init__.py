"""The filters of the stage `clean`: this union is their registry.

To add one, write its file here, with the source of its rule, and add its class to ``Filter``.
"""

from typing import Annotated

from groundup.core.config import ByKind
from groundup.corpus.filters.c4_quality import C4Quality
from groundup.corpus.filters.fineweb_quality import FineWebQuality
from groundup.corpus.filters.fix_unicode import FixUnicode
from groundup.corpus.filters.gopher_quality import GopherQuality
from groundup.corpus.filters.gopher_repetition import GopherRepetition
from groundup.corpus.filters.language import Language
from groundup.corpus.filters.length import Length
from groundup.corpus.filters.mask_pii import MaskPii
from groundup.corpus.filters.normalize_whitespace import NormalizeWhitespace
from groundup.corpus.filters.remove_notices import RemoveNotices
from groundup.corpus.filters.url_rules import UrlRules

Filter = Annotated[
    FixUnicode
    | NormalizeWhitespace
    | RemoveNotices
    | MaskPii
    | UrlRules
    | Language
    | Length
    | GopherQuality
    | GopherRepetition
    | C4Quality
    | FineWebQuality,
    ByKind,
]

__all__ = [
    "C4Quality",
    "Filter",
    "FineWebQuality",
    "FixUnicode",
    "GopherQuality",
    "GopherRepetition",
    "Language",
    "Length",
    "MaskPii",
    "NormalizeWhitespace",
    "RemoveNotices",
    "UrlRules",
]
