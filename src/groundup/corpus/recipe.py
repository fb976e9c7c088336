"""What a user writes to make a corpus: the stages, and how many shards they work on."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import pydantic

from groundup.core.config import config
from groundup.corpus.bad_records import BadRecordPolicy
from groundup.corpus.filters import Filter, FixUnicode, NormalizeWhitespace
from groundup.corpus.finish import Finish, ShardFormat
from groundup.corpus.stages import AnyStage, Clean, ExactDedup, Import, Shuffle

_SMALL_SHARD_BYTES = 1 << 22
_SMALL_PAGES_BYTES = 1 << 20  # to find their main text takes much longer than to read them
_SHARD_BYTES = 1 << 26
_FEW_SHARDS = 64


@config
class Recipe:
    """How to make a corpus.

    Attributes:
        stages: What is done, in this order; the first is an ``import``.
        num_shards: Files that each stage writes, and tasks that it is cut into. None takes one for every 4
            MB of the sources (1 MB of pages alone) up to 64, and beyond 4 GB one for every 64 MB. The
            documents and their order do not depend on it.
        bad_records: What to do with records that cannot be read.
        keep_dropped: Keep dropped documents whole, with their metadata, instead of their first 200
            characters.
        keep_stages: Keep what every stage has written when all is done, so that a change of a later stage
            does not begin anew; takes as much disk again for each stage. Otherwise a stage that looks at one
            document at a time takes them from the one before without a file between the two.
        format: Of the files of documents: ``jsonl`` (JSON lines, compressed with Zstandard) or ``parquet``.
    """

    stages: Annotated[tuple[AnyStage, ...], pydantic.Field(min_length=1)]
    num_shards: Annotated[int, pydantic.Field(ge=1, le=99_999)] | None = None
    bad_records: BadRecordPolicy = BadRecordPolicy()
    keep_dropped: bool = False
    keep_stages: bool = True
    format: ShardFormat = "jsonl"

    def __post_init__(self) -> None:
        kinds = [stage.kind for stage in self.stages]
        if [kind == "import" for kind in kinds] != [True] + [False] * (len(kinds) - 1):
            raise ValueError("the first stage, and no other, is of the kind import")

    @property
    def first(self) -> Import:
        """The stage that reads the sources."""
        stage = self.stages[0]
        assert isinstance(stage, Import), "__post_init__ has looked"
        return stage

    @property
    def finish(self) -> Finish:
        """What is done to the shards of the last stage."""
        return Finish(format=self.format)

    def number_of_shards(self, size_bytes: int) -> int:
        """The number of shards for sources of a size, which does not depend on the machine."""
        if self.num_shards is not None:
            return self.num_shards
        small_bytes = _SMALL_PAGES_BYTES if self.first.pages.only else _SMALL_SHARD_BYTES
        small = min(_FEW_SHARDS, -(-size_bytes // small_bytes))
        return max(1, small, -(-size_bytes // _SHARD_BYTES))


def default_recipe(
    sources: Sequence[Path],
    *,
    python_library: bool = False,
    text_key: str = "text",
    cut_characters: int = 0,
    filters: Sequence[Filter] = (FixUnicode(), NormalizeWhitespace()),
    deduplicate: bool = True,
    shuffle_seed: int | None = 0,
    bad_records: BadRecordPolicy | None = None,
) -> Recipe:
    """The recipe of ``groundup corpus build``: import, clean, drop exact duplicates, shuffle.

    Args:
        sources: Files, folders and globs.
        python_library: Read the Python library too.
        text_key: The field that holds the text.
        cut_characters: Cut longer documents; 0 keeps them whole.
        filters: Of cleaning.
        deduplicate: Whether duplicates are dropped.
        shuffle_seed: None keeps the order of the sources.
        bad_records: What to do with records that cannot be read.
    """
    first = Import(
        sources=tuple(sources),
        python_library=python_library,
        text_key=text_key,
        cut_characters=cut_characters,
    )
    stages: list[AnyStage] = [first, Clean(filters=tuple(filters))]
    if deduplicate:
        stages.append(ExactDedup())
    if shuffle_seed is not None:
        stages.append(Shuffle(seed=shuffle_seed))
    return Recipe(stages=tuple(stages), bad_records=bad_records or BadRecordPolicy())
