"""``groundup client``."""

import http.client
import json
import sys
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Protocol
from urllib.parse import urlsplit

from cyclopts import Parameter

from groundup.cli.options import NO_KEY, KeyOptions, Switch
from groundup.core.errors import ConfigError, GroundupError, MachineError

_USUAL_COUNT = 64


def client(
    url: str,
    *,
    api: Literal["v1", "megatron"] = "v1",
    chat: Switch = False,
    prompt: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    max_new_tokens: int | None = None,
    temperature: float = 0.8,
    seed: int | None = None,
    model: str | None = None,
    key: KeyOptions = NO_KEY,
) -> None:
    """Talk to a service: type a prompt, then how many tokens to generate.

    Texts come as they are generated from `groundup serve` or another service with OpenAI's API; with
    `--api megatron`, in one piece from Megatron-LM's server too. `stop` or end-of-file ends. With --chat,
    what was said before is part of each question.

    For example:
        groundup client http://127.0.0.1:5000
        groundup client localhost:5000 --api megatron
        groundup client localhost:5000 --prompt 'Once upon a time' --max-new-tokens 64 --temperature 0
        groundup client localhost:5000 --chat --max-new-tokens 200

    Args:
        url: Of the service; http:// may be left out.
        api: Which protocol to speak.
        chat: Hold a conversation, by the model's chat template.
        prompt: Complete this one, and end.
        max_new_tokens: Do not ask how many tokens to generate.
        temperature: Above 1 wilder, below 1 safer, 0 always the most probable token.
        seed: The same seed gives the same text.
        model: Which model of the service; its first when left out.
    """
    if chat and api == "megatron":
        raise ConfigError("Megatron-LM's protocol has no conversations", fix="Leave out --chat.")
    connection = _Connection(url, key.read())
    settings: dict[str, Any] = {"temperature": temperature}
    if api == "megatron":
        settings = {"top_k": 1} if temperature == 0 else settings
        speaker: _Speaker = _Megatron(connection, settings | ({} if seed is None else {"random_seed": seed}))
    else:
        settings |= {} if seed is None else {"seed": seed}
        speaker = _OpenAI(connection, {**settings, "model": model or connection.first_model()}, chat=chat)
    if prompt is not None:
        _print_texts(speaker.say(prompt, _USUAL_COUNT if max_new_tokens is None else max_new_tokens))
    else:
        _converse(speaker, max_new_tokens)


def _converse(speaker: "_Speaker", count: int | None) -> None:
    """Asks for prompts until `stop` or end-of-file."""
    import readline  # noqa: F401  # gives `input` its line editing

    while True:
        try:
            prompt = input("Enter prompt: ")
            if prompt.strip() == "stop":
                return
            number = str(count) if count is not None else input("Enter number of tokens to generate: ")
        except EOFError:
            print()
            return
        try:
            if not number.strip().isdecimal():
                raise ConfigError(f"{number!r} is not a number of tokens")
            _print_texts(speaker.say(prompt, int(number)))
        except GroundupError as error:
            print(error, file=sys.stderr)


def _print_texts(texts: Iterator[str]) -> None:
    for text in texts:
        print(text, end="", flush=True)
    print()


class _Connection:
    """Requests to one service."""

    def __init__(self, url: str, key: str | None) -> None:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"{url!r} is no address of a service", fix="Write http://127.0.0.1:5000.")
        self._secure = parts.scheme == "https"
        self._address = parts.netloc
        self._path = parts.path.rstrip("/")
        self._headers = {"Content-Type": "application/json"}
        self._headers |= {"Authorization": f"Bearer {key}"} if key else {}

    def ask(self, method: str, path: str, body: object = None) -> http.client.HTTPResponse:
        """Sends a request and returns its answer, to be read.

        Raises:
            MachineError: The service cannot be reached.
            GroundupError: It refuses.
        """
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        try:
            connection = kind(self._address)
            connection.request(method, self._path + path, json.dumps(body) if body else None, self._headers)
            response = connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            raise MachineError(
                f"no service answers ({error})", where=self._address, fix="Start one: groundup serve PATH."
            ) from None
        if response.status != 200:
            raise GroundupError(
                f"{_message(response.read())} (status {response.status})", where=self._address
            )
        return response

    def first_model(self) -> str:
        """Returns the name of the model that the service lists first."""
        name: str = json.load(self.ask("GET", "/v1/models"))["data"][0]["id"]
        return name


def _message(body: bytes) -> str:
    """Finds what a refusal says, in the shape of either API."""
    try:
        found = json.loads(body)
    except ValueError:
        return body.decode(errors="replace")
    error = found.get("error", found) if isinstance(found, dict) else found
    return str(error.get("message", error) if isinstance(error, dict) else error)


class _Speaker(Protocol):
    def say(self, prompt: str, count: int) -> Iterator[str]:
        """Yields the pieces of an answer of up to ``count`` tokens."""
        ...


class _Megatron:
    """``PUT /api``."""

    def __init__(self, connection: _Connection, settings: dict[str, Any]) -> None:
        self._connection = connection
        self._settings = settings

    def say(self, prompt: str, count: int) -> Iterator[str]:
        body = {"prompts": [prompt], "tokens_to_generate": count, **self._settings}
        answer = json.load(self._connection.ask("PUT", "/api", body))
        if isinstance(answer, str):  # a refusal with status 200
            raise GroundupError(answer)
        yield answer["text"][0]


class _OpenAI:
    """``/v1/completions``, or a conversation by ``/v1/chat/completions``."""

    def __init__(self, connection: _Connection, settings: dict[str, Any], *, chat: bool) -> None:
        self._connection = connection
        self._settings = {**settings, "stream": True}
        self._messages: list[dict[str, str]] | None = [] if chat else None

    def say(self, prompt: str, count: int) -> Iterator[str]:
        body: dict[str, Any] = {**self._settings, "max_tokens": count}
        if self._messages is None:
            choices = self._choices("/v1/completions", {**body, "prompt": prompt})
            yield prompt
            yield from (choice["text"] for choice in choices)
            return
        messages = [*self._messages, {"role": "user", "content": prompt}]
        pieces = []
        for choice in self._choices("/v1/chat/completions", {**body, "messages": messages}):
            pieces.append(choice["delta"].get("content") or "")
            yield pieces[-1]
        self._messages = [*messages, {"role": "assistant", "content": "".join(pieces)}]

    def _choices(self, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Asks, and returns what comes of a stream of server-sent events."""
        response = self._connection.ask("POST", path, body)
        return (choice for event in _events(response) for choice in event["choices"])


def _events(response: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    try:
        for line in response:
            field, _, data = line.partition(b":")
            if field != b"data" or data.strip() == b"[DONE]":
                continue
            event = json.loads(data)
            if "error" in event:
                raise GroundupError(_message(data))
            yield event
    except (OSError, http.client.HTTPException) as error:
        raise MachineError(f"the service broke off ({error})") from None
