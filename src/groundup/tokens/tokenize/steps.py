"""The steps of a build: cut the input, do the parts, join them, describe the result."""

import contextlib
import errno
from collections.abc import Sequence
from pathlib import Path

from groundup.core.errors import DataError, MachineError
from groundup.core.executor.tasks import AnyRunner, Markers, Task, pending
from groundup.core.files import require_free_space, unfinished
from groundup.core.lock import locked
from groundup.core.log import logger
from groundup.core.manifest import describe_files, fingerprint, write_manifest
from groundup.corpus.bad_records import BadRecordPolicy, BadRecords, summary_of
from groundup.corpus.recorded import CorpusManifests
from groundup.corpus.source_ranges import Part, cut_into_parts
from groundup.corpus.sources import COMPRESSED_ENDINGS, find_source_files
from groundup.tokens.dataset.dataset_manifest import (
    TokensAbout,
    TokensCounts,
    TokensManifest,
    complete_manifest,
    describe_tokenizer,
    manifest_path,
)
from groundup.tokens.dataset.document_sources import document_sources_path
from groundup.tokens.dataset.indexed import bin_path, idx_path, token_dtype
from groundup.tokens.tokenize.do_parts import do_parts
from groundup.tokens.tokenize.join import COMMAND, FinishedParts
from groundup.tokens.tokenize.keys import require_forms, require_keys
from groundup.tokens.tokenize.replacement import require_own_tokenizer, require_replaceable
from groundup.tokens.tokenize.tokenize_part import TokenizePart
from groundup.tokens.tokenizer.base import Tokenizer

_PIECES_VERSION = 2
_NUM_PARTS = 64
_LEAST_PART_BYTES = 5 << 19
_MOST_PART_BYTES = 1 << 26
_BYTES_PER_TOKEN = 4  # of text, about
_UNPACKED = 2  # bytes of text in one of a compressed file, at least


class Build:
    """The settings of a build, and its steps."""

    def __init__(
        self,
        sources: Sequence[Path],
        prefix: Path,
        tokenizer: Tokenizer,
        keys: Sequence[str],
        append_end_of_document: bool,
        policy: BadRecordPolicy,
        begin_ids: tuple[int, ...] = (),
    ) -> None:
        require_keys(keys)
        self.files = find_source_files(sources)
        require_forms(self.files, keys)
        self.prefix = prefix
        self.tokenizer = tokenizer
        self.keys = tuple(keys)
        self.policy = policy
        self.dtype = token_dtype(tokenizer.vocab_size)
        self.append = append_end_of_document
        self.begin_ids = begin_ids
        self.prefixes = {key: prefix.with_name(f"{prefix.name}_{key}_document") for key in keys}
        self.made_from = {
            "sources": fingerprint(
                [[ascii(str(file.path)), file.size_bytes, file.mtime_ns] for file in self.files]
            ),
            "tokenizer": tokenizer.fingerprint,
        }
        settings = {
            "append_end_of_document": append_end_of_document,
            "end_of_document_id": tokenizer.end_of_document_id,
            "bad_records": [policy.action, policy.max_bad],
            **({"begin_ids": begin_ids} if begin_ids else {}),
        }
        self.prints = {key: fingerprint([self.made_from, settings, key, list(keys)]) for key in keys}
        self.parts_dir = prefix.with_name(f"{prefix.name}_parts")
        self.markers = Markers(self.parts_dir)
        self.tasks: list[Task[Part]] = []

    def finished(self) -> dict[str, TokensCounts] | None:
        """The counts of each key where an earlier build of the same is complete."""
        there = {key: complete_manifest(self.prefixes[key]) for key in self.keys}
        if any(
            manifest is None or manifest.fingerprint != self.prints[key] or manifest.counts.text_bytes is None
            for key, manifest in there.items()
        ):
            return None
        if self.parts_dir.is_dir():  # it was killed before it could remove them
            with self.locked(shared=False):
                self._remove_parts()
        counts = {key: manifest.counts for key, manifest in there.items() if manifest}
        bad = counts[self.keys[0]].bad_records  # a record is bad for all keys
        if bad and bad.bad:
            logger.warning("%s", summary_of(bad, self._quarantine if self._keeps_bad else None))
        return counts

    def locked(self, *, shared: bool) -> contextlib.AbstractContextManager[None]:
        """Ranks put up with each other, a build of everything with nobody."""
        return locked(self.parts_dir / "lock", what=f"the build of {self.prefix}", shared=shared)

    def locked_rank(self, rank: int, world_size: int) -> contextlib.AbstractContextManager[None]:
        """The same rank is not done twice at once."""
        return locked(
            self.parts_dir / f"lock-{rank}-of-{world_size}", what=f"rank {rank} of the build of {self.prefix}"
        )

    def require_replaceable(self) -> None:
        """Says which other datasets the build replaces; refuses what it would spoil."""
        for key, path in self.prefixes.items():
            require_replaceable(path, self.prints[key], self.made_from, is_begun=self._is_begun)
        require_own_tokenizer(self.prefix, list(self.prefixes.values()), self._tokenizer_dir, self.tokenizer)

    def cut(self, part_bytes: int | None) -> None:
        """Cuts the input into parts; None is a 64th of it, from 2.5 to 64 MB.

        Raises:
            DataError: A file is not as large as the manifest beside it records.
        """
        manifests = CorpusManifests()
        bad_records = BadRecords(self.policy, quarantine_path=self._quarantine, command=COMMAND)
        for file in self.files:
            manifests.hold(file, bad_records)
        # Whatever the policy does with bad records, the good ones are the same.
        settings = fingerprint(
            [
                _PIECES_VERSION,
                self.tokenizer.fingerprint,
                self.tokenizer.end_of_document_id,
                self.append,
                list(self.keys),
                self._keeps_bad,
                *self.begin_ids,
            ]
        )
        self.tasks = [
            Task(name=part.name, fingerprint=part.fingerprint(settings), input=part)
            for part in cut_into_parts(self.files, part_bytes or self._part_bytes)
        ]

    def clean(self) -> None:
        """Removes what killed runs have left unfinished."""
        left = unfinished(self.parts_dir, "part-") + unfinished(self._tokenizer_dir)
        names = [prefix.name for prefix in self.prefixes.values()] + [f"{self.prefix.name}_quarantine"]
        for name in names:
            left += unfinished(self.prefix.parent, f"{name}.")
            left += unfinished(
                self.prefix.parent, f".{name}."
            )  # what is written atomically under such a name
        for path in left:
            path.unlink()

    def remove_empty(self) -> None:
        """Removes the folder of parts where none is done."""
        if self.parts_dir.is_dir() and not self._is_begun:
            self._remove_parts()

    def pending(self) -> list[Task[Part]]:
        """The parts that are still to be done."""
        left = pending(self.tasks, self.markers)
        if len(left) < len(self.tasks):
            done = len(self.tasks) - len(left)
            logger.info("%d of %d parts are done already", done, len(self.tasks))
        return left

    def do(self, tasks: Sequence[Task[Part]], runner: AnyRunner) -> None:
        """Does parts."""
        if not tasks:
            return
        text = sum(
            source.size_bytes * (_UNPACKED if source.file.path.suffix in COMPRESSED_ENDINGS else 1)
            for task in tasks
            for source in task.input.ranges
        )
        copies = 2 if len(self.tasks) > 1 else 1  # the parts, and what they are joined to
        needed = copies * text * self.dtype.itemsize // _BYTES_PER_TOKEN
        require_free_space(self.prefix.parent, needed, "the tokenized text (by estimate)")
        for task in tasks:
            self.markers.clear(task)
        work = TokenizePart(
            self.tokenizer,
            self.keys,
            self.append,
            str(self.dtype),
            self.parts_dir,
            self._keeps_bad,
            self.begin_ids,
        )
        do_parts(tasks, work, self.markers, runner, policy=self.policy)

    def join(self) -> dict[str, TokensCounts]:
        """Joins the parts, all done; returns the counts of each key."""
        results = [self.markers.result(task) for task in self.tasks]
        done = [result for result in results if result is not None]
        if len(done) < len(self.tasks):
            raise MachineError(
                f"{len(self.tasks) - len(done)} finished parts have gone",
                where=self.parts_dir,
                fix="Leave the folder alone while a build runs; run the command again.",
            )
        finished = FinishedParts(self.parts_dir, self.keys, [task.input for task in self.tasks], done)
        counts = {key: finished.counts(number) for number, key in enumerate(self.keys)}
        if self._keeps_bad:
            finished.write_quarantine(self._quarantine)
        bad = finished.bad_records(self.policy, self._quarantine)
        if bad.bad:
            logger.warning("%s", bad.summary())
        self._require_documents(counts, bad.good, bad.bad)
        finished.require_space(list(self.prefixes.values()), self.dtype)
        self.tokenizer.save(self._tokenizer_dir)
        for path in self.prefixes.values():
            manifest_path(path).unlink(missing_ok=True)  # never an old manifest beside new files
        described: dict[str, TokensCounts] = {}
        for number, (key, path) in enumerate(self.prefixes.items()):
            finished.write(number, path, self.dtype)
            described[key] = TokensCounts(**counts[key], bad_records=bad.counts())
            logger.info(
                "%s: %s documents, %s tokens",
                key,
                f"{counts[key]['documents']:,}",
                f"{counts[key]['tokens']:,}",
            )
        for key in self.keys:
            self._describe(key, described[key])
        self._remove_parts()
        return described

    @property
    def _part_bytes(self) -> int:
        total = sum(file.size_bytes for file in self.files)
        return min(_MOST_PART_BYTES, max(_LEAST_PART_BYTES, total // _NUM_PARTS))

    @property
    def _is_begun(self) -> bool:
        """Whether some part is done."""
        return any(self.parts_dir.glob("*.done.json"))

    @property
    def _keeps_bad(self) -> bool:
        return self.policy.action == "quarantine"

    @property
    def _quarantine(self) -> Path:
        return self.prefix.with_name(f"{self.prefix.name}_quarantine.jsonl")

    @property
    def _tokenizer_dir(self) -> Path:
        return self.prefix.with_name(f"{self.prefix.name}_tokenizer")

    def _require_documents(self, counts: dict[str, dict[str, int]], good: int, bad: int) -> None:
        for key, count in counts.items():
            if not count["documents"]:
                raise DataError(
                    f"no text under the key {key!r}: {good + bad:,} records read, {bad:,} bad,"
                    f" {count['empty_documents']:,} empty",
                    where=self.files[0].path,
                    fix="Check the sources and --key.",
                )

    def _describe(self, key: str, counts: TokensCounts) -> None:
        path = self.prefixes[key]
        names = [bin_path(path).name, idx_path(path).name, document_sources_path(path).name]
        manifest = TokensManifest(
            fingerprint=self.prints[key],
            inputs=self.made_from,
            counts=counts,
            files=describe_files(path.parent, names),
            about=TokensAbout(
                tokenizer=describe_tokenizer(self.tokenizer, self._tokenizer_dir.name),
                dtype=str(self.dtype),
                key=key,
                append_end_of_document=self.append,
                overlaps=CorpusManifests().overlaps(self.files),
            ),
        )
        write_manifest(manifest_path(path), manifest)

    def _remove_parts(self) -> None:
        """Removes the pieces; a file in the folder that is not of a build stays, and the folder with it."""
        for pattern in ("part-*", ".part-*", "lock*"):
            for path in self.parts_dir.glob(pattern):
                path.unlink()
        try:
            self.parts_dir.rmdir()
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            logger.warning("%s holds other files: left there", self.parts_dir)
