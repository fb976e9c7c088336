"""Chat templates for models without one, and the tokens that these need."""

import dataclasses
import json
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from groundup.checkpoint.companions import GENERATION, Companions, read_companions
from groundup.checkpoint.lazy import LazyModel, LazyTensor
from groundup.checkpoint.logical_tensors import has_vocabulary
from groundup.core.errors import ConfigError
from groundup.core.files import read_json, write_json
from groundup.core.log import logger
from groundup.tokens.tokenizer.load_tokenizer import load_tokenizer

_TEMPLATE_FILE = "chat_template.jinja"

_TOKEN_NAME = re.compile(r"<\|[\w-]+\|>")

OWN = "own"
"""The template of the model itself."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class NamedTemplate:
    """A template by name.

    Attributes:
        source: In Jinja's language; ``END`` stands for the name of the token that ends a document.
        tokens: Special tokens that it needs.
        end: The one that ends an answer; empty for the end of a document.
    """

    source: str
    tokens: tuple[str, ...]
    end: str = ""


NAMED: Mapping[str, NamedTemplate] = {
    "plain": NamedTemplate(
        source=(
            "{% for message in messages %}"
            "{% if message['role'] not in ['system', 'user', 'assistant'] %}"
            "{{ raise_exception('there is no role ' ~ message['role']) }}{% endif %}"
            "{{ '<|' ~ message['role'] ~ '|>' ~ message['content'] }}"
            "{% if message['role'] == 'assistant' %}{{ 'END' }}{% endif %}"
            "{% endfor %}"
            "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
        ),
        tokens=("<|system|>", "<|user|>", "<|assistant|>"),
    ),
    "text": NamedTemplate(
        source=(
            "{% for message in messages %}"
            "{{ '### ' ~ (message['role'] | capitalize) ~ ':\\n' ~ message['content'] }}"
            "{{ 'END' if message['role'] == 'assistant' else '\\n\\n' }}"
            "{% endfor %}"
            "{% if add_generation_prompt %}{{ '### Assistant:\\n' }}{% endif %}"
        ),
        tokens=(),
    ),
    "chatml": NamedTemplate(
        source=(
            "{% for message in messages %}"
            "{{ '<|im_start|>' ~ message['role'] ~ '\\n' ~ message['content'] ~ '<|im_end|>\\n' }}"
            "{% endfor %}"
            "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
        ),
        tokens=("<|im_start|>", "<|im_end|>"),
        end="<|im_end|>",
    ),
    "llama3": NamedTemplate(
        source=(
            "{{ '<|begin_of_text|>' }}{% for message in messages %}"
            "{{ '<|start_header_id|>' ~ message['role'] ~ '<|end_header_id|>\\n\\n'"
            " ~ message['content'] | trim ~ '<|eot_id|>' }}"
            "{% endfor %}"
            "{% if add_generation_prompt %}"
            "{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"
        ),
        tokens=("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
        end="<|eot_id|>",
    ),
}


def with_template(stored: LazyModel, template: str) -> LazyModel:
    """Returns a model with a chat template, and with the special tokens that it needs.

    Rows of new tokens are the mean of the table's rows; nothing else changes, so that cutting them off gives
    the model's own vocabulary back.

    Args:
        stored: The model.
        template: ``own``, the name of one of ``NAMED``, or a file; "" for the model's own, and ``plain``
            where it has none.

    Raises:
        ConfigError: There is no such template, or the tokenizer cannot take new tokens.
    """
    own = stored.companions.chat_template
    if template == OWN and own is None:
        raise ConfigError(
            "the model has no chat template",
            where=stored.source,
            fix=f"Choose one: stage.template={'|'.join(NAMED)}, or a file.",
        )
    name = template or (OWN if own is not None else "plain")
    if name == OWN:
        return stored
    chosen = NAMED.get(name) or NamedTemplate(source=_read(Path(name)), tokens=())
    ends = stored.tokenizer.end_of_document_id
    end_name = next((text for text, number in stored.tokenizer.special_tokens.items() if number == ends), "")
    source = chosen.source.replace("END", end_name) if name in NAMED else chosen.source
    if name not in NAMED:
        _require_tokens(source, stored, name)
    tokens = [token for token in chosen.tokens if token not in stored.tokenizer.special_tokens]
    logger.info("chat template %s for %s", name, stored.source)
    rows = _rows(stored, tokens) if tokens else {}
    return dataclasses.replace(stored, **_files(stored, source, tokens, chosen.end), **rows)


def _require_tokens(source: str, stored: LazyModel, name: str) -> None:
    """Refuses a template of another tokenizer: the names of its tokens would be learned letter by letter."""
    known = stored.tokenizer.special_tokens
    missing = [token for token in dict.fromkeys(_TOKEN_NAME.findall(source)) if token not in known]
    if missing:
        raise ConfigError(
            f"is a template of another tokenizer: the model has no token {', '.join(missing)}",
            where=f"stage.template={name}",
            fix=f"Take one whose tokens are added: {', '.join(NAMED)}; or a template of {stored.source}.",
        )


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"is no chat template: neither {', '.join((OWN, *NAMED))} nor a file that can be read ({error})",
            where=f"stage.template={path}",
        ) from None


def _files(stored: LazyModel, source: str, tokens: Sequence[str], end: str) -> dict[str, Any]:
    """The tokenizer and the companions with a template and new special tokens."""
    folder = Path(tempfile.mkdtemp(prefix="groundup-tokenizer-"))
    try:
        stored.tokenizer.save(folder)
        stored.companions.write(folder)
        first = stored.tokenizer.vocab_size
        if tokens:
            _add_tokens(folder, dict(zip(tokens, range(first, first + len(tokens)), strict=True)))
        for old in (_TEMPLATE_FILE, "chat_template.json"):
            (folder / old).unlink(missing_ok=True)
        (folder / _TEMPLATE_FILE).write_text(source, encoding="utf-8")
        tokenizer = load_tokenizer(folder)
        if any(tokenizer.special_tokens.get(token) != first + at for at, token in enumerate(tokens)):
            raise ConfigError(
                f"its tokenizer ({tokenizer.kind}) cannot take the special tokens {', '.join(tokens)}",
                where=stored.source,
                fix="Choose a template whose tokens it has, as a file: stage.template=FILE.",
            )
        if end:
            _end_answers(folder / GENERATION, stored, tokenizer.special_tokens[end])
        return {"tokenizer": tokenizer, "companions": _without_template_setting(read_companions(folder))}
    finally:
        shutil.rmtree(folder)


def _without_template_setting(companions: Companions) -> Companions:
    """Takes a template out of the settings, where the file of its own stands for it."""
    name = "tokenizer_config.json"
    settings = json.loads(companions.files.get(name, b"{}"))
    if "chat_template" not in settings:
        return companions
    del settings["chat_template"]
    content = (json.dumps(settings, indent=2, ensure_ascii=False) + "\n").encode()
    return Companions(files={**companions.files, name: content})


def _add_tokens(folder: Path, numbers: Mapping[str, int]) -> None:
    """Adds special tokens to the files of a tokenizer."""
    document_path, settings_path = folder / "tokenizer.json", folder / "tokenizer_config.json"
    if not document_path.is_file():
        raise ConfigError(
            f"its tokenizer has no tokenizer.json to add {', '.join(numbers)} to",
            where="stage.template",
            fix="Convert it with transformers first, or choose a template whose tokens it has: a file.",
        )
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    document = read_json(document_path)
    added = [{"id": number, "content": token, **flags} for token, number in numbers.items()]
    document["added_tokens"] = [*(document.get("added_tokens") or []), *added]
    write_json(document_path, document)
    settings = read_json(settings_path) if settings_path.is_file() else {}
    if "added_tokens_decoder" in settings:
        more = {str(number): {"content": token, **flags} for token, number in numbers.items()}
        settings["added_tokens_decoder"] |= more
        write_json(settings_path, settings)


def _end_answers(path: Path, stored: LazyModel, end: int) -> None:
    """Writes that a text ends by the token that ends an answer, too."""
    settings = read_json(path) if path.is_file() else {}
    given = settings.get("eos_token_id")
    before = given if isinstance(given, list) else [given] if given is not None else []
    ends = dict.fromkeys([*(before or [stored.tokenizer.end_of_document_id]), end])
    write_json(path, {**settings, "eos_token_id": list(ends)})


def _rows(stored: LazyModel, tokens: Sequence[str]) -> dict[str, Any]:
    """The config and the weights with rows for new tokens in each vocabulary table."""
    first = stored.tokenizer.vocab_size
    last = first + len(tokens)
    size = max(stored.config.vocab_size, last)

    def grown(tensor: LazyTensor) -> LazyTensor:
        def read() -> Tensor:
            table = tensor.read()
            mean = table[:first].double().mean(0, keepdim=True).to(table.dtype)
            return torch.cat((table[:first], mean.expand(last - first, -1), table[last:]))

        return LazyTensor(shape=(size, *tensor.shape[1:]), dtype=tensor.dtype, read=read)

    logger.info(
        "the vocabulary has %d new tokens, ids %d to %d: %s; their rows begin as the mean of the others, and"
        " the first %d rows are the model's own vocabulary",
        len(tokens), first, last - 1, " ".join(tokens), first,
    )  # fmt: skip
    return {
        "config": dataclasses.replace(stored.config, vocab_size=size),
        "weights": {
            name: grown(tensor) if has_vocabulary(name, stored.config) else tensor
            for name, tensor in stored.weights.items()
        },
    }
