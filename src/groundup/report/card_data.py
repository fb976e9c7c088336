"""The part of a model card that says what the model learned from, as far as the data's own manifests tell."""

import datetime
import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path

from groundup.core.files import checksum
from groundup.core.progress import human_count
from groundup.corpus.corpus_manifest import CorpusManifest
from groundup.report.card_stages import CardStage
from groundup.report.card_text import bullets, place, table, without_places
from groundup.report.corpus_page import human_bytes, share
from groundup.report.data_sources import CorpusFolder, DataSource, TokenFiles, data_sources, filters_of

_MOST_NAMES = 12
_MOST_REASONS = 12
_LEAST_SHARE = 0.01
"""Languages of fewer documents are not named."""


def data_of(stage: CardStage) -> str:
    """What a stage learned from, in Markdown."""
    sources = list(data_sources(stage.run))
    if not sources:
        return "No record tells what it learned from.\n\n"
    facts = "".join(f"{fact}. " for fact in stage.facts)
    return (f"{facts.strip()}\n\n" if facts else "") + "".join(_source(stage, source) for source in sources)


def corpora_of(stage: CardStage) -> list[CorpusManifest]:
    """The manifests of the corpora that a stage's tokens were made of."""
    return [
        corpus.manifest for source in data_sources(stage.run) for corpus in source.corpora if corpus.manifest
    ]


def was_searched(stage: CardStage) -> bool:
    """Whether items of evaluation tasks were searched for in all of a stage's tokens."""
    found = [tokens.manifest for source in data_sources(stage.run) for tokens in source.tokens]
    return bool(found) and all(one is not None and one.about.overlaps is not None for one in found)


def languages_of(manifests: list[CorpusManifest]) -> Mapping[str, int]:
    """The languages that documents were found to be in -> documents; rare ones are left out.

    Python's standard library is of the language that the hub calls ``code``.
    """
    found: dict[str, int] = {}
    for manifest in manifests:
        stages = manifest.about.recipe.get("stages") or []
        if any(isinstance(one, dict) and one.get("python_library") for one in stages):
            found["code"] = found.get("code", 0) + manifest.counts.documents
        for name, documents in manifest.counts.profile.languages.items():
            found[name] = found.get(name, 0) + documents
    total = sum(found.values())
    kept = {name: documents for name, documents in found.items() if documents >= _LEAST_SHARE * total}
    return dict(sorted(kept.items(), key=lambda pair: -pair[1]))


def _source(stage: CardStage, source: DataSource) -> str:
    role = source.name.partition(".")[0] if source.name.startswith(("validation", "test")) else ""
    weight = f" (weight {source.weight})" if source.weight is not None else ""
    parts = [f"**`{place(source.given)}`**{weight}{f', for {role}' if role else ''}\n\n"]
    parts += [_tokens(tokens, source) for tokens in source.tokens if tokens.manifest]
    if len(parts) == 1:
        parts.append(_records(stage, source))
    parts += [_corpus(corpus) for corpus in source.corpora]
    return "".join(parts)


def _tokens(found: TokenFiles, source: DataSource) -> str:
    manifest = found.manifest
    assert manifest is not None, "the caller has looked"
    counts, tokenizer = manifest.counts, manifest.about.tokenizer
    text = f" of {human_bytes(counts.text_bytes)} of text" if counts.text_bytes is not None else ""
    lines = [
        f"{counts.tokens:,} tokens in {counts.documents:,} documents{text}, by a tokenizer of"
        f" {tokenizer.vocab_size:,} ids ({tokenizer.kind}); fingerprint `{manifest.fingerprint}`"
    ]
    lines += [
        f"`{name}`: {human_bytes(record.bytes)}, checksum `{record.checksum}`"
        for name, record in manifest.files.items()
        if name.endswith(".bin")
    ]
    if manifest.about.overlaps is None:
        lines.append("decontamination: evaluation items were not looked for in all of it")
    elif not source.corpora:  # which tell it themselves
        lines += [f"decontamination: {without_places(one.describe())}" for one in manifest.about.overlaps]
    if found.sources:
        lines.append(f"documents from {_names({place(name): f'{n:,}' for name, n in found.sources.items()})}")
    return bullets(lines)


def _records(stage: CardStage, source: DataSource) -> str:
    files = [source.path] if source.path.is_file() else []
    if source.path.is_dir():
        files = sorted(path for path in source.path.rglob("*") if path.is_file())
    if not files:
        if source.is_there:
            return "No manifest lies beside these files, so it is not known what they were made of.\n\n"
        return "It was not there any more when this card was written.\n\n"
    began = min((float(one.get("time") or 0) for one in stage.run.starts), default=0.0)
    rows = []
    for path in files[:_MOST_NAMES]:
        changed = path.stat().st_mtime
        note = f"changed {_day(changed)}, after the run began" if began and changed > began else ""
        rows.append(
            [
                path.name,
                human_bytes(path.stat().st_size),
                f"`{checksum(path, algorithm='sha256').partition(':')[2]}`",
                note,
            ]
        )
    more = f"{len(files) - len(rows):,} more files.\n\n" if len(files) > len(rows) else ""
    return table(("file", "size", "SHA-256", ""), rows) + more


def _corpus(corpus: CorpusFolder) -> str:
    manifest = corpus.manifest
    if manifest is None:
        return f"The manifest of the corpus `{corpus.folder.name}` cannot be read.\n\n"
    counts = manifest.counts
    lines = [
        f"corpus `{corpus.folder.name}` (fingerprint `{manifest.fingerprint}`):"
        f" {counts.documents:,} documents, of {counts.documents_read:,} that were read;"
        f" {human_bytes(counts.bytes)} of {human_bytes(counts.bytes_read)} of text"
        f" ({share(counts.bytes, counts.bytes_read)});"
        f" {counts.bad_records.bad:,} records could not be read",
        f"from {_inputs(manifest)}",
        *_languages(manifest),
        *(f"decontamination: {without_places(one.describe())}" for one in manifest.overlaps or ()),
    ]
    stages = [
        [at, one.kind, filters_of(manifest, at - 1), f"{one.documents:,}", human_bytes(one.bytes)]
        for at, one in enumerate(counts.stages, 1)
    ]
    return (
        bullets(lines)
        + table(("", "stage", "filters", "documents left", "text left"), stages)
        + _dropped(manifest)
    )


def _dropped(manifest: CorpusManifest) -> str:
    entries = sorted(manifest.counts.dropped, key=lambda entry: -entry.documents)[:_MOST_REASONS]
    rows = [
        [f"{entry.rule}: {entry.reason}", f"{entry.documents:,}", human_bytes(entry.bytes)]
        for entry in entries
    ]
    return table(("dropped for", "documents", "text"), rows) if rows else ""


def _languages(manifest: CorpusManifest) -> Iterator[str]:
    found = manifest.counts.profile.languages
    if found:
        total = sum(found.values())
        shares = [f"{name} {share(n, total)}" for name, n in sorted(found.items(), key=lambda pair: -pair[1])]
        yield f"languages found: {', '.join(shares[:_MOST_NAMES])}"


def _inputs(manifest: CorpusManifest) -> str:
    stages = manifest.about.recipe.get("stages") or []
    if any(isinstance(one, dict) and one.get("python_library") for one in stages):
        return f"the standard library of Python, {len(manifest.inputs):,} files"
    said = {place(name): str(value).partition(",")[0] for name, value in manifest.inputs.items()}
    return _names(said)


def _names(said: Mapping[str, str]) -> str:
    shown = [f"`{name}` ({value})" for name, value in itertools.islice(said.items(), _MOST_NAMES)]
    if len(said) > len(shown):
        shown.append(f"and {human_count(len(said) - len(shown))} more")
    return f"{len(said):,} {'file' if len(said) == 1 else 'files'}: {', '.join(shown)}"


def _day(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds, tz=datetime.UTC).date().isoformat()


def names_of_stage(stage: CardStage) -> str:
    """The names of a stage's data, for a sentence."""
    return ", ".join(f"`{Path(place(source.given)).name}`" for source in data_sources(stage.run))
