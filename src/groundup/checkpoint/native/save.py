"""Saving a run's state: each rank writes its own parts, at once or while training goes on.

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
from groundup.checkpoint.lazy import LazyTensor
from groundup.checkpoint.native import store
from groundup.checkpoint.native.commit import complete, write_failure, write_tokenizer
from groundup.checkpoint.native.contents import PARTS
from groundup.checkpoint.native.load import file_name, write_parts
from groundup.checkpoint.native.pruning import Keep, Pruning
from groundup.checkpoint.native.shards import Chunk, Part, ShardMetadata, local_shard_of, plan_save
from groundup.checkpoint.safetensors import write_safetensors
from groundup.core.errors import GroundupError, MachineError
from groundup.core.files import fsync_file, require_free_space
from groundup.core.log import logger
from groundup.core.manifest import FileRecord, describe_files
from groundup.core.progress import human_count
from groundup.models import ModelConfig
from groundup.parallel.mesh import ParallelMesh
from groundup.tokens.tokenizer.base import Tokenizer

T = TypeVar("T")

Key = tuple[str, str]
"""Group and name of a tensor."""

_LONGEST_SAVE = datetime.timedelta(hours=4)  # the ranks wait for the slowest
_MARGIN_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class Snapshot:
    """What a checkpoint of this moment holds, as this rank has it.

    Attributes:
        groups: "model", "optimizer", ... -> name -> parameter, or "parameter name/entry" -> moment; each
            whole or this rank's part of a DTensor.
        random: Name of a generator, unique among ranks -> its state (uint8).
        state: Step, samples and tokens consumed, loss scale, ... (JSON-like); the same on all ranks.
        about: Resolved config, data fingerprint, ... (JSON-like); the same on all ranks.
        companions: Of the model; the same on all ranks.
    """

    groups: Mapping[str, Mapping[str, Tensor]]
    random: Mapping[str, Tensor]
    state: Mapping[str, Any]
    about: Mapping[str, Any]
    companions: Companions = dataclasses.field(default_factory=Companions)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Job:
    """What is left to do of a save once the loop may go on."""

    step: int
    groups: list[str]
    tensors: Mapping[Key, LazyTensor]
    shares: list[dict[Key, ShardMetadata]]
    state: Mapping[str, Any]
    about: Mapping[str, Any]
    replaces: bool
    companions: Companions
    began: float


class Writer:
    """Saves checkpoints of a run, one at a time; all ranks use it together, as a context.

    Args:
        checkpoints_dir: Where they are written; all ranks see the same folder.
        model: Config of the model.
        tokenizer: Of the run; stored with each checkpoint.
        mesh: The ranks.
        asynchronous: Copy the state, and write the copy while training goes on.
        keep: Which checkpoints stay.
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
    ) -> None:
        self._dir = checkpoints_dir
        self._model = model
        self._tokenizer = tokenizer
        self._mesh = mesh
        self._asynchronous = asynchronous
        self._pruning = Pruning(checkpoints_dir, keep)
        self._group = dist.new_group(backend="gloo", timeout=_LONGEST_SAVE) if mesh.size > 1 else None
        self._thread = ThreadPoolExecutor(1, "checkpoint") if asynchronous else None
        self._writing: Future[None] | None = None
        self._plan: dict[Key, ShardMetadata] = {}
        self._shares: list[dict[Key, ShardMetadata]] = []
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
        parts = {
            (group, name): local_shard_of(name, tensor, self._model)
            for group, tensors in snapshot.groups.items()
            for name, tensor in tensors.items()
        }
        parts |= {("random", name): _whole(state) for name, state in snapshot.random.items()}
        shares = self._agreed_shares({key: part.held for key, part in parts.items()})
        self._together(
            lambda: self._prepare(step, shares) if self._mesh.is_first else None, step, self._gather
        )
        mine = {key: parts[key].values for key in shares[self._mesh.rank]}
        copy = self._thread is not None
        job = _Job(
            step=step,
            groups=[*snapshot.groups, "random"],
            tensors={
                key: _stored(self._copied(key, values) if copy else values) for key, values in mine.items()
            },
            shares=shares,
            state=dict(snapshot.state),
            about=dict(snapshot.about),
            replaces=replaces,
            companions=snapshot.companions,
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

    def _agreed_shares(self, plan: dict[Key, ShardMetadata]) -> list[dict[Key, ShardMetadata]]:
        """What each rank writes; worked out anew only when what the ranks hold has changed."""
        if self._mesh.any(plan != self._plan):
            self._plan = plan
            self._shares = plan_save(self._mesh.all_gather(plan))
            self._copies.clear()
        return self._shares

    def _prepare(self, step: int, shares: list[dict[Key, ShardMetadata]]) -> None:
        temporary = store.temporary_of(self._dir, step)
        store.remove(temporary)
        size_bytes = sum(held.size_bytes for share in shares for held in share.values())
        require_free_space(self._dir, size_bytes + _MARGIN_BYTES, f"the checkpoint of step {step}")
        temporary.mkdir(parents=True)

    def _copied(self, key: Key, values: Tensor) -> Tensor:
        """A copy on the CPU; its memory is used again by the next save."""
        if key not in self._copies:
            on_gpu = values.device.type == "cuda"  # which copies to pinned memory several times faster
            self._copies[key] = torch.empty(values.shape, dtype=values.dtype, pin_memory=on_gpu)
        return self._copies[key].copy_(values)

    def _write(self, job: _Job) -> None:
        """Writes this rank's files, and completes the checkpoint once all ranks have."""
        files: dict[str, FileRecord] = {}
        gather = functools.partial(self._gather, group=self._group)
        for written in self._together(lambda: self._write_files(job), job.step, gather):
            files.update(written)
        self._together(lambda: self._complete(job, files) if self._mesh.is_first else None, job.step, gather)

    def _write_files(self, job: _Job) -> dict[str, FileRecord]:
        """Writes this rank's files; returns their sizes and checksums."""
        temporary = store.temporary_of(self._dir, job.step)
        by_group: dict[str, dict[str, LazyTensor]] = {group: {} for group in job.groups}
        for (group, name), tensor in job.tensors.items():
            by_group[group][name] = tensor
        files = {}
        for group, tensors in by_group.items():
            if not tensors and self._mesh.size > 1:
                continue
            path = temporary / file_name(group, self._mesh.rank, self._mesh.size)
            checksum = write_safetensors(path, tensors)
            fsync_file(path)
            files[path.name] = FileRecord(bytes=path.stat().st_size, checksum=checksum)
        return files

    def _complete(self, job: _Job, files: dict[str, FileRecord]) -> None:
        temporary = store.temporary_of(self._dir, job.step)
        others: list[str] = []
        if self._mesh.size > 1:
            write_parts(temporary, job.groups, job.shares)
            others.append(PARTS)
        others += write_tokenizer(temporary, self._tokenizer, job.companions)
        files = files | describe_files(temporary, others)
        about = {**job.about, "tokenizer": self._tokenizer.fingerprint, "torch": torch.__version__}
        folder = store.folder_of(self._dir, job.step)
        complete(temporary, folder, files=files, state=dict(job.state), about=about, replaces=job.replaces)
        store.point_latest(folder)
        seconds = time.monotonic() - job.began
        size_bytes = sum(described.bytes for described in files.values())
        logger.info("saved %s (%sB in %.1f s)", folder, human_count(size_bytes), seconds)
        self._pruning.after_saving(folder)

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
            failure = write_failure(self._dir, step, error)
            problem = failure.what, failure.where, failure.fix
        outcomes = gather((problem, result))
        for rank, (found, _) in enumerate(outcomes):
            if found is None:
                continue
            if self._mesh.is_first:
                shutil.rmtree(store.temporary_of(self._dir, step), ignore_errors=True)
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


def _whole(tensor: Tensor) -> Part:
    shape = tuple(tensor.shape)
    return Part(
        ShardMetadata(tensor.dtype, shape, Chunk((0,) * tensor.ndim, shape)), tensor, tensor.new_empty(0)
    )


def _stored(values: Tensor) -> LazyTensor:
    """Values that may be on a GPU, brought to the CPU when they are written."""
    return LazyTensor(shape=tuple(values.shape), dtype=values.dtype, read=values.cpu)
