"""What the documents of a corpus are like, as plots: how long, in which languages, from where."""

import itertools
import math
from collections.abc import Iterator, Sequence

from groundup.core.progress import human_count
from groundup.corpus.corpus_manifest import CorpusCounts
from groundup.report.page import Section, text
from groundup.report.plots import Bar, Series, bars, histogram

_MOST_ROWS = 20
_NAMES = {
    "ar": "Arabic", "bg": "Bulgarian", "ca": "Catalan", "cs": "Czech", "da": "Danish", "de": "German",
    "el": "Greek", "en": "English", "es": "Spanish", "fa": "Persian", "fi": "Finnish", "fr": "French",
    "he": "Hebrew", "hi": "Hindi", "hu": "Hungarian", "id": "Indonesian", "it": "Italian", "ja": "Japanese",
    "ko": "Korean", "la": "Latin", "nl": "Dutch", "no": "Norwegian", "pl": "Polish", "pt": "Portuguese",
    "ro": "Romanian", "ru": "Russian", "sv": "Swedish", "th": "Thai", "tr": "Turkish", "uk": "Ukrainian",
    "vi": "Vietnamese", "zh": "Chinese",
}  # fmt: skip


def lengths(counts: CorpusCounts) -> Iterator[Section]:
    """How long the documents are that were read, and those that are kept."""
    read, kept = counts.read_profile.lengths, counts.profile.lengths
    filled = [place for values in (read, kept) for place, count in enumerate(values) if count]
    if not filled:
        return
    first, end = min(filled) // 2 * 2, max(filled) + 1
    bounds = [math.ceil(2 ** (place / 2)) for place in range(first, end + 1)]
    plot = histogram(
        "Documents by length in characters",
        bounds,
        [
            Series("kept", _ranged(kept, first, end), "one"),
            Series("read", _ranged(read, first, end), "three"),
        ],
        unit="documents",
        label_step=2,
    )
    note = "Documents by their number of characters; each range ends 1.41 times as far as it begins."
    if median := _median(kept):
        note += f" Half of those kept have fewer than about {human_count(median)}."
    yield Section("Lengths", plot, note)


def languages(counts: CorpusCounts) -> Iterator[Section]:
    """Languages of what is kept, and of what was dropped over its language."""
    kept = counts.profile.languages
    dropped: dict[str, int] = {}
    for entry in counts.dropped:
        if entry.rule == "language":
            for name, count in entry.details.items():
                dropped[name] = dropped.get(name, 0) + count
    names = sorted({*kept, *dropped}, key=lambda name: (-kept.get(name, 0) - dropped.get(name, 0), name))
    if not names:
        return
    rows = [_language(name, kept.get(name, 0), dropped.get(name, 0)) for name in names[:_MOST_ROWS]]
    if rest := names[_MOST_ROWS:]:
        sums = [sum(found.get(name, 0) for name in rest) for found in (kept, dropped)]
        rows.append(_language(f"{len(rest)} others", *sums))
    if unknown := counts.documents - sum(kept.values()):
        rows.append(_language("not told", unknown, 0))
    note = "As the filter for languages found them, or where there is none, as pages declare them."
    yield Section("Languages", bars(rows, names=("kept", "dropped over it")), note)


def domains(counts: CorpusCounts) -> Iterator[Section]:
    """Where the documents are from, as far as they have URLs."""
    kept, read = counts.profile, counts.read_profile
    if not kept.urls:
        return
    rows = [
        Bar(
            text(name),
            (count, max(0, read.domains.get(name, 0) - count)),
            f"{count:,} <small>{count / kept.urls:.1%}</small>",
        )
        for name, count in itertools.islice(_sorted(kept.domains), _MOST_ROWS)
    ]
    note = (
        f"The {len(rows)} most frequent of the domains of {kept.urls:,} documents with a URL. "
        f"All others: {kept.urls - sum(int(row.parts[0]) for row in rows):,} documents."
    )
    yield Section("Domains", bars(rows, names=("kept", "dropped")), note)


def _language(name: str, kept: int, dropped: int) -> Bar:
    known = f"{_NAMES[name]} <small>{text(name)}</small>" if name in _NAMES else text(name)
    value = f"{kept:,}" + (f" <small>−{dropped:,}</small>" if dropped else "")
    return Bar(known, (kept, dropped), value)


def _sorted(counts: dict[str, int]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))


def _ranged(values: Sequence[int], first: int, end: int) -> list[int]:
    return [values[place] if place < len(values) else 0 for place in range(first, end)]


def _median(values: Sequence[int]) -> float:
    """Characters that half of the documents stay below, within a range by its share."""
    half, before = sum(values) / 2, 0
    for place, count in enumerate(values):
        if count and before + count >= half:
            return float(2 ** ((place + (half - before) / count) / 2))
        before += count
    return 0.0
