"""Files of a corpus that was built here are held to its manifest wherever they are read as a source."""

from pathlib import Path

from groundup.core.compressed import RecordedFile
from groundup.corpus.bad_records import DAMAGED_FILE, BadRecords
from groundup.corpus.corpus_manifest import EXCLUDED, MANIFEST, CorpusManifest, find_corpus_manifest
from groundup.corpus.sources import SourceFile


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
        if not path.name.startswith("documents-") and path.name != EXCLUDED:
            return None
        if path.parent not in self._of_folder:
            self._of_folder[path.parent] = find_corpus_manifest(path.parent)
        manifest = self._of_folder[path.parent]
        if manifest is None or path.name not in manifest.files:
            return None
        entry = manifest.files[path.name]
        content = f"{manifest.counts.documents:,} documents" if manifest.documents == [path.name] else ""
        recorded = RecordedFile(path.parent / MANIFEST, entry.bytes, entry.checksum, content)
        mismatch = recorded.size_mismatch(file.size_bytes)
        if mismatch and bad_records and bad_records.policy.is_fatal(DAMAGED_FILE):
            bad_records.add(str(path), DAMAGED_FILE, detail=mismatch)
        return recorded
