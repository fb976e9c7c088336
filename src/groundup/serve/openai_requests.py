"""The fields of OpenAI's API that are served, and four of our own; any other is refused by name."""

import secrets
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import pydantic
from pydantic import ConfigDict, Field

from groundup.inference.sampler import Sampling
from groundup.inference.sequence import Overflow, Request

Count = Annotated[int, Field(ge=1, le=1 << 31)]
_StopString = Annotated[str, Field(min_length=1, max_length=256)]
_TokenIds = Annotated[list[Annotated[int, Field(ge=0, lt=1 << 31)]], Field(min_length=1)]


class StreamOptions(pydantic.BaseModel):
    """Attributes: ``include_usage`` sends a last chunk with the number of tokens."""

    model_config = ConfigDict(extra="forbid", strict=True)
    include_usage: bool = False


class CommonFields(pydantic.BaseModel):
    """Fields of both kinds of completions.

    ``top_k``, ``min_p``, ``repetition_penalty`` and ``overflow`` are ours.
    """

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
    model: str | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    n: Annotated[int, Field(ge=1, le=128)] | None = None
    stop: _StopString | Annotated[list[_StopString], Field(max_length=16)] | None = None
    seed: Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    presence_penalty: Literal[0] | None = None
    frequency_penalty: Literal[0] | None = None
    top_k: Annotated[int, Field(ge=0, le=1 << 31)] = 0
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100)] = 1.0
    overflow: Overflow = "refuse"

    @pydantic.field_validator("presence_penalty", "frequency_penalty", mode="before")
    @classmethod
    def _integral(cls, value: Any) -> Any:
        return 0 if isinstance(value, float) and value == 0 else value

    def requests_for(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        max_new_tokens: int,
        stop_ids: frozenset[int],
        num_logprobs: int | None,
        num_prompt_logprobs: int | None = None,
    ) -> list[Request]:
        """Returns the texts that are asked for: of each prompt ``n``, one seed after the other."""
        temperature = 1.0 if self.temperature is None else self.temperature
        greedy = temperature == 0
        sampling = Sampling(
            temperature=temperature,
            top_k=0 if greedy else self.top_k,
            top_p=1.0 if greedy or self.top_p is None else self.top_p,
            min_p=0.0 if greedy else self.min_p,
            repetition_penalty=self.repetition_penalty,
        )
        seed = secrets.randbits(62) if self.seed is None else self.seed
        stop = [self.stop] if isinstance(self.stop, str) else self.stop or []
        num_samples = self.n or 1
        return [
            Request(
                prompt=prompt,
                sampling=sampling,
                max_new_tokens=max_new_tokens,
                seed=seed + row * num_samples + sample,
                stop_ids=stop_ids,
                stop=stop,
                num_logprobs=num_logprobs,
                num_prompt_logprobs=num_prompt_logprobs,
                overflow=self.overflow,
            )
            for row, prompt in enumerate(prompts)
            for sample in range(num_samples)
        ]


class CompletionFields(CommonFields):
    """The body of ``POST /v1/completions``."""

    prompt: (
        str
        | Annotated[list[str], Field(min_length=1)]
        | _TokenIds
        | Annotated[list[_TokenIds], Field(min_length=1)]
    )
    max_tokens: Annotated[int, Field(ge=0, le=1 << 31)] | None = 16
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    echo: bool | None = None
    best_of: Annotated[int, Field(ge=1, le=128)] | None = None
    suffix: Literal[""] | None = None


class TextPart(pydantic.BaseModel):
    """A piece of a message's content."""

    model_config = ConfigDict(extra="forbid", strict=True)
    type: Literal["text"]
    text: str


class Message(pydantic.BaseModel):
    """One message of a conversation."""

    model_config = ConfigDict(extra="forbid", strict=True)
    role: Annotated[str, Field(min_length=1, max_length=64)]
    content: str | list[TextPart]
    name: str | None = None

    @property
    def text(self) -> str:
        """Returns the content as one text."""
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class ResponseFormat(pydantic.BaseModel):
    """Attributes: ``type`` is the only one that is served."""

    model_config = ConfigDict(extra="forbid", strict=True)
    type: Literal["text"]


class ChatFields(CommonFields):
    """The body of ``POST /v1/chat/completions``."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    response_format: ResponseFormat | None = None
