"""A service in this process: its HTTP server on a free port, with an event loop in a thread of its own."""

import asyncio
import http.client
import json
import threading
import time
from collections.abc import Callable
from typing import Any

from groundup.checkpoint.lazy import LoadedModel
from groundup.inference.engine import Engine
from groundup.serve.http_server import HttpServer, bind, url_of
from groundup.serve.service import Limits, Service
from groundup.serve.text_engine import TextEngine


class Served:
    """``with Served(loaded) as served: served.ask("PUT", "/api", {...})``."""

    def __init__(
        self,
        loaded: LoadedModel,
        *,
        limits: Limits | None = None,
        api_key: str | None = None,
        drain_seconds: float = 60,
        other: TextEngine | None = None,
        **engine: Any,
    ) -> None:
        self.engine = Engine(loaded, **engine)
        self.service = Service(
            loaded, other or self.engine, name="tiny", limits=limits or Limits(), api_key=api_key
        )
        self._drain_seconds = drain_seconds
        self._ready = threading.Event()

    def __enter__(self) -> "Served":
        listener = bind("127.0.0.1", 0)
        self.url = url_of(listener)
        self.port = listener.getsockname()[1]

        async def main() -> None:
            self._loop = asyncio.get_running_loop()
            self._server = HttpServer(self.service, self._ready.set, drain_seconds=self._drain_seconds)
            await self._server.run_on(listener)

        self.thread = threading.Thread(target=lambda: asyncio.run(main()), daemon=True)
        self.thread.start()
        assert self._ready.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        self.drain()
        self.thread.join(60)
        assert not self.thread.is_alive()

    def drain(self) -> None:
        """What SIGTERM does."""
        if self.thread.is_alive():
            self._loop.call_soon_threadsafe(self._server.drain)

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)

    def ask(
        self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None
    ) -> tuple[int, Any]:
        """Status and body of an answer; a body of bytes is sent as it is, any other as JSON."""
        connection = self.connect()
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        connection.request(method, path, data, {"Content-Type": "application/json", **(headers or {})})
        response = connection.getresponse()
        content = response.read()
        connection.close()
        is_json = response.headers["Content-Type"] == "application/json"
        return response.status, json.loads(content) if is_json else content.decode()

    def metric(self, name: str, **labels: str) -> float:
        """A figure of ``/metrics``."""
        return self.service.metrics.registry.get_sample_value(name, labels) or 0.0

    def is_idle(self) -> bool:
        """Whether nothing is in work and no block of the cache has an owner."""
        blocks = self.engine.blocks
        scheduler = self.engine.scheduler
        return (
            self.service.engine.num_texts == 0
            and not scheduler.running
            and not scheduler.waiting
            and blocks.num_free == blocks.num_blocks
        )

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Waits for a condition that must come true."""
        end = time.monotonic() + 120
        while not condition():
            assert time.monotonic() < end
            time.sleep(0.005)
