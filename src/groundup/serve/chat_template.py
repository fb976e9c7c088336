"""Chat templates: a conversation as the text and the special tokens that a model was tuned on.

Templates are Jinja's as in Hugging Face's folders. They run in its sandbox, since they come with a
checkpoint, and what is written in a message stays text: the names of special tokens in it are not those.
"""

import datetime
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from groundup.checkpoint.companions import Companions
from groundup.core.errors import CheckpointError
from groundup.serve.refusal import Refusal

_ROLES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


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
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _as_json
        environment.globals |= {"raise_exception": _refuse, "strftime_now": _now}
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise CheckpointError(f"its chat template is malformed ({error})") from None
        self._roles = roles
        self._special_tokens = special_tokens
        longest_first = sorted(filter(None, special_tokens), key=len, reverse=True)
        self._names = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")

    def render(self, messages: Sequence[Mapping[str, str]]) -> list[str | int]:
        """Returns texts and ids of special tokens, up to where the answer begins.

        Raises:
            Refusal: The template does not take these messages.
        """
        written = "".join(value for message in messages for value in message.values())
        mark = next(chr(code) for code in itertools.count(0xE000) if chr(code) not in written)
        marked = [
            {key: self._names.sub(lambda name: name[0][:1] + mark + name[0][1:], value)
             for key, value in message.items()}
            for message in messages
        ]  # fmt: skip
        try:
            text = self._template.render(messages=marked, add_generation_prompt=True, **self._roles)
        except (jinja2.TemplateError, TypeError, ValueError) as error:
            raise Refusal(422, f"the chat template refuses them ({error})", field="messages") from None
        parts: list[str | int] = []
        for plain, name in itertools.zip_longest(self._names.split(text), self._names.findall(text)):
            parts += [plain.replace(mark, "")] if plain else []
            parts += [self._special_tokens[name]] if name else []
        return parts


def read_chat_template(companions: Companions, special_tokens: Mapping[str, int]) -> ChatTemplate | None:
    """Returns the template among a model's files; None where there is none."""
    files = companions.files
    settings = json.loads(files.get("tokenizer_config.json", b"{}"))
    source: Any = settings.get("chat_template")
    if "chat_template.json" in files:
        source = json.loads(files["chat_template.json"]).get("chat_template", source)
    if "chat_template.jinja" in files:
        source = files["chat_template.jinja"].decode()
    if isinstance(source, list):  # several by name
        source = {one.get("name"): one.get("template") for one in source}.get("default")
    if not isinstance(source, str):
        return None
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
