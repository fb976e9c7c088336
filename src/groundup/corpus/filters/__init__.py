"""The filters of the stage `clean`: this union is their registry.

To add one, write its file here, with the source of its rule, and add its class to ``Filter``.
"""

from typing import Annotated

from groundup.core.config import ByKind
from groundup.corpus.filters.fix_unicode import FixUnicode
from groundup.corpus.filters.length import Length
from groundup.corpus.filters.normalize_whitespace import NormalizeWhitespace

Filter = Annotated[FixUnicode | NormalizeWhitespace | Length, ByKind]

__all__ = ["Filter", "FixUnicode", "Length", "NormalizeWhitespace"]
