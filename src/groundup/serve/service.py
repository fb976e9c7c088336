"""A model that answers many clients at once, whatever API they speak."""

import asyncio
import time
from collections.abc import Sequence

from groundup.checkpoint.lazy import LoadedModel
from groundup.core.config import config
from groundup.core.config_class import NotNegative, Positive
from groundup.core.errors import ConfigError, DataError
from groundup.inference.chat_template import read_chat_template
from groundup.inference.sequence import Request
from groundup.serve.engine_thread import EngineThread
from groundup.serve.refusal import Refusal
from groundup.serve.service_metrics import ServiceMetrics
from groundup.serve.text_engine import TextEngine

_LONG_TEXT = 4096
"""Characters from which on a text is encoded beside the event loop."""


@config
class Limits:
    """What a client may ask for.

    Attributes:
        request_bytes: Of a request's body.
        prompt_tokens: Of one prompt; 0: as many as the model's context holds.
        new_tokens: Of one text; 0: as many as the model's context holds.
        texts: Of one request, all prompts and samples together.
        waiting: Texts that wait while others are in work.
        body_seconds: In which a request's body must have arrived.
    """

    request_bytes: Positive = 1 << 20
    prompt_tokens: NotNegative = 0
    new_tokens: NotNegative = 0
    texts: Positive = 128
    waiting: NotNegative = 256
    body_seconds: Positive = 30


NO_LIMITS_GIVEN = Limits()


class Service:
    """A model, its engine's thread, and the rules for all who ask.

    Attributes:
        draining: Set when no more requests are taken.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        engine: TextEngine,
        *,
        name: str,
        limits: Limits = NO_LIMITS_GIVEN,
        api_key: str | None = None,
    ) -> None:
        self.loaded = loaded
        self.name = name
        self.limits = limits
        self.api_key = api_key
        self.context = engine.context
        self.max_batch_size = engine.max_batch_size
        self.metrics = ServiceMetrics(engine)
        self.engine = EngineThread(engine, self.metrics, max_waiting=limits.waiting)
        self.chat_template = read_chat_template(loaded.companions, loaded.tokenizer.special_tokens)
        self.draining = False
        self.began = int(time.time())
        self._check = engine.check
        self._special_names = {number: name for name, number in loaded.tokenizer.special_tokens.items()}

    async def encode(self, text: str) -> list[int]:
        """Returns the ids of a text; a long one does not hold up the others.

        Raises:
            Refusal: The tokenizer is a list of words, and something else is in the text.
        """
        encode = self.loaded.tokenizer.encode
        try:
            return encode(text) if len(text) < _LONG_TEXT else await asyncio.to_thread(encode, text)
        except DataError as error:
            raise Refusal(422, error.what, field="prompt", fix=error.fix) from None

    async def prompt_ids(self, text: str) -> list[int]:
        """Returns a prompt as the model saw texts in training; an empty one begins a document."""
        return [*self.loaded.bos_ids, *await self.encode(text)] or [self.loaded.bos_id]

    def token_bytes(self, number: int) -> bytes:
        """Returns the bytes of an id; those of its name, where it is a special token."""
        name = self._special_names.get(number)
        return self.loaded.tokenizer.token_bytes(number) if name is None else name.encode()

    def token_name(self, number: int) -> str:
        r"""Returns the text of an id; bytes that are no characters as OpenAI writes them: ``bytes:\xe2``."""
        data = self.token_bytes(number)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)

    def require_ids(self, ids: Sequence[int]) -> Sequence[int]:
        """Returns a prompt that is given by ids, if the tokenizer has them.

        Raises:
            Refusal: It has not.
        """
        size = self.loaded.tokenizer.vocab_size
        if max(ids) >= size:
            raise Refusal(422, f"id {max(ids)} is outside the vocabulary of {size:,} ids", field="prompt")
        return ids

    def text_of(self, ids: Sequence[int]) -> str:
        """Returns the text of ids, without special tokens."""
        return b"".join(map(self.loaded.tokenizer.token_bytes, ids)).decode("utf-8", errors="replace")

    def require_model(self, name: str | None) -> None:
        """Checks that a request means this model.

        Raises:
            Refusal: It names another.
        """
        if name not in (None, self.name):
            raise Refusal(404, f"there is no model {name!r}", field="model", fix=f"Ask for {self.name!r}.")

    def require(self, requests: Sequence[Request], *, prompt: str, new_tokens: str) -> None:
        """Checks texts against the limits and the model.

        Args:
            requests: The texts.
            prompt: The field of their prompts.
            new_tokens: The field of how many tokens are wanted.

        Raises:
            Refusal: Names the field.
        """
        if len(requests) > self.limits.texts:
            raise Refusal(422, f"{len(requests)} texts are more than {self.limits.texts}", field=prompt)
        for request in requests:
            longest = self.limits.prompt_tokens or self.context
            if len(request.prompt) > longest and not (
                request.overflow == "slide" and not self.limits.prompt_tokens
            ):
                raise Refusal(422, f"{len(request.prompt):,} tokens are more than {longest:,}", field=prompt)
            most = self.limits.new_tokens or self.context
            if request.max_new_tokens > most:
                raise Refusal(
                    422, f"{request.max_new_tokens:,} tokens are more than {most:,}", field=new_tokens
                )
            try:
                self._check(request)
            except (DataError, ConfigError) as error:
                raise Refusal(422, error.what, field=prompt, fix=error.fix) from None
        self.metrics.prompt_tokens.inc(sum(len(request.prompt) for request in requests))
