"""Documents that have the same id: none is dropped, but what is traced by an id finds them all."""

import dataclasses
import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import xxhash

from groundup.core.errors import DataError
from groundup.core.log import logger
from groundup.corpus.document import Document
from groundup.corpus.shard import Shard, read_shard

_FIX = "Give each document an id of its own, or leave the field id out: then it is file:line."
_AT_ONCE = 1 << 26  # ids, of 8 bytes


@dataclasses.dataclass(frozen=True, slots=True)
class DuplicateIds:
    """Documents whose id an earlier one has.

    Attributes:
        count: How many.
        first: Two documents of one id.
    """

    count: int
    first: tuple[Document, Document]


def ids_path(shard: Shard) -> Path:
    """The hashes of the ids of a shard's documents, in their order."""
    return shard.folder / f"ids-{shard.number:05d}-of-{shard.total:05d}.bin"


def id_hash(identity: str) -> int:
    """64 bits: among a hundred million ids two differ and share it with a probability of 3e-4."""
    return xxhash.xxh3_64_intdigest(identity.encode("utf-8", "surrogatepass"))


def find_duplicate_ids(shards: Sequence[Shard]) -> DuplicateIds | None:
    """Finds documents with an id that an earlier one has; a share of all hashes at a time."""
    hashes = [np.fromfile(ids_path(shard), "<u8") for shard in shards]
    total = sum(map(len, hashes))
    parts = -(-total // _AT_ONCE)
    count, first = 0, None
    for part in range(parts):
        places = [np.flatnonzero(some % np.uint64(parts) == part) for some in hashes]
        values = np.concatenate([some[here] for some, here in zip(hashes, places, strict=True)])
        order = np.argsort(values, kind="stable")
        again = np.flatnonzero(values[order][1:] == values[order][:-1])
        count += len(again)
        if first is None and len(again):
            bounds = list(itertools.accumulate(map(len, places), initial=0))
            pair = sorted(int(order[again[0] + step]) for step in (0, 1))
            owners = [int(np.searchsorted(bounds, at, "right")) - 1 for at in pair]
            numbers = [int(places[owner][at - bounds[owner]]) for owner, at in zip(owners, pair, strict=True)]
            first = [_document(shards[owner], at) for owner, at in zip(owners, numbers, strict=True)]
    return DuplicateIds(count, (first[0], first[1])) if first else None


def judge_duplicate_ids(shards: Sequence[Shard], *, are_refused: bool) -> None:
    """Warns of documents with the same id.

    Raises:
        DataError: There are some, and they are refused.
    """
    found = find_duplicate_ids(shards)
    if found is None:
        return
    one, other = (document.meta.get("origin", document.id) for document in found.first)
    name = found.first[0].id
    told = f"{found.count:,} documents have an id that an earlier one has: {name!r} is that of {one}"
    if are_refused:
        raise DataError(f"{told} too", where=other, fix=_FIX)
    logger.warning("%s and of %s; they are kept, and traced together", told, other)


def _document(shard: Shard, number: int) -> Document:
    return next(itertools.islice(read_shard(shard), number, None))
