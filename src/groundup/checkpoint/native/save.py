"""Saves checkpoints: each rank writes its own shards, at once or while training goes on.

All ranks decide together what each writes, then write without a word to each other, and agree at the
end: rank 0 completes the folder only if all have succeeded. What they say to each other while training
goes on goes through a process group of its own.
"""

import dataclasses
import datetime
import functools
import shutil
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from groundup.checkpoint.companions import Companions
from groundup.checkpoint.lazy import LazyTensor, in_memory
from groundup.checkpoint.low_rank import AdapterAbout
from groundup.checkpoint.native.commit import (
    MARGIN_BYTES,
    Groups,
    complete_checkpoint,
    publish_checkpoint,
    save_failure,
    write_groups,
)
from groundup.checkpoint.native.contents import CheckpointAbout, TrainingCounts, write_chunks
from groundup.checkpoint.native.folder import checkpoint_path, remove_checkpoint
from groundup.checkpoint.native.pruning import Keep, Pruning
from groundup.checkpoint.native.shards import Key, ShardMetadata, local_shard_of, plan_save, whole_shard
from groundup.core.errors import GroundupError, MachineError
from groundup.core.files import require_free_space, temporary_path
from groundup.core.log import logger
from groundup.core.manifest import FileRecord
from groundup.core.progress import human_count
from groundup.models import ModelConfig
from groundup.parallel.mesh import ParallelMesh
from groundup.tokens.tokenizer.base import Tokenizer

T = TypeVar("T")

_LONGEST_SAVE = datetime.timedelta(hours=4)  # the ranks wait for the slowest


@dataclasses.dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The state of a run at one moment, as this rank has it; all but the tensors is the same on all ranks.

    Attributes:
        groups: "model", "optimizer", ... -> name -> parameter, or "parameter name/entry" -> moment; each
            whole or this rank's part of a DTensor.
        random: Name of a generator, unique among ranks -> its state (uint8).
        counts: Progress of the training.
        config: Resolved config of the run.
        data: Fingerprint of the data.
        bos_ids: Ids that stand before every prompt.
        companions: Chat template, generation settings, ... of the model.
        adapter: Of what the parameters are an adapter; None where they are the whole model.
    """

    groups: Mapping[str, Mapping[str, Tensor]]
    random: Mapping[str, Tensor]
    counts: TrainingCounts
    config: dict[str, Any]
    data: str
    bos_ids: tuple[int, ...] = ()
    companions: Companions = dataclasses.field(default_factory=Companions)
    adapter: AdapterAbout | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Job:
    """What is left to do of a save once the loop may go on."""

    temporary: Path
    folder: Path
    step: int
    groups: Groups
    writes: list[dict[Key, ShardMetadata]]
    snapshot: Snapshot
    replaces: bool
    began: float


class Writer:
    """Saves checkpoints of a run, one at a time; all ranks use it together, as a context.

    Args:
        checkpoints_dir: Where they are written; all ranks see the same folder.
        model: Config of the model.
        tokenizer: Tokenizer of the run; stored with each checkpoint.
        mesh: The ranks.
        asynchronous: Copy the state, and write the copy while training goes on.
        keep: Which checkpoints stay.
        copy: Called by the first rank with each checkpoint, when it is complete.
    """

    def __init__(
        self,
        checkpoints_dir: Path,
        *,
        model: ModelConfig,
        tokenizer: Tokenizer,
        mesh: ParallelMesh,
        asynchronous: bool,
        keep: Keep,
        copy: Callable[[Path], None] | None = None,
    ) -> None:
        self._dir = checkpoints_dir
        self._model = model
        self._tokenizer = tokenizer
        self._mesh = mesh
        self._pruning = Pruning(checkpoints_dir, keep)
        self._copy = copy
        self._group = dist.new_group(backend="gloo", timeout=_LONGEST_SAVE) if mesh.size > 1 else None
        self._thread = ThreadPoolExecutor(1, "checkpoint") if asynchronous else None
        self._writing: Future[None] | None = None
        self._plan: dict[Key, ShardMetadata] = {}
        self._writes: list[dict[Key, ShardMetadata]] = []
        self._copies: dict[Key, Tensor] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.finish()
        if self._thread:
            self._thread.shutdown(wait=True)  # a save that was begun is completed, whatever ended the run
            self._thread = None

    @property
    def has_failed(self) -> bool:
        """Whether a save in the background has failed on this rank; ``finish`` then raises."""
        return self._writing is not None and self._writing.done() and self._writing.exception() is not None

    def save(self, step: int, snapshot: Snapshot, *, replaces: bool = False) -> None:
        """Saves ``step_NNNNNNN``; in the background if asynchronous, after the save before has ended.

        Args:
            step: Of the run.
            snapshot: Its state then.
            replaces: A sound checkpoint of this step is removed; else what is there is renamed.

        Raises:
            MachineError: This save, or the one before in the background, did not succeed on some rank: the
                same on all. Older checkpoints are intact.
        """
        self.finish()
        began = time.monotonic()
        shards = {
            (group, name): local_shard_of(name, tensor, self._model)
            for group, tensors in snapshot.groups.items()
            for name, tensor in tensors.items()
        }
        shards |= {("random", name): whole_shard(state) for name, state in snapshot.random.items()}
        writes = self._agree({key: shard.metadata for key, shard in shards.items()})
        folder = checkpoint_path(self._dir, step)
        temporary = temporary_path(folder, shared=True)
        size_bytes = sum(shard.size_bytes for share in writes for shard in share.values())

        def prepare() -> None:
            remove_checkpoint(temporary)
            require_free_space(self._dir, size_bytes + MARGIN_BYTES, f"the checkpoint of step {step}")
            temporary.mkdir(parents=True)

        self._on_first(prepare, step, self._gather)
        groups: dict[str, dict[str, LazyTensor]] = {group: {} for group in (*snapshot.groups, "random")}
        for group, name in writes[self._mesh.rank]:
            values = shards[group, name].values
            groups[group][name] = in_memory(self._copied((group, name), values) if self._thread else values)
        job = _Job(
            temporary=temporary,
            folder=folder,
            step=step,
            groups=groups,
            writes=writes,
            snapshot=dataclasses.replace(snapshot, groups={}, random={}),  # whose values may change
            replaces=replaces,
            began=began,
        )
        if self._thread is None:
            self._write(job)
        else:
            self._writing = self._thread.submit(self._write, job)

    def finish(self) -> None:
        """Waits for a save in the background.

        Raises:
            MachineError: It did not succeed on some rank; the same on all.
        """
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def _agree(self, plan: dict[Key, ShardMetadata]) -> list[dict[Key, ShardMetadata]]:
        """What each rank writes; worked out anew only when what the ranks hold has changed."""
        if self._mesh.any(plan != self._plan):
            self._plan = plan
            self._writes = plan_save(self._mesh.all_gather(plan))
            self._copies.clear()
        return self._writes

    def _copied(self, key: Key, values: Tensor) -> Tensor:
        """A copy on the CPU; its memory is used again by the next save."""
        if key not in self._copies:
            on_gpu = values.device.type == "cuda"  # which copies to pinned memory several times faster
            self._copies[key] = torch.empty(values.shape, dtype=values.dtype, pin_memory=on_gpu)
        return self._copies[key].copy_(values)

    def _write(self, job: _Job) -> None:
        """Writes this rank's files, and completes the checkpoint once all ranks have."""
        gather = functools.partial(self._gather, group=self._group)
        rank, num_ranks = self._mesh.rank, self._mesh.size

        def write() -> dict[str, FileRecord]:
            return write_groups(job.temporary, job.groups, rank=rank, num_ranks=num_ranks)

        by_rank = self._together(write, job.step, gather)
        files = {name: record for written in by_rank for name, record in written.items()}
        self._on_first(lambda: self._complete(job, files), job.step, gather)

    def _complete(self, job: _Job, files: dict[str, FileRecord]) -> None:
        if self._mesh.size > 1:
            write_chunks(job.temporary, job.groups, job.writes)
        snapshot = job.snapshot
        about = CheckpointAbout(
            config=snapshot.config,
            tokenizer=self._tokenizer.fingerprint,
            torch=torch.__version__,
            data=snapshot.data,
            bos_ids=snapshot.bos_ids,
            adapter=snapshot.adapter,
        )
        manifest = complete_checkpoint(
            job.temporary,
            files,
            counts=snapshot.counts,
            about=about,
            tokenizer=self._tokenizer,
            companions=snapshot.companions,
        )
        publish_checkpoint(job.temporary, job.folder, replaces=job.replaces)
        size_bytes = sum(record.bytes for record in manifest.files.values())
        seconds = time.monotonic() - job.began
        logger.info("saved %s (%sB in %.1f s)", job.folder, human_count(size_bytes), seconds)
        if self._copy:
            self._copy(job.folder)
        self._pruning.after_saving(job.folder)

    def _on_first(self, work: Callable[[], None], step: int, gather: Callable[[Any], list[Any]]) -> None:
        self._together(lambda: work() if self._mesh.is_first else None, step, gather)

    def _together(self, work: Callable[[], T], step: int, gather: Callable[[Any], list[Any]]) -> list[T]:
        """The results of all ranks' work; what fails on one rank is raised on all.

        Raises:
            MachineError: The first rank's that failed, which it names.
        """
        result: T | None = None
        problem: tuple[str, str, str] | None = None
        try:
            result = work()
        except GroundupError as error:
            problem = error.what, error.where, error.fix
        except OSError as error:
            failure = save_failure(self._dir, step, error)
            problem = failure.what, failure.where, failure.fix
        outcomes = gather((problem, result))
        for rank, (found, _) in enumerate(outcomes):
            if found is None:
                continue
            if self._mesh.is_first:
                temporary = temporary_path(checkpoint_path(self._dir, step), shared=True)
                shutil.rmtree(temporary, ignore_errors=True)
            what, where, fix = found
            named = f"rank {rank}: {what}" if self._mesh.size > 1 else what
            raise MachineError(named, where=where, fix=fix)
        return [result for _, result in outcomes]

    def _gather(self, value: Any, group: dist.ProcessGroup | None = None) -> list[Any]:
        """The values of all ranks, through a group of their own where there is one."""
        if group is None:
            return self._mesh.all_gather(value)
        values: list[Any] = [None] * self._mesh.size
        dist.all_gather_object(values, value, group=group)
        return values
