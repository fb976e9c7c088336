"""What is checked of every request before anything else sees it."""

import asyncio
import hmac

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from groundup.serve import playground_page
from groundup.serve.refusal import Refusal
from groundup.serve.service import Service

OPEN_PATHS = frozenset({"/health"}) | playground_page.PATHS
"""What is answered without the key."""

_WITH_BODY = ("POST", "PUT", "PATCH", "DELETE")


class RequestGuard:
    """Refuses requests without the key, while the service drains, and whose body is too large or too slow.

    It counts what is answered too.
    """

    def __init__(self, app: ASGIApp, *, service: Service) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = 0

        async def count(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            try:
                self._require_welcome(scope)
                body = await self._read(scope, receive) if scope["method"] in _WITH_BODY else b""
            except Refusal as refusal:
                response = refusal.response(scope["path"])
                response.headers["Connection"] = "close"  # the rest of its body is not read
                await response(scope, receive, count)
                return
            if body is not None:
                await self._app(scope, _replay(body, receive), count)
        finally:
            self._service.metrics.count_request(scope["path"], status)

    def _require_welcome(self, scope: Scope) -> None:
        service = self._service
        if service.api_key is not None and scope["path"] not in OPEN_PATHS:
            given = dict(scope["headers"]).get(b"authorization", b"")
            if not hmac.compare_digest(given, f"Bearer {service.api_key}".encode()):
                raise Refusal(401, "the API key is missing or wrong", fix="Send Authorization: Bearer KEY.")
        if service.draining and scope["method"] in _WITH_BODY:
            raise Refusal(503, "the service is shutting down")

    async def _read(self, scope: Scope, receive: Receive) -> bytes | None:
        """Reads a body; None when the client has gone."""
        limits = self._service.limits
        too_large = Refusal(413, f"the body is larger than {limits.request_bytes:,} bytes")
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        if declared.isdigit() and int(declared) > limits.request_bytes:
            raise too_large
        body = bytearray()
        try:
            async with asyncio.timeout(limits.body_seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    body += message.get("body", b"")
                    if len(body) > limits.request_bytes:
                        raise too_large
                    if not message.get("more_body", False):
                        return bytes(body)
        except TimeoutError:
            raise Refusal(408, f"the body did not arrive in {limits.body_seconds} s") from None


def _replay(body: bytes, receive: Receive) -> Receive:
    """Returns a ``receive`` that gives the body at once, and then what comes."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return messages.pop() if messages else await receive()

    return replay
