"""Where the data of a run came from, as HTML."""

import itertools
from collections.abc import Iterator, Mapping

from groundup.report.corpus_page import human_bytes, share
from groundup.report.data_sources import CorpusFolder, DataSource, TokenFiles, data_sources, filters_of
from groundup.report.page import details, table, text
from groundup.report.run_records import RunRecords

_MOST_INPUTS = 50


def provenance(run: RunRecords) -> Iterator[str]:
    """What is known of each source of a run's data, down to the first files, as HTML."""
    for source in data_sources(run):
        said = f" (weight {text(source.weight)})" if source.weight is not None else ""
        yield f"<h3><code>{text(source.given)}</code>{said}</h3>"
        for tokens in source.tokens:
            yield from _tokens(source, tokens)
        for corpus in source.corpora:
            yield from _corpus(corpus)


def _tokens(source: DataSource, found: TokenFiles) -> Iterator[str]:
    if found.manifest is None:
        yield f'<p class="warn">{text(found.damage)}</p>' if found.damage else _records(source)
        return
    counts, tokenizer = found.manifest.counts, found.manifest.about.tokenizer
    rows = [
        ["tokens", f"{counts.tokens:,}"],
        ["documents", f"{counts.documents:,}"],
        *([["text", human_bytes(counts.text_bytes)]] if counts.text_bytes is not None else []),
        *(
            [["bytes per token", f"{counts.text_bytes / counts.tokens:.3f}"]]
            if counts.text_bytes and counts.tokens
            else []
        ),
        ["tokenizer", f"{text(tokenizer.kind)}, {tokenizer.vocab_size:,} ids"],
        *([["bad records", f"{counts.bad_records.bad:,}"]] if counts.bad_records else []),
        ["fingerprint", f"<code>{text(found.manifest.fingerprint)}</code>"],
        ["groundup", text(found.manifest.groundup_version)],
    ]
    yield f'<div class="text">{table(f"Tokens {found.prefix.name}", ("what", "value"), rows)}</div>'
    yield _inputs("Made of", "documents", {name: f"{count:,}" for name, count in found.sources.items()})


def _records(source: DataSource) -> str:
    if source.is_record_file:
        return f"<p>A file of records, {human_bytes(source.path.stat().st_size)}.</p>"
    if source.is_there:
        return "<p>No manifest lies beside these files, so it is not known what they were made of.</p>"
    return "<p>Is not where the run found it; the report was made elsewhere, or the data were moved.</p>"


def _corpus(corpus: CorpusFolder) -> Iterator[str]:
    manifest = corpus.manifest
    if manifest is None:
        yield f'<p class="warn">{text(corpus.damage)}</p>'
        return
    counts = manifest.counts
    yield f"<h4>Corpus <code>{text(corpus.folder.name)}</code></h4>"
    yield (
        f"<p>{counts.documents:,} of {counts.documents_read:,} documents read"
        f" ({text(share(counts.documents, counts.documents_read))}), {human_bytes(counts.bytes)} of"
        f" {human_bytes(counts.bytes_read)} of text; {counts.bad_records.bad:,} records were bad.</p>"
    )
    stages = [
        [
            f"{at}. {text(stage.kind)}",
            text(filters_of(manifest, at - 1)),
            f"{stage.documents:,}",
            human_bytes(stage.bytes),
        ]
        for at, stage in enumerate(counts.stages, 1)
    ]
    yield table("Stages, and what each left", ("stage", "filters", "documents", "text"), stages)
    dropped = [
        [f"{text(entry.rule)}: {text(entry.reason)}", f"{entry.documents:,}", human_bytes(entry.bytes)]
        for entry in sorted(counts.dropped, key=lambda entry: -entry.documents)[:_MOST_INPUTS]
    ]
    if dropped:
        yield details("What was dropped", table("Dropped", ("reason", "documents", "text"), dropped))
    if manifest.overlaps is None:
        yield "<p>Evaluation items were not looked for in it (decontamination).</p>"
    else:
        said = "".join(f"<li>{text(entry.describe())}</li>" for entry in manifest.overlaps)
        yield f"<p>Evaluation items that stood in it (decontamination):</p><ul>{said}</ul>"
    yield _inputs("Sources", "size and time of change", manifest.inputs)


def _inputs(title: str, said: str, inputs: Mapping[str, str]) -> str:
    if not inputs:
        return ""
    rows = [[text(name), text(value)] for name, value in itertools.islice(inputs.items(), _MOST_INPUTS)]
    listed = f'<div class="text">{table(title, ("file", said), rows)}</div>'
    more = f"<p>{len(inputs) - len(rows):,} more.</p>" if len(inputs) > len(rows) else ""
    return details(f"{title}: {len(inputs):,} {'file' if len(inputs) == 1 else 'files'}", listed + more)
