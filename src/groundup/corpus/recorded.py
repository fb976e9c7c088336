"""Files of a corpus that was built here are held to its manifest wherever they are read as a source."""

from collections.abc import Sequence
from pathlib import Path

from groundup.core.compressed import RecordedFile
from groundup.corpus.bad_records import DAMAGED_FILE, BadRecords
from groundup.corpus.corpus_manifest import EXCLUDED, MANIFEST, CorpusManifest, find_corpus_manifest
from groundup.corpus.overlap_report import Overlaps, joint_overlaps
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
        manifest = self._of(path.parent)
        if manifest is None or path.name not in manifest.files:
            return None
        entry = manifest.files[path.name]
        content = f"{manifest.counts.documents:,} documents" if manifest.documents == [path.name] else ""
        recorded = RecordedFile(path.parent / MANIFEST, entry.bytes, entry.checksum, content)
        mismatch = recorded.size_mismatch(file.size_bytes)
        if mismatch and bad_records and bad_records.policy.is_fatal(DAMAGED_FILE):
            bad_records.add(str(path), DAMAGED_FILE, detail=mismatch)
        return recorded

    def overlaps(self, files: Sequence[SourceFile]) -> Overlaps | None:
        """What files hold of the items of evaluation tasks; None where that of one is not known."""
        found: dict[Path, Overlaps | None] = {}
        for folder in {file.path.parent: None for file in files}:
            manifest = self._of(folder)
            names = manifest.documents if manifest else ()
            inside = [file for file in files if file.path.parent == folder]
            if manifest is None or any(file.path.name not in names for file in inside):
                return None
            found[folder] = manifest.overlaps
        return joint_overlaps(list(found.values()))

    def _of(self, folder: Path) -> CorpusManifest | None:
        if folder not in self._of_folder:
            self._of_folder[folder] = find_corpus_manifest(folder)
        return self._of_folder[folder]
