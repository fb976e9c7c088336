"""Building a corpus: read, clean, drop exact duplicates, shuffle, write; one pass, bounded memory."""

import contextlib
import itertools
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Annotated

import orjson
import pydantic
import zstandard

from groundup.core.config import config, to_dict
from groundup.core.errors import ConfigError, DataError, MachineError
from groundup.core.files import atomic_write, require_free_space
from groundup.core.log import logger
from groundup.core.manifest import describe_files, read_manifest, write_manifest
from groundup.core.progress import Progress, human_count
from groundup.corpus.bad_records import BadRecordPolicy, BadRecords, summary_of
from groundup.corpus.cut import cut_document
from groundup.corpus.dedup.exact import ExactDuplicates
from groundup.corpus.document import Document, text_bytes, to_json_line
from groundup.corpus.filter import Drop
from groundup.corpus.filters import FixUnicode, NormalizeWhitespace, Step
from groundup.corpus.inputs import fingerprint_of, listed
from groundup.corpus.python_library import find_python_library, read_python_library
from groundup.corpus.read_documents import read_files
from groundup.corpus.recorded import DOCUMENTS, EXCLUDED, MANIFEST, CorpusAbout, CorpusManifest
from groundup.corpus.report import CorpusCounts, CorpusReport, Tally
from groundup.corpus.shuffle import DEFAULT_MEMORY_BYTES, shuffle_lines
from groundup.corpus.sources import SourceFile, find_source_files

_QUARANTINE = "quarantine.jsonl"
_SCRATCH = ".shuffle"
_EXCLUDED_CHARACTERS = 200
_ZSTANDARD_LEVEL = 3


@config
class CorpusConfig:
    """How to build a corpus.

    Attributes:
        output_dir: The folder to write.
        sources: Files, folders and globs to read.
        python_library: Read the standard library of the running Python, before the sources.
        text_key: The field of a JSON object that holds the text.
        cut_characters: Cut longer documents into parts of at most so many characters; 0 keeps them whole.
        steps: What is done to each document, in this order. A document without text is dropped in any case.
        deduplicate: Drop documents whose words were seen before.
        shuffle_seed: Seed of the order of the documents; None keeps the order of the sources.
        bad_records: What to do with records that cannot be read.
    """

    output_dir: Path
    sources: tuple[Path, ...] = ()
    python_library: bool = False
    text_key: str = "text"
    cut_characters: Annotated[int, pydantic.Field(ge=0)] = 0
    steps: tuple[Step, ...] = (FixUnicode(), NormalizeWhitespace())
    deduplicate: bool = True
    shuffle_seed: Annotated[int, pydantic.Field(ge=0, lt=1 << 64)] | None = 0
    bad_records: BadRecordPolicy = BadRecordPolicy()

    def __post_init__(self) -> None:
        if not self.sources and not self.python_library:
            raise ValueError(
                "there is nothing to read: name a source, or take the Python library (--python-library)"
            )


def build_corpus(
    corpus_config: CorpusConfig, *, shuffle_memory_bytes: int = DEFAULT_MEMORY_BYTES
) -> CorpusReport:
    """Builds a corpus, or returns at once when the folder holds the same one already.

    Writes to ``output_dir``: ``documents.jsonl.zst`` (``document.to_json_line``, shuffled),
    ``excluded.jsonl.zst`` (id, rule, reason and the first 200 characters of what was dropped),
    ``manifest.json``, and ``quarantine.jsonl`` when the policy asks for it and there are bad records.
    The documents appear whole or not at all, and a run that fails leaves an earlier corpus as it was.
    One build at a time works in a folder.

    The same config and files (by path, size and time of change) give the same bytes. Memory is about
    100 bytes a distinct document, ``shuffle_memory_bytes``, and a few times the largest document.

    Args:
        corpus_config: What to do.
        shuffle_memory_bytes: What the shuffle may hold before it goes to disk; changes no result.

    Raises:
        DataError: A source is missing, unreadable or holds too many bad records; or nothing was left.
        ConfigError: ``output_dir`` is a file.
        MachineError: The folder cannot be written, or the disk is full.
    """
    output_dir = corpus_config.output_dir
    if output_dir.exists() and not output_dir.is_dir():
        raise ConfigError("the output folder is a file", where=output_dir, fix="Name a folder with --out.")
    library = find_python_library() if corpus_config.python_library else []
    files = find_source_files(corpus_config.sources, leave_out=output_dir) if corpus_config.sources else []
    settings = to_dict(corpus_config)
    del settings["output_dir"], settings["sources"]  # the files that the sources mean count, not their names
    mark = fingerprint_of(settings, [*library, *files])
    if report := _finished(output_dir, mark):
        logger.info("%s holds this corpus already: nothing to do", output_dir)
        return report
    try:
        counts = _build(corpus_config, library, files, mark, shuffle_memory_bytes)
    except OSError as error:
        raise MachineError(
            f"cannot write the corpus ({error.strerror or error})",
            where=error.filename or output_dir,
            fix="Free some space or choose another folder with --out.",
        ) from error
    return CorpusReport.from_counts(output_dir, mark, counts, reused=False)


def _build(
    corpus_config: CorpusConfig,
    library: list[SourceFile],
    files: list[SourceFile],
    mark: str,
    shuffle_memory_bytes: int,
) -> CorpusCounts:
    output_dir = corpus_config.output_dir
    scratch_dir = output_dir / _SCRATCH
    total = sum(file.size_bytes for file in (*library, *files))
    output_dir.mkdir(parents=True, exist_ok=True)
    require_free_space(output_dir, total, "the corpus")
    shutil.rmtree(scratch_dir, ignore_errors=True)
    for left in (output_dir / _QUARANTINE, *output_dir.glob(".*.jsonl.zst.*.tmp")):  # of a killed run
        left.unlink(missing_ok=True)
    tally = Tally()
    bad_records = BadRecords(corpus_config.bad_records, quarantine_path=output_dir / _QUARANTINE)
    with (
        atomic_write(output_dir / DOCUMENTS) as documents_file,
        atomic_write(output_dir / EXCLUDED) as excluded_file,
    ):
        with bad_records, _compressed(documents_file) as documents, _compressed(excluded_file) as excluded:
            progress = Progress("read and clean", total, "B")

            def read() -> Iterator[Document]:
                yield from read_python_library(library, bad_records=bad_records, on_read=progress.add)
                yield from read_files(
                    files, text_key=corpus_config.text_key, bad_records=bad_records, on_read=progress.add
                )

            whole = read()
            if corpus_config.cut_characters:
                pieces = (cut_document(document, corpus_config.cut_characters) for document in whole)
                whole = itertools.chain.from_iterable(pieces)

            lines: Iterator[bytes] = _clean(whole, corpus_config, tally, excluded.write, progress)
            if corpus_config.shuffle_seed is not None:
                lines = shuffle_lines(
                    lines,
                    seed=corpus_config.shuffle_seed,
                    scratch_dir=scratch_dir,
                    memory_bytes=shuffle_memory_bytes,
                )
            for line in lines:
                documents.write(line)
        if not tally.documents:
            raise _nothing_left(corpus_config, tally, bad_records)
        (output_dir / MANIFEST).unlink(missing_ok=True)  # from here on the old corpus is gone
    counts = tally.counts(bad_records)
    manifest = CorpusManifest(
        fingerprint=mark,
        inputs=listed([*library, *files]),
        counts=counts,
        files=describe_files(output_dir, [DOCUMENTS, EXCLUDED]),
        about=CorpusAbout(config=to_dict(corpus_config)),
    )
    write_manifest(output_dir / MANIFEST, manifest)
    return counts


def _clean(
    read: Iterator[Document],
    corpus_config: CorpusConfig,
    tally: Tally,
    exclude: Callable[[bytes], object],
    progress: Progress,
) -> Iterator[bytes]:
    """The lines of the documents that are kept; the others go to ``exclude``."""
    duplicates = ExactDuplicates() if corpus_config.deduplicate else None
    with progress:
        for document in read:
            size_bytes = text_bytes(document.text)
            tally.documents_read += 1
            tally.bytes_read += size_bytes
            kept, rule, reason = _verdict(document, corpus_config.steps, duplicates, tally)
            if reason:
                tally.drop(rule, reason, kept.id, size_bytes)
                exclude(_excluded_line(kept, rule, reason))
                continue
            tally.documents += 1
            tally.bytes += text_bytes(kept.text)
            progress.note = (
                f"{tally.documents:,} of {tally.documents_read:,} documents kept, "
                f"{human_count(tally.bytes)}B of text"
            )
            yield to_json_line(kept)


def _verdict(
    document: Document, steps: tuple[Step, ...], duplicates: ExactDuplicates | None, tally: Tally
) -> tuple[Document, str, str]:
    """The edited document, and the rule and the reason by which it is dropped (empty when it is kept)."""
    for step in steps:
        result = step.apply(document)
        if isinstance(result, Drop):
            return document, step.kind, result.reason
        if result is not document:
            tally.edit(step.kind)
        document = result
    if not document.text or document.text.isspace():
        return document, "empty", "no text"
    if duplicates is not None and duplicates.is_duplicate(document.text):
        return document, "exact_duplicate", "seen before"
    return document, "", ""


def _excluded_line(document: Document, rule: str, reason: str) -> bytes:
    return orjson.dumps(
        {
            "id": document.id,
            "url": document.url,
            "rule": rule,
            "reason": reason,
            "text": document.text[:_EXCLUDED_CHARACTERS],
        },
        option=orjson.OPT_APPEND_NEWLINE,
    )


@contextlib.contextmanager
def _compressed(file: IO[bytes]) -> Iterator[IO[bytes]]:
    compressor = zstandard.ZstdCompressor(level=_ZSTANDARD_LEVEL, write_checksum=True)
    with compressor.stream_writer(file, closefd=False) as stream:
        yield stream


def _finished(output_dir: Path, mark: str) -> CorpusReport | None:
    """The report of the corpus in the folder, if it is whole and of this fingerprint."""
    path = output_dir / MANIFEST
    if not path.is_file():
        return None
    try:
        manifest = read_manifest(path, CorpusManifest)
    except DataError as error:
        logger.warning("building anew: %s", error)
        return None
    sizes = {name: entry.bytes for name, entry in manifest.files.items()}
    whole = all(
        (output_dir / name).is_file() and (output_dir / name).stat().st_size == size
        for name, size in sizes.items()
    )
    if manifest.fingerprint != mark or not whole:
        why = "its files are not those recorded" if not whole else "other settings or other input files"
        logger.info("%s holds another corpus (%s): building anew", output_dir, why)
        return None
    report = CorpusReport.from_counts(output_dir, mark, manifest.counts, reused=True)
    if report.bad_records:
        quarantine = output_dir / _QUARANTINE
        kept = quarantine if quarantine.is_file() else None
        logger.warning("%s", summary_of(manifest.counts.bad_records, kept))
    return report


def _nothing_left(corpus_config: CorpusConfig, tally: Tally, bad_records: BadRecords) -> DataError:
    counts = tally.counts(bad_records)
    parts = [f"{entry.rule}: {entry.reason} {entry.documents:,}" for entry in counts.dropped]
    parts += [f"bad record: {reason} {count:,}" for reason, count in bad_records.by_reason.items()]
    because = f" ({'; '.join(parts)})" if parts else ": the files are empty"
    sources = ", ".join(str(source) for source in corpus_config.sources) or "the Python library"
    return DataError(
        f"no document is left of {tally.documents_read + bad_records.bad:,}{because}",
        where=sources,
        fix="Check the sources, the text key and the bounds on length.",
    )


__all__ = ["CorpusConfig", "CorpusReport", "build_corpus"]
