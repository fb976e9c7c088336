"""Folders that a conversion writes: whole or absent, and never in place of anything but an earlier export."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

from safetensors import SafetensorError

from groundup import __version__
from groundup.checkpoint.lazy import LazyModel
from groundup.core.config_class import Positive, config
from groundup.core.errors import CheckpointError, MachineError
from groundup.core.files import atomic_folder, checksum, require_free_space
from groundup.core.manifest import FileRecord, describe_files, read_manifest, write_manifest

MANIFEST = "groundup_export.json"
CARD = "README.md"

Check = Callable[[Path], None]
"""Looks at a finished folder before it gets its name; what it raises leaves nothing of it behind."""


@config
class ExportAbout:
    """What was written.

    Attributes:
        format: Name of the format.
        dtype: Of the weights; None for Megatron-LM, which may hold several.
        tp: Degree of tensor parallelism of a checkpoint of Megatron-LM.
        pp: Its pipeline stages.
        naming: How its parameters are named.
        base: Fingerprint of the base of an adapter.
    """

    format: str
    dtype: str | None = None
    tp: Positive | None = None
    pp: Positive | None = None
    naming: str | None = None
    base: str | None = None


@config
class ExportManifest:
    """Manifest of a folder that a conversion wrote."""

    kind: Literal["export"] = "export"
    fingerprint: str = ""
    inputs: dict[str, str]
    counts: dict[str, int] = dataclasses.field(default_factory=dict)
    files: dict[str, FileRecord]
    about: ExportAbout
    format_version: Literal[1] = 1
    groundup_version: str = __version__


@contextlib.contextmanager
def export_folder(
    folder: Path,
    stored: LazyModel,
    *,
    size_bytes: int,
    about: ExportAbout,
    check: Check | None = None,
) -> Iterator[Path]:
    """A temporary folder to fill, which then gets its manifest and its name.

    Args:
        folder: To write; may be missing, empty or an earlier export, which is replaced.
        stored: The model that is written.
        size_bytes: That will be written.
        about: For the manifest.
        check: Called with the temporary folder when it is complete.

    Raises:
        CheckpointError: The folder holds something else, or the model that is being read.
        MachineError: The disk is too small or the files cannot be written.
    """
    _require_replaceable(folder)
    source, target = stored.source.resolve(), folder.resolve()
    if source == target or target in source.parents or source in target.parents:
        raise CheckpointError(
            f"would be written into, or over, the model that is read ({stored.source})",
            where=folder,
            fix="Name a folder beside it.",
        )
    require_free_space(folder.parent, size_bytes + (16 << 20), "the converted model")
    try:
        with atomic_folder(folder) as temporary:
            yield temporary
            names = sorted(
                str(path.relative_to(temporary)) for path in temporary.rglob("*") if path.is_file()
            )
            manifest = ExportManifest(
                inputs={"source": str(stored.source), "tokenizer": stored.tokenizer.fingerprint},
                files=describe_files(temporary, names),
                about=about,
            )
            write_manifest(temporary / MANIFEST, manifest)
            if check:
                check(temporary)
    except (OSError, SafetensorError) as error:
        raise MachineError(f"the export could not be written ({error})", where=folder) from error


def write_card(folder: Path, card: str) -> None:
    """Writes a model card, unless it is empty."""
    if card:
        (folder / CARD).write_text(card, encoding="utf-8")


def _require_replaceable(folder: Path) -> None:
    if not folder.exists():
        return
    if folder.is_dir() and not any(folder.iterdir()):
        return
    if folder.is_dir() and (folder / MANIFEST).is_file():
        _require_own_card(folder)
        return
    raise CheckpointError(
        "is not empty and is not an earlier export, so it is not overwritten",
        where=folder,
        fix="Name a new folder.",
    )


def _require_own_card(folder: Path) -> None:
    files = read_manifest(folder / MANIFEST, ExportManifest).files
    path = folder / CARD
    if path.is_file() and (CARD not in files or checksum(path) != files[CARD].checksum):
        raise CheckpointError(
            "was written or changed by somebody, so it is not overwritten",
            where=path,
            fix="Move it away, or name a new folder.",
        )
