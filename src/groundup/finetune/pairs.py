"""Preference records as turns: a prompt, the chosen answer and the rejected one."""

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from groundup.core.config import config
from groundup.finetune.chats import NoConversation, RecordFields, text_of, turn_of

Turn = dict[str, str]
"""With "role" and "content"."""

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
        role: Of a turn: who speaks; empty for ``role`` or ``from``.
        content: Of a turn: what is said; empty for ``content`` or ``value``.
    """

    prompt: str = ""
    chosen: str = "chosen"
    rejected: str = "rejected"
    system: str = "system"
    role: str = ""
    content: str = ""


class Pair(NamedTuple):
    """Turns before both answers, and the two turns of the assistant."""

    prompt: list[Turn]
    chosen: Turn
    rejected: Turn


def pair_of(record: Mapping[str, Any], fields: PairFields) -> Pair:
    """Reads a record of any of the recognised forms.

    Those of TRL (prompt, chosen and rejected, each a text or a list of messages; with the prompt repeated in
    the answers, or only there), of UltraFeedback, of Anthropic's helpful-harmless set, of Orca's pairs, and
    the preference forms of Alpaca and ShareGPT.

    Raises:
        NoConversation: With the reason by which it is counted.
    """
    chosen = _answer(record, fields.chosen, fields)
    rejected = _answer(record, fields.rejected, fields)
    prompt = _prompt(record, fields)
    shared = _num_common(chosen, rejected)
    if chosen[0]["role"] != "assistant":  # whole conversations, which repeat the prompt
        prompt = []
        if not shared:
            raise NoConversation("answers to different prompts")
    prompt, chosen, rejected = [*prompt, *chosen[:shared]], chosen[shared:], rejected[shared:]
    system = text_of(record.get(fields.system) or "", fields.system)
    if system and prompt and prompt[0]["role"] != "system":
        prompt = [{"role": "system", "content": system}, *prompt]
    if not chosen and not rejected:
        raise NoConversation("identical answers")
    if not any(turn["content"].strip() for turn in prompt):
        raise NoConversation("no prompt")
    for name, answer in (("chosen", chosen), ("rejected", rejected)):
        if [turn["role"] for turn in answer] != ["assistant"]:
            raise NoConversation("no single answer", f"{name} is not one turn of the assistant")
        if not answer[-1]["content"].strip():
            raise NoConversation("empty answer", name)
    return Pair(prompt, chosen[0], rejected[0])


def _num_common(chosen: Sequence[Turn], rejected: Sequence[Turn]) -> int:
    same = itertools.takewhile(lambda two: two[0] == two[1], zip(chosen, rejected, strict=False))
    return sum(1 for _ in same)


def _answer(record: Mapping[str, Any], key: str, fields: PairFields) -> list[Turn]:
    value = record.get(key)
    if value is None or (isinstance(value, list | dict) and not value):
        raise NoConversation(f"no {key}", f"the keys are: {', '.join(list(record)[:8]) or 'none'}")
    if not isinstance(value, str | bytes):
        return _turns(value, fields)
    text = text_of(value, key)
    parts = _HH.split(text)
    if len(parts) == 1 or parts[0].strip():
        return [{"role": "assistant", "content": text}]
    roles = {"Human": "user", "Assistant": "assistant"}
    turns = zip(parts[1::2], parts[2::2], strict=True)
    return [{"role": roles[role], "content": said.strip()} for role, said in turns]


def _prompt(record: Mapping[str, Any], fields: PairFields) -> list[Turn]:
    keys = [fields.prompt] if fields.prompt else _PROMPTS
    key = next((key for key in keys if record.get(key)), None)
    if key is None:
        return []
    if not isinstance(record[key], str | bytes):
        return _turns(record[key], fields)
    text = text_of(record[key], key)
    if key == "instruction" and record.get("input"):
        text = f"{text}\n\n{text_of(record['input'], 'input')}"
    return [{"role": "user", "content": text}]


def _turns(value: object, fields: PairFields) -> list[Turn]:
    names = RecordFields(role=fields.role, content=fields.content)
    return [turn_of(turn, names) for turn in (value if isinstance(value, list) else [value])]
