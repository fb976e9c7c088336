"""Answers that take a while: they end with their client, and a stream closes what it reads from."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Coroutine
from typing import Any, TypeVar

from fastapi import Request
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from groundup.serve.refusal import Refusal, refused

T = TypeVar("T")

CLIENT_CLOSED_REQUEST = 499
"""The status that is counted where the client did not wait; nobody receives it."""


async def unless_gone(http: Request, work: Coroutine[Any, Any, T]) -> T:
    """Awaits work for a client, and cancels it when the client goes.

    Raises:
        Refusal: The client has gone.
    """
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_gone(http))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise Refusal(CLIENT_CLOSED_REQUEST, "the client has gone")
        return working.result()
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _gone(http: Request) -> None:
    while (await http.receive())["type"] != "http.disconnect":
        pass


class EventStream(StreamingResponse):
    """Server-sent events of JSON, ended by ``[DONE]``.

    Args:
        events: What is sent.
        resources: Closed when the client has all, or has gone.
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[Any], resources: contextlib.ExitStack) -> None:
        super().__init__(_encoded(events), headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        self._resources = resources

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends until all is sent or the client has gone."""
        with self._resources:
            await super().__call__(scope, receive, send)


async def _encoded(events: AsyncIterator[Any]) -> AsyncIterator[bytes]:
    try:
        async for event in events:
            yield b"data: " + json.dumps(event, separators=(",", ":")).encode() + b"\n\n"
    except Refusal as refusal:  # the status is sent already
        yield b"data: " + bytes(refused("", refusal.status, str(refusal)).body).strip() + b"\n\n"
    yield b"data: [DONE]\n\n"
