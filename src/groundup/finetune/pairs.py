"""Preference records as turns: a prompt, the chosen answer and the rejected one."""

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from groundup.core.config import config
from groundup.corpus.line_blocks import MalformedRecord

Turn = dict[str, str]
"""With "role" and "content"."""

_ROLES = {
    "human": "user",
    "gpt": "assistant",
    "bot": "assistant",
    "chatgpt": "assistant",
    "model": "assistant",
}
_KNOWN = ("system", "user", "assistant", "tool", "developer")
_PROMPTS = ("prompt", "question", "instruction", "conversations", "messages")
_HH = re.compile(r"\n\n(Human|Assistant):")


@config
class PairFields:
    """Names of the fields of a record.

    Attributes:
        prompt: Empty for the first of ``prompt``, ``question``, ``instruction`` (with ``input``),
            ``conversations`` and ``messages`` that is there; records without one begin both answers with it.
        chosen: The better answer, or a conversation that ends with it.
        rejected: The other one.
        system: A system turn before the prompt, where a record has it.
    """

    prompt: str = ""
    chosen: str = "chosen"
    rejected: str = "rejected"
    system: str = "system"


class Pair(NamedTuple):
    """Turns of a pair; both answers end with a turn of the assistant."""

    prompt: list[Turn]
    chosen: list[Turn]
    rejected: list[Turn]


def pair_of(record: Mapping[str, Any], fields: PairFields) -> Pair:
    """Reads a record of any of the recognised forms.

    Those of TRL (prompt, chosen and rejected, each a text or a list of messages; with the prompt repeated in
    the answers, or only there), of UltraFeedback, of Anthropic's helpful-harmless set, of Orca's pairs, and
    the preference forms of Alpaca and ShareGPT.

    Raises:
        MalformedRecord: With the reason by which it is counted.
    """
    chosen = _answer(record, fields.chosen, "chosen")
    rejected = _answer(record, fields.rejected, "rejected")
    prompt = _prompt(record, fields)
    shared = _num_common(chosen, rejected)
    if chosen[0]["role"] != "assistant":  # whole conversations, which repeat the prompt
        prompt = []
        if not shared:
            raise MalformedRecord("answers to different prompts")
    prompt, chosen, rejected = [*prompt, *chosen[:shared]], chosen[shared:], rejected[shared:]
    system = _text_of(record.get(fields.system))
    if system and prompt and prompt[0]["role"] != "system":
        prompt = [{"role": "system", "content": system}, *prompt]
    if not chosen and not rejected:
        raise MalformedRecord("identical answers")
    if not any(turn["content"].strip() for turn in prompt):
        raise MalformedRecord("no prompt")
    for name, answer in (("chosen", chosen), ("rejected", rejected)):
        if not answer or answer[-1]["role"] != "assistant":
            raise MalformedRecord("no answer of the assistant", f"{name} does not end with one")
        if not answer[-1]["content"].strip():
            raise MalformedRecord("empty answer", name)
    return Pair(prompt, chosen, rejected)


def _num_common(chosen: Sequence[Turn], rejected: Sequence[Turn]) -> int:
    same = itertools.takewhile(lambda two: two[0] == two[1], zip(chosen, rejected, strict=False))
    return sum(1 for _ in same)


def _answer(record: Mapping[str, Any], key: str, name: str) -> list[Turn]:
    value = record.get(key)
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    if value is None or (isinstance(value, list | dict) and not value):
        raise MalformedRecord(f"no {name}", f"has {', '.join(map(repr, record)) or 'nothing'}")
    if isinstance(value, str):
        parts = _HH.split(value)
        if len(parts) > 1 and not parts[0].strip():
            roles = {"Human": "user", "Assistant": "assistant"}
            pairs = zip(parts[1::2], parts[2::2], strict=True)
            return [{"role": roles[role], "content": text.strip()} for role, text in pairs]
        return [{"role": "assistant", "content": value}]
    return _turns(value, name)


def _prompt(record: Mapping[str, Any], fields: PairFields) -> list[Turn]:
    keys = [fields.prompt] if fields.prompt else _PROMPTS
    key = next((key for key in keys if record.get(key)), None)
    if key is None:
        return []
    value = record[key]
    if isinstance(value, str | bytes):
        text = _text_of(value)
        if key == "instruction" and (given := _text_of(record.get("input"))):
            text = f"{text}\n\n{given}"
        return [{"role": "user", "content": text}]
    return _turns(value, key)


def _text_of(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return value if isinstance(value, str) else ""


def _turns(value: object, name: str) -> list[Turn]:
    """Returns messages of OpenAI's or ShareGPT's form."""
    turns = []
    for message in value if isinstance(value, list) else [value]:
        if not isinstance(message, dict):
            raise MalformedRecord("not a conversation", f"{name} is of type {type(value).__name__}")
        role, content = message.get("role", message.get("from")), message.get("content", message.get("value"))
        if not isinstance(role, str) or not isinstance(content, str):
            raise MalformedRecord("not a conversation", f"a turn of {name} has no role or no text")
        role = _ROLES.get(role, role)
        if role not in _KNOWN:
            raise MalformedRecord("unknown role", f"{role!r} in {name}")
        turns.append({"role": role, "content": content})
    return turns
