"""Where the data of a run came from: token files, the corpora that they were made of, and their sources."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from groundup.core.errors import GroundupError
from groundup.corpus.corpus_manifest import CorpusManifest, find_corpus_manifest
from groundup.report.run_records import RunRecords
from groundup.tokens.dataset.dataset_manifest import TokensManifest, find_manifest
from groundup.tokens.dataset.document_sources import DocumentSources, document_sources_path
from groundup.tokens.dataset.indexed import strip_ending

_RECORDS = (".jsonl", ".ndjson", ".json", ".zst", ".gz", ".parquet", ".arrow")
_MOST_SOURCES = 1000
_MOST_PREFIXES = 20
_DEEPEST = 5


@dataclasses.dataclass(frozen=True, slots=True)
class TokenFiles:
    """Tokens that a run read.

    Attributes:
        prefix: Of the files.
        manifest: None where there is none.
        sources: File that documents came from -> how many, as far as it is recorded.
        damage: What is wrong with the manifest; empty for nothing.
    """

    prefix: Path
    manifest: TokensManifest | None = None
    sources: Mapping[str, int] = dataclasses.field(default_factory=dict)
    damage: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class CorpusFolder:
    """A corpus that tokens, or another corpus, were made of; without a manifest, what is wrong with it."""

    folder: Path
    manifest: CorpusManifest | None = None
    damage: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class DataSource:
    """What is known of one source of a run's data.

    Attributes:
        name: Of the setting: "" for ``data.path``, ``sources.prose``, ``validation``, ...
        given: The path as the config has it.
        path: Where that is.
        weight: As the config has it; None where it has none.
        tokens: The token files; a file of records has one entry without a manifest.
        corpora: What they were made of, each followed by those that it was made of.
    """

    name: str
    given: str
    path: Path
    weight: object
    tokens: tuple[TokenFiles, ...]
    corpora: tuple[CorpusFolder, ...]

    @property
    def is_record_file(self) -> bool:
        """Whether it is a file of records, not of tokens."""
        return self.path.is_file() and self.path.suffix in _RECORDS

    @property
    def is_there(self) -> bool:
        """Whether it lies where the run found it."""
        return self.path.exists() or self.path.with_name(self.path.name + ".bin").exists()


def data_sources(run: RunRecords) -> Iterator[DataSource]:
    """Follows each path of a run's data down to the first files."""
    named = {
        key.removeprefix("data.").removesuffix("path").removesuffix("."): str(value)
        for key, value in run.config.items()
        if key.startswith("data.") and key.endswith("path") and value
    }
    for name, given in named.items():
        path = run.path(given)
        tokens = tuple(_token_files(path))
        folders: dict[Path, None] = {}
        for one in tokens:
            folders |= dict.fromkeys(_folders(one.prefix.parent, run, one.sources))
        corpora = tuple(found for folder in folders for found in _corpora(folder, run, 0))
        yield DataSource(name, given, path, run.config.get(f"data.{name}.weight"), tokens, corpora)


def _token_files(path: Path) -> Iterator[TokenFiles]:
    prefixes = (
        [path.with_suffix("") for path in sorted(path.glob("*.idx"))]
        if path.is_dir()
        else [strip_ending(path)]
    )
    for prefix in prefixes[:_MOST_PREFIXES]:
        try:
            manifest = find_manifest(prefix)
        except GroundupError as error:
            yield TokenFiles(prefix, damage=str(error))
        else:
            yield TokenFiles(prefix, manifest, _sources(prefix) if manifest else {})


def _sources(prefix: Path) -> dict[str, int]:
    if not document_sources_path(prefix).is_file():
        return {}
    try:
        return DocumentSources(prefix).documents_by_source(_MOST_SOURCES)
    except GroundupError:  # damaged; `groundup tokens verify` says how
        return {}


def _folders(near: Path, run: RunRecords, inputs: Iterable[str]) -> Iterator[Path]:
    """The folders of inputs that are corpora; their paths are relative to where the tokens were built."""
    for parent in {Path(name).parent: None for name in inputs}:
        for candidate in (run.path(str(parent)), near / parent, near / parent.name):
            if (candidate / "manifest.json").is_file():
                yield candidate
                break


def _corpora(folder: Path, run: RunRecords, depth: int) -> Iterator[CorpusFolder]:
    try:
        manifest = find_corpus_manifest(folder)
    except GroundupError as error:
        yield CorpusFolder(folder, damage=str(error))
        return
    if manifest is None:
        return
    yield CorpusFolder(folder, manifest)
    if depth < _DEEPEST:
        for below in _folders(folder.parent, run, manifest.inputs):
            yield from _corpora(below, run, depth + 1)


def filters_of(manifest: CorpusManifest, at: int) -> str:
    """The filters of a stage of a corpus's recipe, by their kinds."""
    stages = manifest.about.recipe.get("stages") or []
    stage = stages[at] if at < len(stages) and isinstance(stages[at], dict) else {}
    return ", ".join(str(each.get("kind")) for each in stage.get("filters") or [] if isinstance(each, dict))
