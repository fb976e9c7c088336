"""The page of a corpus, made of what its folder holds: the manifest, and what was dropped."""

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

import yaml

from groundup.core.files import atomic_write
from groundup.core.progress import human_count
from groundup.corpus.corpus_manifest import CorpusManifest, Dropped
from groundup.corpus.look_up import Found, corpus_manifest, first_dropped
from groundup.report.page import Section, details, link, page, table, text, tiles
from groundup.report.plots import Bar, bars
from groundup.report.profile_plots import domains, languages, lengths

REPORT = "report.html"
_EXAMPLES = 3
_EXAMPLE_CHARACTERS = 300
_MOST_LINES = 200_000  # of what was dropped, to look for examples in
_MOST_SOURCES = 200
_DUPLICATES = ("exact_duplicate", "near_duplicate")


def write_corpus_page(corpus: Path, output: Path | None = None) -> Path:
    """Writes the page of a corpus, into its folder unless told otherwise; returns where.

    Raises:
        DataError: The folder holds no finished corpus.
    """
    manifest = corpus_manifest(corpus)
    examples = first_dropped(corpus, _EXAMPLES, _MOST_LINES)
    path = output or corpus / REPORT
    with atomic_write(path) as file:
        file.write(corpus_page(corpus.absolute().name, manifest, examples).encode())
    return path


def corpus_page(name: str, manifest: CorpusManifest, examples: dict[tuple[str, str], list[Found]]) -> str:
    """The page of a corpus.

    Args:
        name: Of the corpus.
        manifest: Its manifest.
        examples: Rule and reason -> documents that were dropped.
    """
    counts = manifest.counts
    sections = [
        Section(
            "Stages",
            _stages(manifest),
            "What each stage left of the documents that were read, and what it dropped.",
        ),
        *_dropped(manifest, examples),
        *lengths(counts),
        *languages(counts),
        *domains(counts),
        *_of_rules(manifest, _DUPLICATES, "Duplicates", "Of each group of like documents, one was kept."),
        *_of_rules(
            manifest,
            ("decontaminate",),
            "Evaluation items",
            "Documents that shared words with items of tasks: these were cut out, or the document dropped.",
        ),
        *_bad_records(manifest),
        Section("Recipe", f'<pre tabindex="0"><code>{text(_recipe(manifest))}</code></pre>'),
        *_provenance(manifest),
    ]
    return page(name, "corpus report", _figures(manifest), sections)


def human_bytes(size: float) -> str:
    """``1234567`` -> ``1.23 MB``."""
    count = human_count(size)
    return f"{count[:-1]} {count[-1]}B" if count[-1].isalpha() else f"{count} B"


def share(part: float, whole: float) -> str:
    """``12.3%``; nothing of nothing."""
    if not whole:
        return ""
    return f"{part / whole:.1%}" if part / whole >= 0.0005 or not part else "<0.1%"


def _figures(manifest: CorpusManifest) -> str:
    counts = manifest.counts
    mean = counts.bytes / max(1, counts.documents)
    dropped = sum(entry.documents for entry in counts.dropped)
    edited = sum(counts.edited.values())
    return tiles(
        [
            (
                "documents",
                f"{counts.documents:,}",
                f"{share(counts.documents, counts.documents_read)} of those read",
            ),
            (
                "text",
                human_bytes(counts.bytes),
                f"{share(counts.bytes, counts.bytes_read)} of the bytes read",
            ),
            ("mean length", human_bytes(mean), "of a document, in UTF-8"),
            ("dropped", f"{dropped:,}", f"for {len(counts.dropped):,} reasons"),
            ("edits", f"{edited:,}", "documents changed by a filter"),
            ("bad records", f"{counts.bad_records.bad:,}", "could not be read"),
        ]
    )


def _stages(manifest: CorpusManifest) -> str:
    counts = manifest.counts
    before, before_bytes = counts.documents_read, counts.bytes_read
    rows, lines = [], []
    for number, stage in enumerate(counts.stages):
        dropped = [entry for entry in counts.dropped if entry.stage == number]
        lost = sum(entry.documents for entry in dropped)
        change = f"<small>−{lost:,}</small> " if lost else ""
        name = f"{number + 1}. {text(stage.kind)}"
        rows.append(Bar(name, (stage.documents, lost), f"{change}{stage.documents:,}"))
        lines.append(
            [
                *(
                    name,
                    f"{before:,}",
                    f"{lost:,}",
                    f"{sum(stage.edited.values()):,}",
                    f"{stage.documents:,}",
                ),
                *(
                    human_bytes(before_bytes),
                    human_bytes(stage.bytes),
                    text(share(stage.bytes, counts.bytes_read)),
                ),
            ]
        )
        before, before_bytes = stage.documents, stage.bytes
    head = ("stage", "in", "dropped", "edited", "out", "text in", "text out", "of the text read")
    edits = [
        [text(rule), f"{count:,}", text(share(count, counts.documents_read))]
        for rule, count in sorted(counts.edited.items(), key=lambda pair: -pair[1])
        if count
    ]
    edited = table("Documents that a filter changed", ("filter", "documents", "of those read"), edits)
    return (
        bars(rows, total=float(counts.documents_read), names=("documents left", "dropped here"))
        + details("Show as a table", table("Documents and text by stage", head, lines))
        + (details("Edits by filter", edited) if edits else "")
    )


def _dropped(manifest: CorpusManifest, examples: dict[tuple[str, str], list[Found]]) -> Iterator[Section]:
    counts = manifest.counts
    if not counts.dropped:
        return
    rows = [
        Bar(
            f"{text(entry.rule)}: {text(entry.reason)}",
            (0, entry.documents),
            f"{entry.documents:,} <small>{text(share(entry.documents, counts.documents_read))}</small>",
            _examples(entry, examples.get((entry.rule, entry.reason), [])),
        )
        for entry in sorted(counts.dropped, key=lambda entry: -entry.documents)
    ]
    note = "Why documents were left out, the most frequent reason first, with the first examples of each."
    yield Section("Dropped", bars(rows), note)


def _examples(entry: Dropped, found: Sequence[Found]) -> str:
    quotes = "".join(
        f"<blockquote><cite>{_named(each)}</cite>{text(_excerpt(str(each.fields['text'])))}</blockquote>"
        for each in found
    )
    if not found:
        quotes = "".join(f"<blockquote><cite>{link(name)}</cite></blockquote>" for name in entry.examples)
    details_of = ", ".join(f"{name} {count:,}" for name, count in _largest(entry.details, 12))
    head = f"<p><small>{text(details_of)}</small></p>" if details_of else ""
    size = f"{human_bytes(entry.bytes)} of text; " if entry.bytes else ""
    return details(f"{size}examples", head + quotes)


def _named(found: Found) -> str:
    identity, url = str(found.fields["id"]), str(found.fields["url"])
    return link(url, identity) if url else link(identity)


def _excerpt(whole: str) -> str:
    line = " ".join(whole[: 4 * _EXAMPLE_CHARACTERS].split())
    return line[:_EXAMPLE_CHARACTERS] + ("…" if len(line) > _EXAMPLE_CHARACTERS else "")


def _of_rules(manifest: CorpusManifest, rules: Sequence[str], title: str, note: str) -> Iterator[Section]:
    """What stages of a kind did, where the recipe has some."""
    counts = manifest.counts
    entries = [entry for entry in counts.dropped if entry.rule in rules]
    edited = {rule: counts.edited[rule] for rule in rules if counts.edited.get(rule)}
    kinds = {rule.replace("_duplicate", "_dedup") for rule in rules}
    if not any(stage.kind in kinds for stage in counts.stages):
        return
    reached = [counts.documents_read, *(stage.documents for stage in counts.stages)]
    rows = [
        [
            f"{text(entry.rule)}: {text(entry.reason)}",
            *(
                f"{entry.documents:,}",
                text(share(entry.documents, reached[entry.stage])),
                human_bytes(entry.bytes),
            ),
        ]
        for entry in entries
    ]
    rows += [
        [f"{text(rule)}: text cut out", f"{count:,}", text(share(count, counts.documents_read)), ""]
        for rule, count in edited.items()
    ]
    head = ("what", "documents", "of those that came to it", "text dropped")
    body = table(title, head, rows) if rows else "<p>None was found.</p>"
    yield Section(title, body, note)


def _bad_records(manifest: CorpusManifest) -> Iterator[Section]:
    bad = manifest.counts.bad_records
    if not bad.bad:
        return
    rows = [[text(reason), f"{count:,}"] for reason, count in _largest(bad.by_reason, 50)]
    first = "".join(f"<li><code>{text(line)}</code></li>" for line in bad.offenders[:20])
    body = table("Bad records", ("reason", "records"), rows) + details(
        "The first of them", f"<ul>{first}</ul>"
    )
    yield Section("Bad records", body, "What could not be read, and so never became a document.")


def _recipe(manifest: CorpusManifest) -> str:
    return yaml.safe_dump(manifest.about.recipe, sort_keys=False, allow_unicode=True, width=88)


def _provenance(manifest: CorpusManifest) -> Iterator[Section]:
    sources = [
        [text(name), text(said)] for name, said in itertools.islice(manifest.inputs.items(), _MOST_SOURCES)
    ]
    more = len(manifest.inputs) - len(sources)
    note = f"{more:,} more are in manifest.json." if more else ""
    listed = table("Files that were read", ("file", "size and time of change"), sources)
    listed = f'<div class="text">{listed}</div>'
    yield Section("Sources", details(f"{len(manifest.inputs):,} entries", listed), note)
    files = [
        [f"<code>{text(name)}</code>", human_bytes(entry.bytes), f"<code>{text(entry.checksum)}</code>"]
        for name, entry in manifest.files.items()
    ]
    made = [
        ["fingerprint of recipe and sources", f"<code>{text(manifest.fingerprint)}</code>"],
        ["groundup", text(manifest.groundup_version)],
        ["format of the manifest", str(manifest.format_version)],
    ]
    yield Section(
        "Provenance",
        f'<div class="text">{table("What made this corpus", ("what", "value"), made)}</div>'
        + details(
            f"{len(files):,} files", table("Files of this corpus", ("file", "size", "checksum"), files)
        ),
    )


def _largest(counts: dict[str, int], number: int) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))[:number]
