"""The steps of cleaning: this union is their registry.

To add one, write its file here, with the source of its rule, and add its class to ``Step``.
"""

from typing import Annotated

from groundup.core.config import ByKind
from groundup.corpus.filters.fix_unicode import FixUnicode
from groundup.corpus.filters.length import Length
from groundup.corpus.filters.normalize_whitespace import NormalizeWhitespace

Step = Annotated[FixUnicode | NormalizeWhitespace | Length, ByKind]

__all__ = ["FixUnicode", "Length", "NormalizeWhitespace", "Step"]
