"""The stage that drops near-duplicates: documents are clustered, and one of each cluster is kept."""

import bisect
import dataclasses
import itertools
from pathlib import Path
from typing import Any, Literal

import numpy as np

from groundup.core.config import config
from groundup.core.config_class import PositiveFloat
from groundup.core.executor.tasks import Done, Report
from groundup.core.files import atomic_write
from groundup.core.log import logger
from groundup.corpus.dedup.clusters import BandFile, Keep, choose_kept, find_clusters
from groundup.corpus.dedup.id_file import IdFile, ShardIds, id_path
from groundup.corpus.dedup.minhash import MinHash
from groundup.corpus.document import from_json_line, text_bytes
from groundup.corpus.shard import Shard, read_lines, read_shard, write_shard
from groundup.corpus.stage import BarrierStage, Phase, Phases, StageRun

_GIGABYTE = 1 << 30
_SHOWN_SIMILARITIES = (0.5, 0.6, 0.7, 0.8, 0.9)
_BATCH = 4096  # signatures whose bands are hashed at once


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
        firsts = tuple(itertools.accumulate(counts, initial=0))
        yield Phase(
            name="near_dedup: drop",
            tasks=run.last_tasks(list(zip(run.inputs, run.outputs, firsts, strict=False))),
            work=_DropNearDuplicates(run.folder, firsts, run.keep_dropped),
            total_bytes=run.input_bytes,
        )


@dataclasses.dataclass(frozen=True, slots=True)
class _WriteBands:
    """Writes the band hashes of a shard's documents, the lengths of their texts in bytes, and their ids."""

    folder: Path
    minhash: MinHash

    def __call__(self, shard: Shard, report: Report) -> Done:
        bands, _ = self.minhash.banding
        hashes = [np.zeros((0, bands), np.uint64)]
        lengths: list[int] = []
        ids: list[str] = []
        documents = read_shard(shard, on_read=report)
        while batch := list(itertools.islice(documents, _BATCH)):
            texts = [document.text for document in batch]
            hashes.append(self.minhash.bands_of(texts))
            lengths += map(text_bytes, texts)
            ids += [document.id for document in batch]
        paths = [self.folder / f"{kind}-{shard.number:05d}.bin" for kind in ("bands", "lengths")]
        paths.append(id_path(self.folder, shard.number))
        with atomic_write(paths[0]) as file:
            BandFile.write(file, np.concatenate(hashes))
        with atomic_write(paths[1]) as file:
            file.write(np.array(lengths, "<i8").tobytes())
        with atomic_write(paths[2]) as file:
            IdFile.write(file, ids)
        return Done(files=[path.name for path in paths], result={})


@dataclasses.dataclass(frozen=True, slots=True)
class _FindClusters:
    """Writes for each document of all shards the number of the one that is kept in its place."""

    folder: Path
    stage: NearDedup

    def __call__(self, names: tuple[str, ...], report: Report) -> Done:
        bands, _ = self.stage.minhash.banding
        files = [BandFile(self.folder / f"{name}.bin", bands) for name in names]
        first_path, kept_path = self.folder / "clusters-first.tmp", self.folder / "clusters-00000.bin"
        memory_bytes = int(self.stage.memory_gigabytes * _GIGABYTE)
        first = find_clusters(files, bands, first_path, memory_bytes=memory_bytes, on_read=report)
        lengths = None
        if self.stage.keep == "longest":
            paths = (self.folder / name.replace("bands", "lengths") for name in names)
            lengths = np.concatenate(
                [np.fromfile(path.with_name(f"{path.name}.bin"), "<i8") for path in paths]
            )
        with atomic_write(kept_path) as file:
            file.write(np.ascontiguousarray(choose_kept(first, lengths), "<i8").data)
        del first
        first_path.unlink()
        return Done(files=[kept_path.name], result={})


@dataclasses.dataclass(frozen=True, slots=True)
class _DropNearDuplicates:
    """Writes a shard without the documents for which another one is kept."""

    folder: Path
    firsts: tuple[int, ...]
    keep_dropped: bool

    def __call__(self, task_input: tuple[Shard, Shard, int], report: Report) -> Done:
        before, after, first = task_input
        path = self.folder / "clusters-00000.bin"
        kept = np.memmap(path, "<i8", "r") if path.stat().st_size else np.zeros(0, "<i8")
        ids = ShardIds(self.folder)
        with write_shard(after, keep_dropped=self.keep_dropped) as out:
            for number, line in enumerate(read_lines(before, on_read=report), first):
                document = from_json_line(line)
                if kept[number] != number:
                    shard = bisect.bisect_right(self.firsts, kept[number]) - 1
                    name = ids[shard, int(kept[number]) - self.firsts[shard]]
                    because = f"kept in its place: {name}"
                    out.drop(document, "near_duplicate", "much the same as another", because=because)
                else:
                    out.keep_line(line, text_bytes(document.text))
        return out.done()
