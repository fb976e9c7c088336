"""The stage that takes the items of evaluation tasks out of the corpus."""

import collections
import dataclasses
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import orjson

from groundup.core.compressed import open_decompressed
from groundup.core.config import config
from groundup.core.errors import DataError
from groundup.core.executor.tasks import Done, Report
from groundup.corpus.document import Document, from_json_line, text_bytes
from groundup.corpus.ngram_overlap import NgramIndex, Overlap
from groundup.corpus.shard import Shard, ShardWriter, read_lines, write_shard
from groundup.corpus.stage import BarrierStage, Phase, Phases, StageRun

_ENDINGS = ("endings", "choices", "options")
_TEXTS = ("text", "ctx", "question", "goal", "prompt", "sentence", "context", "content")


@config
class Decontaminate(BarrierStage):
    """Cuts the n-grams of evaluation tasks out of the documents, by Megatron-LM's rule (``ngram_overlap``).

    First all n-grams of the tasks are counted in the whole corpus; then those that are not common language
    are cut out. What is left of a document keeps its id, with ``#0``, ``#1``, ... where it is more than one.

    Attributes:
        against: JSONL files of items, plain, .gz or .zst. The text of an item is its ``text``, ``ctx``,
            ``question``, ``goal``, ``prompt``, ``sentence``, ``context`` or ``content``, whichever comes
            first, with each of its ``endings``, ``choices`` or ``options`` where it has some.
        overlap: Which n-grams count, and what is cut around them.
        report_only: Leave the documents as they are, and report how many items they hold.
    """

    kind: Literal["decontaminate"] = "decontaminate"
    against: tuple[Path, ...]
    overlap: Overlap = Overlap()
    report_only: bool = False

    def __post_init__(self) -> None:
        if not self.against:
            raise ValueError("name at least one file of items in against")

    @property
    def settings(self) -> dict[str, Any]:
        """With size and time of change of the files of items."""
        stats = [(path.stat().st_size, path.stat().st_mtime_ns) for path in self.against if path.is_file()]
        return {**super().settings, "files": stats}

    def phases(self, run: StageRun) -> Phases:
        """Counts of each shard; each shard without the items."""
        _index(self.against, self.overlap)  # a wrong file is told before anything is begun
        counting = [run.task("counts", shard.number, shard) for shard in run.inputs]
        results = yield Phase(
            name="decontaminate: count",
            tasks=counting,
            work=_Count(self),
            total_bytes=run.input_bytes,
        )
        counts: collections.Counter[str] = collections.Counter()
        for result in results:
            counts.update(result["counts"])
        common = tuple(sorted(ngram for ngram, count in counts.items() if count >= self.overlap.common_count))
        pairs = list(zip(run.inputs, run.outputs, strict=True))
        yield Phase(
            name="decontaminate: cut",
            tasks=run.last_tasks(pairs),
            work=_Cut(self, common, run.keep_dropped),
            total_bytes=run.input_bytes,
        )


@dataclasses.dataclass(frozen=True, slots=True)
class _Count:
    """Counts the n-grams of the tasks in a shard."""

    stage: Decontaminate

    def __call__(self, shard: Shard, report: Report) -> Done:
        index = _index(self.stage.against, self.stage.overlap)
        counts: collections.Counter[str] = collections.Counter()
        for line in read_lines(shard, on_read=report):
            counts.update(index.count(from_json_line(line).text))
        return Done(files=[], result={"counts": dict(counts)})


@dataclasses.dataclass(frozen=True, slots=True)
class _Cut:
    """Writes a shard without the items of the tasks, and reports which of them it held."""

    stage: Decontaminate
    common: tuple[str, ...]
    keep_dropped: bool

    def __call__(self, shards: tuple[Shard, Shard], report: Report) -> Done:
        before, after = shards
        index = _index(self.stage.against, self.stage.overlap).without(frozenset(self.common))
        found: set[int] = set()
        with write_shard(after, keep_dropped=self.keep_dropped) as out:
            for line in read_lines(before, on_read=report):
                document = from_json_line(line)
                matches = index.count(document.text)
                if not matches or self.stage.report_only:
                    out.keep_line(line, text_bytes(document.text))
                else:
                    self._cut(document, index, out)
                found |= index.items_with(matches)
        return out.done(items_found=sorted(found))

    def _cut(self, document: Document, index: NgramIndex, out: ShardWriter) -> None:
        pieces = index.clean(document.text)
        if not pieces:
            out.drop(document, "decontaminate", "nothing left")
        elif len(pieces) > self.stage.overlap.max_pieces:
            out.drop(document, "decontaminate", "too many pieces")
        else:
            out.tally.edit("decontaminate")
            for number, piece in enumerate(pieces):
                name = f"{document.id}#{number}" if len(pieces) > 1 else document.id
                out.keep(dataclasses.replace(document, id=name, text=piece))


@functools.lru_cache(maxsize=1)
def _index(against: tuple[Path, ...], overlap: Overlap) -> NgramIndex:
    """The n-grams of all items; made once in each process."""
    return NgramIndex((texts for path in against for texts in _read_items(path)), overlap)


def _read_items(path: Path) -> Iterator[list[str]]:
    if not path.is_file():
        raise DataError("there is no such file of items", where=path, fix="Name a JSONL file.")
    with open_decompressed(path) as lines:
        for number, line in enumerate(lines, 1):
            try:
                item = orjson.loads(line)
            except orjson.JSONDecodeError as error:
                raise DataError(
                    f"not JSON ({error})", where=f"{path}:{number}", fix="Name a JSONL file."
                ) from None
            yield _texts_of(item, f"{path}:{number}")


def _texts_of(item: Any, where: str) -> list[str]:
    fields = item if isinstance(item, dict) else {}
    text = next((fields[name] for name in _TEXTS if isinstance(fields.get(name), str)), None)
    if text is None:
        raise DataError(
            f"the item has no text: its fields are {', '.join(fields) or 'none'}",
            where=where,
            fix=f"Name the text of an item {', '.join(_TEXTS[:-1])} or {_TEXTS[-1]}.",
        )
    endings: list[Any] = next((fields[name] for name in _ENDINGS if isinstance(fields.get(name), list)), [])
    return [f"{text} {ending}" for ending in endings if isinstance(ending, str)] or [text]
