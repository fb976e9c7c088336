"""Where the data of a run came from: token files, the corpora that they were made of, and their sources."""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from groundup.core.errors import GroundupError
from groundup.corpus.corpus_manifest import CorpusManifest, find_corpus_manifest
from groundup.report.corpus_page import human_bytes, share
from groundup.report.page import details, table, text
from groundup.report.run_records import RunRecords
from groundup.tokens.dataset.dataset_manifest import find_manifest
from groundup.tokens.dataset.document_sources import DocumentSources, document_sources_path
from groundup.tokens.dataset.indexed import strip_ending

_MOST_INPUTS = 50
_MOST_SOURCES = 1000
_MOST_PREFIXES = 20
_DEEPEST = 5


def provenance(run: RunRecords) -> Iterator[str]:
    """What is known of each source of a run's data, down to the first files, as HTML."""
    named = {
        key.removeprefix("data.").removesuffix(".path"): str(value)
        for key, value in run.config.items()
        if key.startswith("data.") and key.endswith("path") and value
    }
    for name, given in named.items():
        weight = run.config.get(f"data.{name}.weight")
        said = f" (weight {text(weight)})" if weight is not None else ""
        yield f"<h3><code>{text(given)}</code>{said}</h3>"
        yield from _tokens(run, given)


def _tokens(run: RunRecords, given: str) -> Iterator[str]:
    path = run.path(given)
    prefixes = (
        [path.with_suffix("") for path in sorted(path.glob("*.idx"))]
        if path.is_dir()
        else [strip_ending(path)]
    )
    corpora: dict[Path, None] = {}
    for prefix in prefixes[:_MOST_PREFIXES]:
        try:
            manifest = find_manifest(prefix)
        except GroundupError as error:
            yield f'<p class="warn">{text(error)}</p>'
            continue
        if manifest is None:
            yield from _records(path)
            continue
        counts, tokenizer = manifest.counts, manifest.about.tokenizer
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
            ["fingerprint", f"<code>{text(manifest.fingerprint)}</code>"],
            ["groundup", text(manifest.groundup_version)],
        ]
        yield f'<div class="text">{table(f"Tokens {prefix.name}", ("what", "value"), rows)}</div>'
        sources = _sources(prefix)
        yield _inputs("Made of", "documents", {name: f"{count:,}" for name, count in sources.items()})
        corpora |= dict.fromkeys(_folders(prefix.parent, run, sources))
    for folder in corpora:
        yield from _corpus(folder, run, 0)


def _sources(prefix: Path) -> dict[str, int]:
    if not document_sources_path(prefix).is_file():
        return {}
    try:
        return DocumentSources(prefix).documents_by_source(_MOST_SOURCES)
    except GroundupError:  # damaged; `groundup tokens verify` says how
        return {}


def _records(path: Path) -> Iterator[str]:
    if path.is_file() and path.suffix in (".jsonl", ".json", ".zst", ".gz", ".parquet"):
        yield f"<p>A file of records, {human_bytes(path.stat().st_size)}.</p>"
    elif path.exists() or path.with_name(path.name + ".bin").exists():
        yield "<p>No manifest lies beside these files, so it is not known what they were made of.</p>"
    else:
        yield "<p>Is not where the run found it; the report was made elsewhere, or the data were moved.</p>"


def _folders(near: Path, run: RunRecords, inputs: Iterable[str]) -> Iterator[Path]:
    """The folders of inputs that are corpora; their paths are relative to where the tokens were built."""
    for parent in {Path(name).parent: None for name in inputs}:
        for candidate in (run.path(str(parent)), near / parent, near / parent.name):
            if (candidate / "manifest.json").is_file():
                yield candidate
                break


def _corpus(folder: Path, run: RunRecords, depth: int) -> Iterator[str]:
    try:
        manifest = find_corpus_manifest(folder)
    except GroundupError as error:
        yield f'<p class="warn">{text(error)}</p>'
        return
    if manifest is None:
        return
    counts = manifest.counts
    yield f"<h4>Corpus <code>{text(folder.name)}</code></h4>"
    yield (
        f"<p>{counts.documents:,} of {counts.documents_read:,} documents read"
        f" ({text(share(counts.documents, counts.documents_read))}), {human_bytes(counts.bytes)} of"
        f" {human_bytes(counts.bytes_read)} of text; {counts.bad_records.bad:,} records were bad.</p>"
    )
    stages = [
        [
            f"{at}. {text(stage.kind)}",
            text(_filters(manifest, at - 1)),
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
    if depth < _DEEPEST:
        for below in _folders(folder.parent, run, manifest.inputs):
            yield from _corpus(below, run, depth + 1)


def _filters(manifest: CorpusManifest, at: int) -> str:
    stages = manifest.about.recipe.get("stages") or []
    stage = stages[at] if at < len(stages) and isinstance(stages[at], dict) else {}
    return ", ".join(str(each.get("kind")) for each in stage.get("filters") or [] if isinstance(each, dict))


def _inputs(title: str, said: str, inputs: Mapping[str, str]) -> str:
    if not inputs:
        return ""
    rows = [[text(name), text(value)] for name, value in itertools.islice(inputs.items(), _MOST_INPUTS)]
    listed = f'<div class="text">{table(title, ("file", said), rows)}</div>'
    more = f"<p>{len(inputs) - len(rows):,} more.</p>" if len(inputs) > len(rows) else ""
    return details(f"{title}: {len(inputs):,} {'file' if len(inputs) == 1 else 'files'}", listed + more)
