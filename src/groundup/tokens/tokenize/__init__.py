"""Documents to ``.bin`` and ``.idx``: cut into parts, tokenized by many, joined in the input's order.

The files equal those of Megatron-LM's ``preprocess_data.py`` (2023) byte for byte, whoever did the parts
and however often it was killed: documents without tokens are left out, special tokens written in a text
are ordinary text.
"""

import contextlib
import dataclasses
import errno
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from groundup.core.errors import ConfigError, MachineError
from groundup.core.executor.local import runner_of
from groundup.core.executor.tasks import RayRunner, pending, share_of_rank
from groundup.corpus.bad_records import BadRecordPolicy
from groundup.tokens.dataset.dataset_manifest import TokensCounts
from groundup.tokens.tokenize.steps import Build
from groundup.tokens.tokenizer.base import Tokenizer


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokensReport:
    """What a build wrote.

    Attributes:
        prefixes: For each key, the prefix of its ``.bin``, ``.idx``, ``.sources.npz`` and manifest.
        counts: For each key, its manifest's counts.
        reused: Whether an earlier build was found complete.
        seconds: Taken.
    """

    prefixes: dict[str, Path]
    counts: dict[str, TokensCounts]
    reused: bool
    seconds: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class RankReport:
    """What one job of an array did.

    Attributes:
        done: Parts done by this run.
        left: Parts that are still to be done, by other ranks.
        total: All parts.
    """

    done: int
    left: int
    total: int


def build_tokens(
    sources: Sequence[Path],
    prefix: Path,
    tokenizer: Tokenizer,
    *,
    keys: Sequence[str] = ("text",),
    append_end_of_document: bool = True,
    begin_ids: tuple[int, ...] = (),
    workers: int | None = None,
    bad_records: BadRecordPolicy | None = None,
    ray: RayRunner | None = None,
    part_bytes: int | None = None,
) -> TokensReport:
    """Writes ``{prefix}_{key}_document.{bin,idx,sources.npz,json}`` and ``{prefix}_tokenizer/``.

    With the same settings and unchanged inputs it finds its work done and returns at once; what a killed
    run, or the ranks of ``build_rank``, have finished is taken up from ``{prefix}_parts/``.

    Args:
        sources: JSONL, Parquet and text files, folders and globs, plain or compressed.
        prefix: Path and beginning of the names of what is written.
        tokenizer: Its folder is written beside.
        keys: Fields to tokenize, each into files of its own; text files are read only with one key.
        append_end_of_document: Whether each document is closed by the end-of-document id.
        begin_ids: What each document begins with.
        workers: Processes; None for one on each core, 0 for none.
        bad_records: What to do with malformed records.
        ray: Do the parts on a Ray cluster instead.
        part_bytes: About how much of the input is a part; changes no byte of the result; None is a 64th.

    Raises:
        DataError: A source is missing, nothing was left to write, or as ``bad_records`` decides.
        MachineError: Another build of this prefix is under way, the disk is full, a worker was killed.
    """
    began = time.monotonic()
    policy = bad_records or BadRecordPolicy()
    build = Build(sources, prefix, tokenizer, keys, append_end_of_document, policy, begin_ids)
    if counts := build.finished():
        seconds = time.monotonic() - began
        return TokensReport(prefixes=build.prefixes, counts=counts, reused=True, seconds=seconds)
    build.require_replaceable()
    runner = ray or runner_of(workers)
    with _writing(prefix), build.locked(shared=False):
        try:
            build.cut(part_bytes)
            build.clean()
            build.do(build.pending(), runner)
            counts = build.join()
        finally:
            build.remove_empty()
    return TokensReport(
        prefixes=build.prefixes, counts=counts, reused=False, seconds=time.monotonic() - began
    )


def build_rank(
    sources: Sequence[Path],
    prefix: Path,
    tokenizer: Tokenizer,
    *,
    rank: int,
    world_size: int,
    keys: Sequence[str] = ("text",),
    append_end_of_document: bool = True,
    workers: int | None = None,
    bad_records: BadRecordPolicy | None = None,
    part_bytes: int | None = None,
) -> RankReport:
    """Does the parts of a build that fall to one job of an array, and joins nothing.

    Part k falls to rank k modulo ``world_size``. When all ranks have ended, ``build_tokens`` with the same
    arguments joins the parts (and does what is missing): it alone writes the dataset, so nothing can race.

    Args:
        sources: As for ``build_tokens``, like all that is not named here.
        prefix: On a file system that all ranks see.
        tokenizer: The same for all ranks.
        rank: Of this job, from 0.
        world_size: Number of jobs.
        keys: Fields to tokenize.
        append_end_of_document: Whether each document is closed.
        workers: Processes of this rank.
        bad_records: What to do with malformed records.
        part_bytes: About how much of the input is a part.

    Raises:
        ConfigError: ``rank`` is not below ``world_size``.
        DataError: As for ``build_tokens``.
        MachineError: As for ``build_tokens``.
    """
    if not 0 <= rank < world_size:
        raise ConfigError(
            f"rank {rank} of {world_size}",
            where="--rank",
            fix="Ranks are numbered from 0 to one below --world-size.",
        )
    build = Build(sources, prefix, tokenizer, keys, append_end_of_document, bad_records or BadRecordPolicy())
    if build.finished():
        build.cut(part_bytes)
        return RankReport(done=0, left=0, total=len(build.tasks))
    build.require_replaceable()
    runner = runner_of(workers)
    with _writing(prefix), build.locked(shared=True), build.locked_rank(rank, world_size):
        build.cut(part_bytes)
        mine = pending(share_of_rank(build.tasks, rank, world_size), build.markers)
        build.do(mine, runner)
        left = len(pending(build.tasks, build.markers))
    return RankReport(done=len(mine), left=left, total=len(build.tasks))


@contextlib.contextmanager
def _writing(prefix: Path) -> Iterator[None]:
    """What the machine does not grant is the user's to mend."""
    try:
        yield
    except MemoryError:
        raise MachineError(
            "out of memory", where=prefix, fix="Use fewer --workers; what is finished is kept."
        ) from None
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise MachineError(
            "the disk is full" if full else f"cannot write the tokens ({error.strerror or error})",
            where=error.filename or prefix,
            fix="Free some space, or name another --prefix; what is finished is kept, run the same again."
            if full
            else "Make the folder writable or name another --prefix.",
        ) from error
