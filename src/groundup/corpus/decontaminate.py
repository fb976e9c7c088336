"""The stage that takes the items of evaluation tasks out of the corpus."""

import collections
import dataclasses
import functools
import itertools
from pathlib import Path
from typing import Any, Literal

from groundup.core.config import config
from groundup.core.errors import DataError
from groundup.core.executor.tasks import Done, Report
from groundup.core.log import logger
from groundup.corpus.document import Document, from_json_line, text_bytes
from groundup.corpus.evaluation_sets import EvaluationFile, find_evaluation_files
from groundup.corpus.ngram_overlap import NgramIndex, Overlap, Scan
from groundup.corpus.overlap_report import EvaluationOverlap, Overlaps
from groundup.corpus.shard import Shard, ShardWriter, read_lines, write_shard
from groundup.corpus.stage import BarrierStage, Phase, Phases, Results, StageRun

_NAMED_ITEMS = 3  # in a document that was cut or dropped
_COUNTS = ("documents", "cut", "dropped")


@config
class Decontaminate(BarrierStage):
    """Cuts the n-grams of evaluation tasks out of the documents, by Megatron-LM's rule (``ngram_overlap``).

    First all n-grams of the tasks are counted in the whole corpus; then those that are not common language
    are cut out. What is left of a document keeps its id, with ``#0``, ``#1``, ... where it is more than one,
    and names the first items in its ``decontaminated``. The manifest says which items were found.

    Attributes:
        against: Kinds of evaluation tasks (``lambada``, ``hellaswag``, ...), and files of items: .jsonl,
            .json, .csv or .tsv, perhaps with .gz or .zst. The text of an item of a file is its ``text``,
            ``ctx``, ``question``, ``goal``, ``prompt``, ``sentence``, ``context`` or ``content``, whichever
            comes first, with each of its ``endings``, ``choices`` or ``options`` where it has some.
        data: Where the official files of the tasks lie: folders, which are searched by name, and files.
        overlap: Which n-grams count, and what is cut around them.
        report_only: Leave the documents as they are, and report which items they hold.
    """

    kind: Literal["decontaminate"] = "decontaminate"
    against: tuple[str, ...]
    data: tuple[Path, ...] = ()
    overlap: Overlap = Overlap()
    report_only: bool = False

    def __post_init__(self) -> None:
        if not self.against:
            raise ValueError("name at least one task or file of items in against")

    @property
    def files(self) -> tuple[EvaluationFile, ...]:
        """The files of items.

        Raises:
            DataError: There is none of a task, or one is missing.
        """
        return tuple(find_evaluation_files(self.against, self.data))

    @property
    def settings(self) -> dict[str, Any]:
        """With size and time of change of the files of items."""
        stats = [(str(file.path), file.path.stat()) for file in self.files]
        described = [[ascii(path), status.st_size, status.st_mtime_ns] for path, status in stats]
        return {**super().settings, "files": described}

    def phases(self, run: StageRun) -> Phases:
        """Counts of each shard; each shard without the items."""
        files = self.files
        items = _items(files, self.overlap)  # a wrong file is told before anything is begun
        for file, places in zip(files, items.places, strict=True):
            logger.info("decontaminate: %s: %s items", file.path, f"{len(places):,}")
        counting = [run.task("counts", shard.number, shard) for shard in run.inputs]
        results = yield Phase(
            name="decontaminate: count",
            tasks=counting,
            work=_Count(self, files),
            total_bytes=run.input_bytes,
        )
        counts: collections.Counter[int] = collections.Counter()
        for result in results:
            counts.update(dict(result["counts"]))
        common = frozenset(ngram for ngram, count in counts.items() if count >= self.overlap.common_count)
        pairs = list(zip(run.inputs, run.outputs, strict=True))
        yield Phase(
            name="decontaminate: cut",
            tasks=run.last_tasks(pairs),
            work=_Cut(self, files, common, run.keep_dropped),
            total_bytes=run.input_bytes,
        )

    def overlaps(self, results: Results) -> Overlaps:
        """What the documents hold of the items.

        Args:
            results: Of its last phase.
        """
        files = self.files
        items = _items(files, self.overlap)
        found = {number for result in results for number in result["items_found"]}
        left = {number for result in results for number in result["items_left"]}
        entries = []
        for number, (file, places) in enumerate(zip(files, items.places, strict=True)):
            first = items.firsts[number]
            counts = [sum(result["held"][number][name] for result in results) for name in _COUNTS]
            entries.append(
                EvaluationOverlap(
                    file=str(file.path),
                    task=file.task,
                    checksum=file.checksum,
                    items=len(places),
                    max_ngram=self.overlap.max_ngram,
                    min_ngram=self.overlap.min_ngram,
                    common_count=self.overlap.common_count,
                    found=tuple(place for at, place in enumerate(places, first) if at in found),
                    left=tuple(place for at, place in enumerate(places, first) if at in left),
                    documents=counts[0],
                    documents_cut=counts[1],
                    documents_dropped=counts[2],
                )
            )
        return tuple(entries)


@dataclasses.dataclass(frozen=True, slots=True)
class _Count:
    """Counts the n-grams of the tasks in a shard."""

    stage: Decontaminate
    files: tuple[EvaluationFile, ...]

    def __call__(self, shard: Shard, report: Report) -> Done:
        index = _items(self.files, self.stage.overlap).index
        counts: collections.Counter[int] = collections.Counter()
        for line in read_lines(shard, on_read=report):
            counts.update(index.scan(from_json_line(line).text).count())
        return Done(files=[], result={"counts": sorted(counts.items())})


@dataclasses.dataclass(frozen=True, slots=True)
class _Cut:
    """Writes a shard without the items of the tasks, and reports which of them it held and still holds."""

    stage: Decontaminate
    files: tuple[EvaluationFile, ...]
    common: frozenset[int]
    keep_dropped: bool

    def __call__(self, shards: tuple[Shard, Shard], report: Report) -> Done:
        before, after = shards
        items = _items(self.files, self.stage.overlap)
        found: set[int] = set()
        left: set[int] = set()
        held = [dict.fromkeys(_COUNTS, 0) for _ in self.files]
        with write_shard(after, keep_dropped=self.keep_dropped) as out:
            for line in read_lines(before, on_read=report):
                document = from_json_line(line)
                scan = items.index.scan(document.text)
                rare = set() if self.stage.report_only else scan.ngrams - self.common
                inside = items.index.items_with(scan.ngrams)
                found |= inside
                for number in items.files_of(inside):
                    held[number]["documents"] += 1
                if not rare:
                    out.keep_line(line, text_bytes(document.text))
                    left |= inside
                    continue
                cut_out = items.index.items_with(rare)
                pieces = self._cut(document, scan, items.names(cut_out), out)
                for piece in pieces:
                    left |= items.index.items_with(items.index.scan(piece).ngrams)
                for number in items.files_of(cut_out):
                    held[number]["cut" if pieces else "dropped"] += 1
        return out.done(items_found=sorted(found), items_left=sorted(left), held=held)

    def _cut(self, document: Document, scan: Scan, names: list[str], out: ShardWriter) -> list[str]:
        """Writes what is left of a document; returns it, nothing of one that is dropped."""
        pieces = scan.clean(self.common)
        if not pieces or len(pieces) > self.stage.overlap.max_pieces:
            reason = "too many pieces" if pieces else "nothing left"
            out.drop(document, "decontaminate", reason, because=f"it shares words with {', '.join(names)}")
            return []
        out.tally.edit("decontaminate")
        meta = {**document.meta, "decontaminated": names}
        for number, piece in enumerate(pieces):
            name = f"{document.id}#{number}" if len(pieces) > 1 else document.id
            out.keep(dataclasses.replace(document, id=name, text=piece, meta=meta))
        return pieces


@dataclasses.dataclass(frozen=True)
class _Items:
    """The items of all files, numbered one file behind the other.

    Attributes:
        files: Their files.
        places: Of each file, the places of its items.
        index: Their n-grams.
    """

    files: tuple[EvaluationFile, ...]
    places: tuple[tuple[str, ...], ...]
    index: NgramIndex

    @functools.cached_property
    def firsts(self) -> list[int]:
        """The number of the first item of each file, and of all items."""
        return list(itertools.accumulate(map(len, self.places), initial=0))

    def files_of(self, items: set[int]) -> list[int]:
        """The numbers of the files of some items."""
        bounds = enumerate(itertools.pairwise(self.firsts))
        return [number for number, (begin, end) in bounds if any(begin <= item < end for item in items)]

    def names(self, items: set[int]) -> list[str]:
        """The names of the first of some items: ``lambada_test.jsonl:17``."""
        named = []
        for item in sorted(items)[:_NAMED_ITEMS]:
            (number,) = self.files_of({item})
            named.append(f"{self.files[number].path.name}{self.places[number][item - self.firsts[number]]}")
        return named


@functools.lru_cache(maxsize=1)
def _items(files: tuple[EvaluationFile, ...], overlap: Overlap) -> _Items:
    """All items and their n-grams; made once in each process."""
    items = [list(file.items()) for file in files]
    for file, some in zip(files, items, strict=True):
        if not some:
            raise DataError("there is no item in it", where=file.path, fix="Name a file with items.")
    places = tuple(tuple(place for place, _ in some) for some in items)
    return _Items(files, places, NgramIndex((texts for some in items for _, texts in some), overlap))
