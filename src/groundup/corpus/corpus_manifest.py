"""What a finished corpus folder says of itself, and which of its files hold its documents."""

from pathlib import Path
from typing import Any, Literal

from groundup import __version__
from groundup.core.config_class import NotNegative, config
from groundup.core.errors import DataError
from groundup.core.files import read_json
from groundup.core.manifest import FileRecord, manifest_from
from groundup.corpus.bad_records import BadRecordCounts
from groundup.corpus.overlap_report import Overlaps
from groundup.corpus.profile import Profile

EXCLUDED = "excluded.jsonl.zst"
"""What was dropped of a corpus."""
MANIFEST = "manifest.json"


@config
class Dropped:
    """The documents that one rule dropped for one reason.

    Attributes:
        stage: The number of the stage in the recipe.
        rule: The filter's or the stage's ``kind``, or ``empty``.
        reason: Why.
        documents: How many.
        bytes: Their text when it was dropped, UTF-8.
        examples: The ids of the first three.
        details: What is particular to some, such as their language -> how many.
    """

    stage: NotNegative
    rule: str
    reason: str
    documents: NotNegative
    bytes: NotNegative
    examples: tuple[str, ...]
    details: dict[str, NotNegative]


@config
class StageCounts:
    """What a stage left: documents, their bytes, and how many each filter changed."""

    kind: str
    documents: NotNegative
    bytes: NotNegative
    edited: dict[str, NotNegative]


@config
class CorpusCounts:
    """What became of the documents of the sources. Bytes are of the texts alone, in UTF-8.

    Attributes:
        documents_read: Documents in the sources, without bad records.
        bytes_read: Of those.
        documents: Documents kept.
        bytes: Of those, after editing.
        edited: Filter -> how many documents it changed.
        dropped: By rule and reason, in the order of the stages.
        bad_records: What could not be read.
        stages: In their order.
        read_profile: What the documents that were read are like.
        profile: What those that are kept are like.
    """

    documents_read: NotNegative
    bytes_read: NotNegative
    documents: NotNegative
    bytes: NotNegative
    edited: dict[str, int]
    dropped: tuple[Dropped, ...]
    bad_records: BadRecordCounts
    stages: tuple[StageCounts, ...]
    read_profile: Profile
    profile: Profile


@config
class CorpusAbout:
    """The recipe that made a corpus, as plain values."""

    recipe: dict[str, Any]


@config
class CorpusManifest:
    """The manifest of a corpus.

    Attributes:
        overlaps: What it holds of the items of evaluation tasks; None where it was compared with none.
    """

    kind: Literal["corpus"] = "corpus"
    fingerprint: str
    inputs: dict[str, str]
    counts: CorpusCounts
    files: dict[str, FileRecord]
    about: CorpusAbout
    overlaps: Overlaps | None = None
    format_version: Literal[1] = 1
    groundup_version: str = __version__

    @property
    def documents(self) -> list[str]:
        """The names of the files of documents, in order."""
        return sorted(name for name in self.files if name.startswith("documents-"))


def shard_name(kind: str, number: int, total: int) -> str:
    """``documents-00003-of-00064``: the files of a shard begin with it, and sort in order."""
    return f"{kind}-{number:05d}-of-{total:05d}"


def find_corpus_manifest(folder: Path) -> CorpusManifest | None:
    """The manifest of a corpus folder; None where there is none, or one of somebody else's.

    Raises:
        DataError: It is of ours, and damaged or of a newer format.
    """
    path = folder / MANIFEST
    try:
        value: Any = read_json(path)
    except DataError:  # there is none, or it is not JSON and so not one of ours
        return None
    if not isinstance(value, dict) or value.get("kind") != "corpus" or "groundup_version" not in value:
        return None
    return manifest_from(value, CorpusManifest, where=path)
