"""Looking into a finished corpus: what was dropped for a reason, and where a document is now."""

import dataclasses
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from groundup.core.compressed import open_decompressed
from groundup.core.errors import ConfigError, DataError
from groundup.corpus.corpus_manifest import EXCLUDED, CorpusManifest, find_corpus_manifest


@dataclasses.dataclass(frozen=True, slots=True)
class Found:
    """A document of a corpus, or one that was dropped.

    Attributes:
        place: ``file:line`` in the corpus folder.
        fields: As they stand there.
    """

    place: str
    fields: dict[str, Any]

    @property
    def verdict(self) -> str:
        """``kept``, or the rule and the reason by which it was dropped."""
        return f"{self.fields['rule']}: {self.fields['reason']}" if "rule" in self.fields else "kept"

    @property
    def because(self) -> str:
        """Which other document or evaluation item decided it; empty where none did."""
        if names := self.fields.get("meta", {}).get("decontaminated"):
            return f"without the words that it shared with {', '.join(names)}"
        return str(self.fields.get("because", ""))


def corpus_manifest(corpus: Path) -> CorpusManifest:
    """The manifest of a corpus folder.

    Raises:
        DataError: It is none.
    """
    manifest = find_corpus_manifest(corpus)
    if manifest is None:
        raise DataError(
            "is not a finished corpus: there is no manifest.json of one",
            where=corpus,
            fix="Name the folder that `groundup corpus run` or `build` wrote.",
        )
    return manifest


def dropped_for(corpus: Path, reason: str) -> Iterator[Found]:
    """What was dropped for a reason, in the order of the corpus.

    Args:
        corpus: The folder.
        reason: A rule (``length``), or a rule and its reason (``length:too short``).

    Raises:
        ConfigError: Nothing was dropped for it; names the reasons that there are.
    """
    rule, _, why = (part.strip() for part in reason.partition(":"))
    entries = corpus_manifest(corpus).counts.dropped
    if not any(entry.rule == rule and why in ("", entry.reason) for entry in entries):
        there = ", ".join(f"{entry.rule}:{entry.reason}" for entry in entries) or "none"
        raise ConfigError(f"nothing was dropped for {reason!r}", where="--reason", fix=f"Reasons: {there}.")
    for found in _lines(corpus, EXCLUDED):
        if found.fields["rule"] == rule and why in ("", found.fields["reason"]):
            yield found


def trace(corpus: Path, name: str) -> list[Found]:
    """The documents, kept or dropped, that have this id, URL or origin; parts of a cut document with it."""
    files = [*corpus_manifest(corpus).documents, EXCLUDED]
    everything = itertools.chain.from_iterable(_lines(corpus, file) for file in files)
    return [found for found in everything if _is_named(found.fields, name)]


def _is_named(fields: dict[str, Any], name: str) -> bool:
    identity: str = fields["id"]
    origin = fields.get("meta", {}).get("origin")
    return name in (identity, fields["url"], origin) or identity.startswith(f"{name}#")


def _lines(corpus: Path, file: str) -> Iterator[Found]:
    with open_decompressed(corpus / file) as stream:
        for number, line in enumerate(stream, 1):
            yield Found(f"{file}:{number}", orjson.loads(line))
