"""Looking into a finished corpus: what was dropped for a reason, and where a document is now."""

import dataclasses
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from groundup.core.compressed import open_decompressed
from groundup.core.errors import ConfigError, DataError
from groundup.corpus.corpus_manifest import EXCLUDED, CorpusManifest, Dropped, find_corpus_manifest
from groundup.corpus.parquet import plain, read_rows
from groundup.corpus.sources import PARQUET_ENDING


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
        if "rule" not in self.fields:
            return "kept"
        detail = f" ({self.fields['detail']})" if "detail" in self.fields else ""
        return f"{self.fields['rule']}: {self.fields['reason']}{detail}"

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
        reason: A rule (``length``), a rule and its reason (``length:too short``) or detail (``language:zh``).

    Raises:
        ConfigError: Nothing was dropped for it; names the reasons that there are.
    """
    rule, _, why = (part.strip() for part in reason.partition(":"))
    entries = _dropped(corpus)
    if not any(entry.rule == rule and why in ("", entry.reason, *entry.details) for entry in entries):
        there = ", ".join(f"{entry.rule}:{entry.reason}" for entry in entries) or "none"
        raise ConfigError(f"nothing was dropped for {reason!r}", where="--reason", fix=f"Reasons: {there}.")
    for found in _lines(corpus, EXCLUDED):
        if found.fields["rule"] == rule and why in ("", found.fields["reason"], found.fields.get("detail")):
            yield found


def first_dropped(corpus: Path, number: int, most_lines: int) -> dict[tuple[str, str], list[Found]]:
    """The first documents that were dropped for each rule and reason, as far as they are soon found.

    Args:
        corpus: The folder.
        number: Of each.
        most_lines: To look through.
    """
    found: dict[tuple[str, str], list[Found]] = {}
    wanted = {(entry.rule, entry.reason): min(number, entry.documents) for entry in _dropped(corpus)}
    for each in itertools.islice(_lines(corpus, EXCLUDED), most_lines):
        reason = each.fields["rule"], each.fields["reason"]
        if len(some := found.setdefault(reason, [])) < number:
            some.append(each)
            wanted[reason] -= 1
            if not any(wanted.values()):
                break
    return found


def trace(corpus: Path, name: str) -> list[Found]:
    """The documents, kept or dropped, that have this id, URL or origin; parts of a cut document with it."""
    files = [*corpus_manifest(corpus).documents, EXCLUDED]
    everything = itertools.chain.from_iterable(_lines(corpus, file) for file in files)
    return [found for found in everything if _is_named(found.fields, name)]


def _dropped(corpus: Path) -> tuple[Dropped, ...]:
    return corpus_manifest(corpus).counts.dropped


def _is_named(fields: dict[str, Any], name: str) -> bool:
    identity: str = fields["id"]
    origin = fields.get("meta", {}).get("origin")
    return name in (identity, fields["url"], origin) or identity.startswith(f"{name}#")


def _lines(corpus: Path, file: str) -> Iterator[Found]:
    if file.endswith(PARQUET_ENDING):
        rows = itertools.chain.from_iterable(rows for rows, _ in read_rows(corpus / file, None))
        for number, row in enumerate(rows, 1):
            yield Found(f"{file}:{number}", plain(row))
        return
    with open_decompressed(corpus / file) as stream:
        for number, line in enumerate(stream, 1):
            yield Found(f"{file}:{number}", orjson.loads(line))
