"""Files of a corpus that was built here are held to its manifest wherever they are read as a source."""

from pathlib import Path
from typing import Any, Literal

from groundup import __version__
from groundup.core.compressed import RecordedFile
from groundup.core.config_class import config
from groundup.core.errors import DataError
from groundup.core.files import read_json
from groundup.core.manifest import FileRecord, manifest_from
from groundup.corpus.bad_records import DAMAGED_FILE, BadRecords
from groundup.corpus.report import CorpusCounts
from groundup.corpus.sources import SourceFile

DOCUMENTS = "documents.jsonl.zst"
"""The documents of a corpus folder."""
EXCLUDED = "excluded.jsonl.zst"
"""What was dropped of a corpus."""
MANIFEST = "manifest.json"


@config
class CorpusAbout:
    """The config that built a corpus, for people: later versions may know other fields."""

    config: dict[str, Any]


@config
class CorpusManifest:
    """What a corpus folder holds and what it was made from; fields as of every manifest."""

    kind: Literal["corpus"] = "corpus"
    fingerprint: str
    inputs: dict[str, str]
    counts: CorpusCounts
    files: dict[str, FileRecord]
    about: CorpusAbout
    format_version: Literal[1] = 1
    groundup_version: str = __version__


class CorpusManifests:
    """The manifests beside source files; each is read once."""

    def __init__(self) -> None:
        self._of_folder: dict[Path, CorpusManifest | None] = {}

    def hold(self, file: SourceFile, bad_records: BadRecords | None = None) -> RecordedFile | None:
        """What a manifest of ours records of a file; None for a file that no such manifest lists.

        A file of another size than recorded is damaged. ``bad_records``, where given, is told at once if that
        ends the run, before hours are spent on reading; otherwise whoever reads it finds out at its end.

        Raises:
            DataError: The size is not the recorded one, or the manifest is of a newer format.
        """
        path = file.path
        if path.name not in (DOCUMENTS, EXCLUDED):
            return None
        if path.parent not in self._of_folder:
            self._of_folder[path.parent] = _corpus_manifest(path.parent / MANIFEST)
        manifest = self._of_folder[path.parent]
        if manifest is None or path.name not in manifest.files:
            return None
        entry = manifest.files[path.name]
        content = f"{manifest.counts.documents:,} documents" if path.name == DOCUMENTS else ""
        recorded = RecordedFile(path.parent / MANIFEST, entry.bytes, entry.checksum, content)
        mismatch = recorded.size_mismatch(file.size_bytes)
        if mismatch and bad_records and bad_records.policy.is_fatal(DAMAGED_FILE):
            bad_records.add(str(path), DAMAGED_FILE, detail=mismatch)
        return recorded


def _corpus_manifest(path: Path) -> CorpusManifest | None:
    """The manifest of a corpus; None where the file is missing or somebody else's."""
    try:
        value: Any = read_json(path)
    except DataError:  # there is none, or it is not JSON and so not one of ours
        return None
    if not isinstance(value, dict) or value.get("kind") != "corpus" or "groundup_version" not in value:
        return None
    return manifest_from(value, CorpusManifest, where=path)
