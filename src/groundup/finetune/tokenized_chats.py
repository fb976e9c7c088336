"""Conversations as tokens with what is learned of each, kept in the run folder."""

import collections
import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt
import orjson
import xxhash

from groundup.core.errors import DataError
from groundup.core.files import atomic_folder
from groundup.core.log import logger
from groundup.core.manifest import fingerprint
from groundup.core.progress import Progress
from groundup.corpus.sources import find_source_files
from groundup.finetune.chats import ChatRecord, NoConversation, RecordFields, messages_of, read_records
from groundup.tokens.tokenizer.base import Tokenizer

if TYPE_CHECKING:
    from groundup.inference.chat_template import ChatTemplate

_ABOUT, _LEFT_OUT = "conversations.json", "left-out.jsonl"
_SHOWN = 5


class RecordFormat(Protocol):
    """What makes tokens of records: see ``ChatFormat``."""

    noun: ClassVar[str]
    """What is made of them, for messages."""

    @property
    def tokenizer(self) -> Tokenizer:
        """Of the model."""
        ...

    @property
    def max_tokens(self) -> int:
        """Of what is learned at once; a record with more is left out."""
        ...

    def fingerprint(self, paths: Sequence[Path]) -> str:
        """Hashes what decides the tokens of files."""
        ...

    def encode(self, record: ChatRecord) -> tuple[list[int], list[bool]]:
        """Returns the ids of a record, and of each whether it is learned.

        Raises:
            NoConversation: There is nothing to learn from.
        """
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChatFormat:
    """How conversations become tokens.

    Attributes:
        tokenizer: Of the model.
        template: Of the model.
        template_source: Its text, which decides the tokens.
        fields: Names of fields in a record.
        last_answer_only: Whether only the last answer of a conversation is learned.
        max_tokens: Of a conversation; a longer one is left out.
    """

    noun: ClassVar[str] = "conversations"
    tokenizer: Tokenizer
    template: "ChatTemplate"
    template_source: str
    fields: RecordFields
    last_answer_only: bool
    max_tokens: int

    def fingerprint(self, paths: Sequence[Path]) -> str:
        """Hashes what decides the tokens of files."""
        files = [[file.name, file.size_bytes, file.mtime_ns] for file in find_source_files(paths)]
        settings = [dataclasses.asdict(self.fields), self.last_answer_only, self.max_tokens]
        return fingerprint([self.tokenizer.fingerprint, self.template_source, settings, files])

    def encode(self, record: ChatRecord) -> tuple[list[int], list[bool]]:
        """Returns the ids of a record's conversation, and of each whether it is learned.

        Raises:
            NoConversation: There is none to learn from.
        """
        from groundup.inference.chat_template import TemplateRefusal

        if record.problem:
            raise record.problem
        messages = messages_of(record.fields, self.fields)
        try:
            parts = self.template.answers(messages, last=self.last_answer_only)
        except TemplateRefusal as error:
            loses = "loses" in error.what
            raise NoConversation(
                "the template loses a turn" if loses else "refused by the template", str(error)
            ) from None
        ids: list[int] = []
        learned: list[bool] = []
        for part, is_learned in parts:
            ids += [part] if isinstance(part, int) else self.tokenizer.encode(part)
            learned += [is_learned] * (len(ids) - len(learned))
        if len(ids) > self.max_tokens:
            raise NoConversation("too long", f"{len(ids):,} tokens; at most {self.max_tokens:,} fit")
        if not any(learned[1:]):
            raise NoConversation("no assistant turn", "the template writes none")
        return ids, learned


class ChatSource:
    """Conversations one behind the other, memory-mapped; see ``TokenSource``.

    They lie in the order of a hash of their tokens, so that a split divides them by chance, and the same
    conversation twice is in one split.

    Attributes:
        learned: Of each token, whether it is learned.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self.about: dict[str, Any] = orjson.loads((folder / _ABOUT).read_bytes())
        self.tokens: npt.NDArray[Any] = np.load(folder / "tokens.npy", mmap_mode="r")
        self.learned: npt.NDArray[np.bool_] = np.load(folder / "learned.npy", mmap_mode="r")
        self._begins: npt.NDArray[np.int64] = np.load(folder / "begins.npy")
        self._places: npt.NDArray[np.int64] = np.load(folder / "places.npy")

    @property
    def num_documents(self) -> int:
        """Conversations."""
        return len(self._begins) - 1

    @property
    def fingerprint(self) -> str:
        """See ``TokenSource.fingerprint``: that of the content, not of the files."""
        found: str = self.about["content"]
        return found

    def token_begin(self, document: int) -> int:
        """See ``TokenSource.token_begin``."""
        return int(self._begins[document])

    def document_lengths(self, begin: int, end: int) -> npt.NDArray[np.int32]:
        """See ``TokenSource.document_lengths``."""
        return np.diff(self._begins[begin : end + 1]).astype(np.int32)

    def documents_at(self, positions: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """See ``TokenSource.documents_at``."""
        return np.searchsorted(self._begins, np.asarray(positions), side="right") - 1

    def place(self, document: int) -> tuple[str, int]:
        """Returns file and line of a conversation."""
        file, line = self._places[document].tolist()
        return self.about["files"][file], line

    def describe(self) -> str:
        """Returns what was read and what was left out, in a line."""
        left_out = self.about["left_out"]
        said = (
            f"{self.name}: {self.num_documents:,} {self.about['noun']} of {len(self.tokens):,} tokens,"
            f" {int(self.learned.sum()) / max(1, len(self.tokens)):.0%} of them learned"
        )
        if left_out:
            reasons = ", ".join(f"{count:,} {reason}" for reason, count in left_out.items())
            said += f"; {sum(left_out.values()):,} left out: {reasons}"
        return said


def open_chats(paths: Sequence[Path], how: RecordFormat, folder: Path) -> ChatSource:
    """Reads and tokenizes conversations, or opens what an earlier reading of the same files left.

    Args:
        paths: Files, folders and globs.
        how: They become tokens.
        folder: Where they are kept, each set in a folder of its own.

    Raises:
        DataError: A file cannot be read, or no conversation is left.
    """
    kept = folder / how.fingerprint(paths)
    name = ", ".join(map(str, paths))
    if not (kept / _ABOUT).is_file():
        written = _read(paths, how, name)
        with contextlib.suppress(FileExistsError), atomic_folder(kept) as into:
            written(into)
    return ChatSource(kept, name)


def _read(paths: Sequence[Path], how: RecordFormat, name: str) -> Callable[[Path], None]:
    """Tokenizes all conversations; returns what writes them to a folder."""
    conversations: list[tuple[int, npt.NDArray[np.uint32], npt.NDArray[np.bool_], tuple[int, int]]] = []
    files: dict[str, int] = {}
    left_out: list[dict[str, Any]] = []
    reasons: collections.Counter[str] = collections.Counter()
    sources = find_source_files(paths)
    with Progress(f"reading {how.noun}", sum(file.size_bytes for file in sources), "B") as progress:
        for record in read_records(sources, progress.add):
            try:
                ids, learned = how.encode(record)
            except NoConversation as problem:
                reasons[problem.reason] += 1
                left_out.append({"where": record.where, "reason": problem.reason, "detail": problem.detail})
                continue
            tokens = np.array(ids, dtype=np.uint32)
            place = files.setdefault(str(record.path), len(files)), record.line
            conversations.append((xxhash.xxh64_intdigest(tokens.tobytes()), tokens, np.array(learned), place))
    for one in left_out[:_SHOWN]:
        detail = f" ({one['detail']})" if one["detail"] else ""
        logger.warning("%s: left out: %s%s", one["where"], one["reason"], detail)
    if len(left_out) > _SHOWN:
        logger.warning("and %d more, which %s in the run folder lists", len(left_out) - _SHOWN, _LEFT_OUT)
    if not conversations:
        raise DataError(
            f"holds no {how.noun} to learn from: "
            + (", ".join(f"{count:,} {reason}" for reason, count in reasons.most_common()) or "it is empty"),
            where=name,
            fix="See `groundup finetune --help` for the forms that are read, and stage.fields for others.",
        )
    conversations.sort(key=lambda one: (one[0], one[3]))

    def write(folder: Path) -> None:
        tokens = np.concatenate([one[1] for one in conversations])
        learned = np.concatenate([one[2] for one in conversations])
        begins = np.cumsum([0, *(len(one[1]) for one in conversations)], dtype=np.int64)
        np.save(folder / "tokens.npy", tokens)
        np.save(folder / "learned.npy", learned)
        np.save(folder / "begins.npy", begins)
        np.save(folder / "places.npy", np.array([one[3] for one in conversations], dtype=np.int64))
        content = xxhash.xxh64_hexdigest(tokens.tobytes() + learned.tobytes() + begins.tobytes())
        about = {
            "noun": how.noun,
            "content": content,
            "files": list(files),
            "left_out": dict(reasons.most_common()),
        }
        (folder / _LEFT_OUT).write_bytes(b"".join(orjson.dumps(one) + b"\n" for one in left_out))
        (folder / _ABOUT).write_bytes(orjson.dumps(about))

    return write
