"""The stage that drops near-duplicates: documents are clustered, and one of each cluster is kept."""

import dataclasses
import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
import numpy.typing as npt

from groundup.core.concatenate import append_range
from groundup.core.config import config
from groundup.core.config_class import PositiveFloat
from groundup.core.executor.tasks import Done, Report
from groundup.core.files import atomic_write
from groundup.core.log import logger
from groundup.corpus.dedup.clusters import BLOCK, BandFile, Keep, find_clusters, keep_longest
from groundup.corpus.dedup.minhash import MinHash
from groundup.corpus.document import from_json_line, text_bytes
from groundup.corpus.shard import Shard, read_lines, write_shard
from groundup.corpus.stage import BarrierStage, Phase, Phases, StageRun

_GIGABYTE = 1 << 30
_SHOWN_SIMILARITIES = (0.5, 0.6, 0.7, 0.8, 0.9)
_BATCH_CHARACTERS = 1 << 20  # of texts that are held and hashed at once
_WRITTEN_AT_ONCE = 1 << 20


@config
class NearDedup(BarrierStage):
    """Keeps one document of each cluster of near-duplicates.

    Documents that share a band of their MinHash signatures are a pair; pairs with a common document are a
    cluster, so two documents of one cluster need not be alike themselves. Documents without words stay.

    Attributes:
        minhash: When two documents are a pair.
        keep: The ``first`` of a cluster in the order of the input, or the ``longest``.
        memory_gigabytes: What the search for clusters may hold; the result does not depend on it.
    """

    kind: Literal["near_dedup"] = "near_dedup"
    minhash: MinHash = MinHash()
    keep: Keep = "first"
    memory_gigabytes: PositiveFloat = 2.0

    @property
    def settings(self) -> dict[str, Any]:
        """All but the memory."""
        return {name: value for name, value in super().settings.items() if name != "memory_gigabytes"}

    def phases(self, run: StageRun) -> Phases:
        """Bands of each shard; clusters; each shard without the documents that are not kept."""
        chances = ", ".join(f"{at:.1f}: {self.minhash.probability(at):.0%}" for at in _SHOWN_SIMILARITIES)
        logger.info("near_dedup: %d bands of %d rows; chance to be found: %s", *self.minhash.banding, chances)
        bands = [run.task("bands", shard.number, shard) for shard in run.inputs]
        yield Phase(
            name="near_dedup: signatures",
            tasks=bands,
            work=_WriteBands(run.folder, self.minhash),
            total_bytes=run.input_bytes,
        )
        names = tuple(task.name for task in bands)
        yield Phase(
            name="near_dedup: clusters",
            tasks=[run.task("clusters", 0, names)],
            work=_FindClusters(run.folder, self),
            total_bytes=sum((run.folder / f"{name}.bin").stat().st_size for name in names),
        )
        counts = [result["documents"] for result in run.input_results]
        firsts = itertools.accumulate(counts, initial=0)
        yield Phase(
            name="near_dedup: drop",
            tasks=run.last_tasks(list(zip(run.inputs, run.outputs, firsts, strict=False))),
            work=_DropNearDuplicates(run.folder, run.keep_dropped),
            total_bytes=run.input_bytes,
        )


@dataclasses.dataclass(frozen=True, slots=True)
class _WriteBands:
    """Writes the band hashes of a shard's documents, and the lengths of their texts in bytes."""

    folder: Path
    minhash: MinHash

    def __call__(self, shard: Shard, report: Report) -> Done:
        paths = [self.folder / f"{kind}-{shard.number:05d}.bin" for kind in ("bands", "lengths")]
        texts = (from_json_line(line).text for line in read_lines(shard, on_read=report))
        with atomic_write(paths[0]) as bands_file, atomic_write(paths[1]) as lengths_file:
            for block in _blocks(self._hash(texts, lengths_file)):
                BandFile.write(bands_file, block)
        return Done(files=[path.name for path in paths], result={})

    def _hash(self, texts: Iterator[str], lengths_file: IO[bytes]) -> Iterator[npt.NDArray[np.uint64]]:
        for batch in _batches(texts):
            lengths_file.write(np.array([text_bytes(text) for text in batch], "<i8").tobytes())
            yield self.minhash.bands_of(batch)


def _blocks(parts: Iterator[npt.NDArray[np.uint64]]) -> Iterator[npt.NDArray[np.uint64]]:
    """Cuts what comes in parts of at most ``BLOCK`` rows into blocks of so many, but for the last."""
    waiting: list[npt.NDArray[np.uint64]] = []
    for part in parts:
        waiting.append(part)
        if sum(map(len, waiting)) >= BLOCK:
            joined = np.concatenate(waiting)
            yield joined[:BLOCK]
            waiting = [joined[BLOCK:]]
    if waiting:
        yield np.concatenate(waiting)


def _batches(texts: Iterator[str]) -> Iterator[list[str]]:
    """Yields texts in lists that hold about as many characters at most, but for a longer text."""
    batch: list[str] = []
    characters = 0
    for text in texts:
        batch.append(text)
        characters += len(text)
        if characters >= _BATCH_CHARACTERS or len(batch) == BLOCK:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


@dataclasses.dataclass(frozen=True, slots=True)
class _FindClusters:
    """Writes for each document of all shards the number of the one that is kept in its place."""

    folder: Path
    stage: NearDedup

    def __call__(self, names: tuple[str, ...], report: Report) -> Done:
        bands, _ = self.stage.minhash.banding
        files = [BandFile(self.folder / f"{name}.bin", bands) for name in names]
        memory_bytes = int(self.stage.memory_gigabytes * _GIGABYTE)
        with tempfile.TemporaryDirectory(dir=self.folder, prefix=".clusters-") as folder:
            scratch = Path(folder)
            first = find_clusters(files, bands, scratch / "first", memory_bytes=memory_bytes, on_read=report)
            if self.stage.keep == "longest" and len(first):
                with (scratch / "lengths").open("wb") as all_lengths:
                    for name in names:
                        append_range(all_lengths, self.folder / f"{name.replace('bands', 'lengths')}.bin")
                lengths = np.memmap(scratch / "lengths", "<i8", "r")
                longest = np.memmap(scratch / "longest", np.int64, "w+", shape=first.shape)
                keep_longest(first, lengths, longest)
            kept_path = self.folder / "clusters-00000.bin"
            with atomic_write(kept_path) as file:
                for begin in range(0, len(first), _WRITTEN_AT_ONCE):
                    part = first[begin : begin + _WRITTEN_AT_ONCE]
                    file.write(np.ascontiguousarray(part, "<i8").data)
        return Done(files=[kept_path.name], result={})


@dataclasses.dataclass(frozen=True, slots=True)
class _DropNearDuplicates:
    """Writes a shard without the documents for which another one is kept."""

    folder: Path
    keep_dropped: bool

    def __call__(self, task_input: tuple[Shard, Shard, int], report: Report) -> Done:
        before, after, first = task_input
        sizes = np.fromfile(self.folder / f"lengths-{before.number:05d}.bin", "<i8")
        kept = np.fromfile(self.folder / "clusters-00000.bin", "<i8", len(sizes), offset=8 * first)
        is_kept = kept == np.arange(first, first + len(kept))
        with write_shard(after, keep_dropped=self.keep_dropped) as out:
            for line, stays, size in zip(read_lines(before, on_read=report), is_kept, sizes, strict=True):
                if stays:
                    out.keep_line(line, int(size))
                else:
                    out.drop(from_json_line(line), "near_duplicate", "much the same as another")
        return out.done()
