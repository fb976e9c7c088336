"""One ``.bin``/``.idx`` into several, cut between documents: merging them again gives the same bytes."""

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np

from groundup.core.errors import ConfigError, DataError
from groundup.core.files import require_free_space
from groundup.core.log import logger
from groundup.core.manifest import Manifest
from groundup.core.progress import Progress
from groundup.tokens.files.check import check_index
from groundup.tokens.files.division import Division, cut_documents, tokens_before
from groundup.tokens.files.indexed import IndexedDataset, bin_path, idx_path, sample_checksum, strip_ending
from groundup.tokens.files.indexed_writer import IndexedWriter
from groundup.tokens.files.manifests import (
    complete_manifest,
    manifest_path,
    require_as_recorded,
    tokenizer_of,
    warn_of_replacement,
)
from groundup.tokens.files.origins import Origins, OriginsWriter, origins_path
from groundup.tokens.files.provenance import derived_fingerprint, write_manifest
from groundup.tokens.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True)
class DividedPart:
    """One of the parts.

    Attributes:
        prefix: Its prefix.
        num_documents: As its ``.idx`` records them.
        num_tokens: In it.
        reused: Whether an earlier run had written it.
    """

    prefix: Path
    num_documents: int
    num_tokens: int
    reused: bool = False


def divide_tokens(path: Path, prefix: Path, division: Division) -> list[DividedPart]:
    """Writes ``{prefix}_00000.bin`` and ``.idx``, ``{prefix}_00001`` ..., or ``{prefix}_train`` and so on.

    Each part gets a manifest and origins where the whole has them; the parts share ``{prefix}_tokenizer``.
    Parts that an earlier run has finished are left as they are.

    Args:
        path: Prefix of the whole.
        prefix: Beginning of the parts' prefixes.
        division: Where to cut.

    Returns:
        The parts in order; a split that would be empty is left out.

    Raises:
        DataError: The whole is missing or malformed, or parts of another division are in the way.
        ConfigError: More parts than documents, or a split that would cut a document.
        MachineError: The disk cannot hold the parts.
    """
    data = IndexedDataset(path)
    check_index(data)
    cuts = cut_documents(data, division)
    parts = {prefix.with_name(f"{prefix.name}_{name}"): documents for name, documents in cuts.items()}
    _require_clear(data.prefix, prefix, list(parts))
    describe = _Description.of(data.prefix, prefix, len(parts))
    done = {}
    for number, (part, (begin, end)) in enumerate(parts.items()):
        if _holds(part, data, begin, end) and describe.is_of(part, number):
            tokens = tokens_before(data, end) - tokens_before(data, begin)
            done[part] = DividedPart(part, end - begin, tokens, reused=True)
    if done:
        logger.info("%d of %d parts are done already", len(done), len(parts))
    if len(done) == len(parts):
        return list(done.values())
    if manifest_path(data.prefix).is_file():
        require_as_recorded(data.prefix)  # the parts' checksums would say that damage is right
    share = 1 - sum(part.num_tokens for part in done.values()) / max(1, data.num_tokens)
    size = int(share * bin_path(data.prefix).stat().st_size)
    index_size = int(share * idx_path(data.prefix).stat().st_size)
    require_free_space(prefix.parent, size + 2 * index_size, "splitting")
    describe.save_tokenizer()
    with Progress("split", describe.times_read * (size + index_size) + size, "B") as progress:
        for number, (part, (begin, end)) in enumerate(parts.items()):
            if part not in done:
                try:
                    written = _write_part(data, part, begin, end, progress.add)
                    describe.write(written, number, progress.add)
                except KeyboardInterrupt:
                    logger.warning("%d of %d parts are done", len(done), len(parts))
                    raise
                done[part] = written
    return [done[part] for part in parts]


def _write_part(
    data: IndexedDataset, part: Path, begin: int, end: int, on_copied: Callable[[int], None]
) -> DividedPart:
    warn_of_replacement(part)
    manifest_path(part).unlink(missing_ok=True)
    origins_path(part).unlink(missing_ok=True)
    with IndexedWriter(part, vocab_size=0, dtype=data.dtype) as writer:
        writer.add_documents_of(data, begin, end, on_copied=on_copied)
    if origins_path(data.prefix).is_file():
        with OriginsWriter(origins_path(part)) as origins:
            for piece in Origins(data.prefix).pieces(begin, end):
                origins.add(*piece)
    return DividedPart(part, writer.num_documents, writer.num_tokens)


@dataclasses.dataclass(frozen=True)
class _Description:
    """The manifests of the parts; where the whole has none, they have none."""

    whole: Path
    prefix: Path
    num_parts: int
    manifest: Manifest | None
    tokenizer: Tokenizer | None

    @classmethod
    def of(cls, whole: Path, prefix: Path, num_parts: int) -> "_Description":
        if not manifest_path(whole).is_file():
            return cls(whole, prefix, num_parts, None, None)
        return cls(
            whole,
            prefix,
            num_parts,
            Manifest.read(manifest_path(whole), "tokens"),
            tokenizer_of(whole),
        )

    @property
    def times_read(self) -> int:
        """How often the files of the parts are read for their checksums."""
        return 1 if self.manifest else 0

    def is_of(self, part: Path, number: int) -> bool:
        """Whether a finished part has all that belongs to it."""
        if origins_path(part).is_file() != origins_path(self.whole).is_file():
            return False
        if self.manifest is None or self.tokenizer is None:
            return not manifest_path(part).is_file()
        found = complete_manifest(part)
        return found is not None and found.fingerprint == derived_fingerprint(
            self._inputs(number), self.tokenizer
        )

    def save_tokenizer(self) -> None:
        """Writes the folder that all parts share."""
        if self.tokenizer:
            self.tokenizer.save(self.prefix.with_name(self._folder))

    def write(self, part: DividedPart, number: int, on_read: Callable[[int], None]) -> None:
        """Writes the manifest of a part."""
        if self.manifest and self.tokenizer:
            write_manifest(
                part.prefix,
                self.tokenizer,
                inputs=self._inputs(number),
                counts={"documents": part.num_documents, "tokens": part.num_tokens},
                about={
                    key: value
                    for key, value in self.manifest.about.items()
                    if key not in ("tokenizer", "made_of")
                },
                tokenizer_folder=self._folder,
                on_read=on_read,
            )

    @property
    def _folder(self) -> str:
        return f"{self.prefix.name}_tokenizer"

    def _inputs(self, number: int) -> dict[str, str]:
        assert self.manifest is not None
        return {self.whole.name: self.manifest.fingerprint, "part": f"{number} of {self.num_parts}"}


def _holds(part: Path, data: IndexedDataset, begin: int, end: int) -> bool:
    """Whether a dataset was cut out of another, as far as its index, a sample of tokens and its age tell."""
    if not idx_path(part).is_file() or not bin_path(part).is_file():
        return False
    if idx_path(part).stat().st_mtime_ns < bin_path(data.prefix).stat().st_mtime_ns:
        return False
    try:
        found = IndexedDataset(part)
    except DataError:
        return False
    first, last = int(data.document_ends[begin]), int(data.document_ends[end])
    tokens = data.tokens[data.token_begin(first) : data.token_begin(last)]
    return (
        found.dtype == data.dtype
        and np.array_equal(found.lengths, data.lengths[first:last])
        and np.array_equal(found.document_ends, data.document_ends[begin : end + 1] - first)
        and sample_checksum(found.tokens) == sample_checksum(tokens)
    )


def _require_clear(whole: Path, prefix: Path, parts: list[Path]) -> None:
    """Neither the whole nor parts of another division may be mixed up with the parts."""
    if whole.resolve() in [part.resolve() for part in parts]:
        raise ConfigError("a part would replace the whole", where=whole, fix="Choose another --prefix.")
    name = re.compile(re.escape(prefix.name) + r"_(\d{5}|train|validation|test)\.(bin|idx)")
    there = sorted(prefix.parent.iterdir()) if prefix.parent.is_dir() else []
    for file in there:
        if name.fullmatch(file.name) and strip_ending(file) not in parts:
            raise DataError(
                "is a part of another division, and would be taken for one of these",
                where=file,
                fix="Remove it, or choose another --prefix.",
            )
