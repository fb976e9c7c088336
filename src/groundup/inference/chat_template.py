"""Chat templates: a conversation as the text and the special tokens that a model was tuned on.

Templates are Jinja's as in Hugging Face's folders. They run in its sandbox, since they come with a
checkpoint, and what is written in a message stays text: the names of special tokens in it are not those.
"""

import datetime
import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from groundup.checkpoint.companions import Companions
from groundup.core.errors import CheckpointError, DataError

Message = Mapping[str, str]
"""``role`` and ``content``."""

_ROLES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")
_BEGIN, _END = "\U000f0000", "\U000f0001"
"""Stand around what a template marks as the model's own words."""


class TemplateRefusal(DataError):
    """A template does not take a conversation."""


class ChatTemplate:
    """The template of one model.

    Args:
        source: In Jinja's language.
        roles: Variables of the template: "bos_token" -> its text.
        special_tokens: Name -> id.

    Raises:
        CheckpointError: The template is malformed.
    """

    def __init__(self, source: str, *, roles: Mapping[str, str], special_tokens: Mapping[str, int]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation]
        )
        environment.filters["tojson"] = _as_json
        environment.globals |= {"raise_exception": _refuse, "strftime_now": _now}
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise CheckpointError(f"its chat template is malformed ({error})") from None
        self._marks_answers = re.search(r"{%-?\s*generation\b", source) is not None
        self._roles = roles
        self._special_tokens = special_tokens
        longest_first = sorted(filter(None, special_tokens), key=len, reverse=True)
        self._names = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")

    def render(self, messages: Sequence[Message]) -> list[str | int]:
        """Returns texts and ids of special tokens, up to where the answer begins.

        Raises:
            TemplateRefusal: The template does not take these messages.
        """
        mark, marked = self._marked(messages)
        text = self._text(marked, up_to_answer=True).replace(_BEGIN, "").replace(_END, "")
        return list(self._parts(text, mark))

    def answers(self, messages: Sequence[Message], *, last: bool = False) -> list[tuple[str | int, bool]]:
        """Returns texts and ids of a whole conversation, and of each whether the assistant says it.

        What it says is what ``{% generation %}`` encloses where the template marks it, else what follows the
        prompt of ``render``, up to the special token that ends the turn.

        Args:
            messages: The conversation.
            last: Only what the assistant says last counts; for templates that write earlier turns otherwise.

        Raises:
            TemplateRefusal: The template does not take these messages, loses one, or does not write a
                conversation as a continuation of its beginning.
        """
        mark, marked = self._marked(messages)
        if any(char in value for message in messages for value in message.values() for char in _BEGIN + _END):
            raise TemplateRefusal("a message holds U+F0000 or U+F0001, which mark answers here")
        whole = self._text(marked)
        if self._marks_answers:
            whole, spans = _enclosed(whole)
            spans = spans[-1:] if last else spans
        else:
            spans = self._continuations(whole, marked, last)
        for message in marked:
            if message["content"].strip() not in whole:
                raise TemplateRefusal(f"the chat template loses the {message['role']}'s turn")
        parts: list[tuple[str | int, bool]] = []
        at = 0
        for begin, end in [*spans, (len(whole), len(whole))]:
            parts += [(part, False) for part in self._parts(whole[at:begin], mark)]
            parts += [(part, True) for part in self._parts(whole[begin:end], mark)]
            at = end
        return parts

    def _continuations(self, whole: str, marked: Sequence[Message], last: bool) -> list[tuple[int, int]]:
        """Where each answer lies in the text: it follows the prompt made of the turns before."""
        answers = [number for number, message in enumerate(marked) if message["role"] == "assistant"]
        spans = []
        for number in answers[-1:] if last else answers:
            prompt = self._text(marked[:number], up_to_answer=True)
            answered = self._text(marked[: number + 1])
            if not (whole.startswith(answered) and answered.startswith(prompt)):
                raise TemplateRefusal(
                    "the chat template writes a turn otherwise when the conversation goes on",
                    fix="Learn the last answer of each conversation alone: stage.answers=last.",
                )
            names = list(self._names.finditer(answered, len(prompt)))
            end = names[-1].end() if names and not answered[names[-1].end() :].strip() else len(answered)
            spans.append((len(prompt), end))
        return spans

    def _marked(self, messages: Sequence[Message]) -> tuple[str, list[dict[str, str]]]:
        """Puts a character that is in no message into the names of special tokens in them."""
        written = "".join(value for message in messages for value in message.values())
        mark = next(chr(code) for code in itertools.count(0xE000) if chr(code) not in written)
        return mark, [
            {key: self._names.sub(lambda name: name[0][:1] + mark + name[0][1:], value)
             for key, value in message.items()}
            for message in messages
        ]  # fmt: skip

    def _text(self, marked: Sequence[Message], *, up_to_answer: bool = False) -> str:
        try:
            return self._template.render(messages=marked, add_generation_prompt=up_to_answer, **self._roles)
        except (jinja2.TemplateError, TypeError, ValueError) as error:
            raise TemplateRefusal(f"the chat template refuses them ({error})") from None

    def _parts(self, text: str, mark: str) -> Iterator[str | int]:
        for plain, name in itertools.zip_longest(self._names.split(text), self._names.findall(text)):
            if plain:
                yield plain.replace(mark, "")
            if name:
                yield self._special_tokens[name]


class _Generation(Extension):
    """``{% generation %}...{% endgeneration %}``, with which a template marks the model's own words."""

    tags = {"generation"}  # noqa: RUF012  # jinja's declaration

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_enclose"), [], [], body).set_lineno(line)

    @staticmethod
    def _enclose(caller: Callable[[], str]) -> str:
        return f"{_BEGIN}{caller()}{_END}"


def _enclosed(text: str) -> tuple[str, list[tuple[int, int]]]:
    """Takes the marks out of a text; returns it and where each pair of them stood."""
    plain, spans = "", []
    for number, piece in enumerate(re.split(f"[{_BEGIN}{_END}]", text)):
        if number % 2:
            spans.append((len(plain), len(plain) + len(piece)))
        plain += piece
    return plain, spans


def read_chat_template(companions: Companions, special_tokens: Mapping[str, int]) -> ChatTemplate | None:
    """Returns the template among a model's files; None where there is none."""
    source = companions.chat_template
    if source is None:
        return None
    files = companions.files
    settings = json.loads(files.get("tokenizer_config.json", b"{}"))
    named = {**settings, **json.loads(files.get("special_tokens_map.json", b"{}"))}
    texts = {role: value["content"] if isinstance(value, dict) else value for role, value in named.items()}
    roles = {role: texts[role] for role in _ROLES if isinstance(texts.get(role), str)}
    return ChatTemplate(source, roles=roles, special_tokens=special_tokens)


def _as_json(value: object, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _refuse(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _now(form: str) -> str:
    return datetime.datetime.now().strftime(form)
