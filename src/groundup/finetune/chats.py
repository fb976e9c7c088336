"""Conversations from records: whose turns are in which fields, and what is wrong with those left out."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from groundup.core.config import config
from groundup.corpus.records import RecordReader
from groundup.corpus.source_ranges import SourceRange
from groundup.corpus.sources import SourceFile

_ROLES = {
    "system": "system",
    "developer": "developer",
    "user": "user",
    "human": "user",
    "prompter": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "model": "assistant",
    "tool": "tool",
    "function": "tool",
    "observation": "tool",
}
"""Names of roles in OpenAI's and ShareGPT's data -> those that chat templates know."""


@config
class RecordFields:
    """Names of fields in a record, where they are not of a known form; an empty one is recognised.

    Attributes:
        messages: A list of turns.
        role: Of a turn: who speaks.
        content: Of a turn: what is said.
        prompt: The user's only turn.
        completion: The assistant's only turn, with ``prompt``.
        system: The system's turn, before all others.
    """

    messages: str = ""
    role: str = ""
    content: str = ""
    prompt: str = ""
    completion: str = ""
    system: str = ""

    def __post_init__(self) -> None:
        """Refuses half of a pair."""
        if bool(self.prompt) != bool(self.completion):
            raise ValueError("fields.prompt and fields.completion go together")
        if self.messages and self.prompt:
            raise ValueError("a conversation is in fields.messages, or in fields.prompt and completion")


class NoConversation(Exception):  # not an error of the run
    """A record is no conversation to learn from.

    Attributes:
        reason: One of few.
        detail: What is particular to this one.
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail


@dataclasses.dataclass(frozen=True, slots=True)
class ChatRecord:
    """A record of a file; ``fields`` is empty where ``problem`` says what is wrong with it."""

    path: Path
    line: int
    fields: Mapping[str, Any]
    problem: NoConversation | None = None

    @property
    def where(self) -> str:
        """Returns ``file:line``."""
        return f"{self.path}:{self.line}"


def read_records(
    files: Sequence[SourceFile], on_read: Callable[[int], None] = lambda size: None
) -> Iterator[ChatRecord]:
    """Reads the records of JSONL (also .gz and .zst), Parquet or Arrow files.

    Args:
        files: As ``find_source_files`` finds them.
        on_read: Told the bytes taken from disk.

    Raises:
        DataError: A file is missing, damaged, or of a kind that has no records.
    """
    for file in files:
        for record in RecordReader(SourceRange(file, file.size_bytes), "text", on_read=on_read):
            bad = record.problem
            problem = NoConversation(bad.reason, bad.detail) if bad else None
            yield ChatRecord(file.path, record.line, record.fields, problem)


def messages_of(fields: Mapping[str, Any], names: RecordFields) -> list[dict[str, str]]:
    """Returns the turns of a record, the assistant's last one at the end.

    Recognised are OpenAI's ``messages`` of role and content, ShareGPT's ``conversations`` of from and value,
    Alpaca's instruction, input and output, and a prompt with a completion (texts, or lists of messages).

    Raises:
        NoConversation: It holds none from which an assistant could learn.
    """
    turns = list(_turns(fields, names))
    while turns and turns[-1]["role"] != "assistant":
        turns.pop()  # nobody answers
    if not turns:
        raise NoConversation("no assistant turn")
    for turn in turns:
        if not turn["content"].strip():
            raise NoConversation("empty turn", f"the {turn['role']}'s")
    return turns


def _turns(fields: Mapping[str, Any], names: RecordFields) -> Iterator[dict[str, str]]:
    system = fields.get(names.system or "system")
    if isinstance(system, str) and system.strip():
        yield {"role": "system", "content": system}
    if names.prompt:
        yield {"role": "user", "content": text_of(fields.get(names.prompt), names.prompt)}
        yield {"role": "assistant", "content": text_of(fields.get(names.completion), names.completion)}
        return
    listed = [names.messages] if names.messages else ["messages", "conversations", "conversation"]
    for key in listed:
        if isinstance(fields.get(key), list):
            yield from (turn_of(turn, names) for turn in fields[key])
            return
    if names.messages:
        raise NoConversation("no such field", f"no list under {names.messages!r}")
    if "instruction" in fields:
        instruction, more = text_of(fields["instruction"], "instruction"), fields.get("input")
        if more and text_of(more, "input").strip():
            instruction = f"{instruction}\n\n{more}"
        yield {"role": "user", "content": instruction}
        key = next((key for key in ("output", "response") if key in fields), "output")
        yield {"role": "assistant", "content": text_of(fields.get(key), key)}
        return
    answer = next((key for key in ("completion", "response", "answer") if key in fields), None)
    question = next((key for key in ("prompt", "question") if key in fields), None)
    if answer is None or question is None:
        keys = ", ".join(list(fields)[:8]) or "none"
        hint = "; stage.kind=dpo learns from pairs" if "rejected" in fields else ""
        raise NoConversation("unknown form", f"the keys are: {keys}{hint}")
    for key, role in ((question, "user"), (answer, "assistant")):
        if isinstance(fields[key], list):
            yield from (turn_of(turn, names) for turn in fields[key])
        else:
            yield {"role": role, "content": text_of(fields[key], key)}


def turn_of(turn: Any, names: RecordFields) -> dict[str, str]:
    """Returns a turn of OpenAI's or ShareGPT's form, the role by its common name.

    Raises:
        NoConversation: It is none, or of an unknown role.
    """
    if not isinstance(turn, Mapping):
        raise NoConversation("malformed turn", f"it is of type {type(turn).__name__}")
    role = turn.get(names.role) if names.role else turn.get("role", turn.get("from"))
    known = _ROLES.get(role) if isinstance(role, str) else None
    if known is None:
        raise NoConversation("unknown role", repr(role))
    if turn.get("tool_calls"):
        raise NoConversation("tool calls", "they are no text")
    key = names.content or ("content" if "content" in turn else "value")
    return {"role": known, "content": text_of(turn.get(key), key)}


def text_of(value: Any, key: str) -> str:
    """Returns the text under a key: a string, or OpenAI's list of parts that are texts.

    Raises:
        NoConversation: It is no text.
    """
    if isinstance(value, bytes):  # a string of a Parquet row
        value = value.decode(errors="replace")
    if isinstance(value, list) and all(isinstance(part, Mapping) and "text" in part for part in value):
        value = "".join(str(part["text"]) for part in value)
    if not isinstance(value, str):
        given = "missing" if value is None else f"of type {type(value).__name__}"
        raise NoConversation("not a text", f"{key!r} is {given}")
    return value
