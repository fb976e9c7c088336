"""Runs a service until it is told to end, and lets it finish what it has begun."""

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Iterator

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from groundup.core.errors import MachineError
from groundup.core.log import logger
from groundup.serve.app import build_app
from groundup.serve.service import Service


def bind(host: str, port: int) -> socket.socket:
    """Reserves an address; nobody can connect before the service runs. Port 0 takes a free one.

    Raises:
        MachineError: It cannot be had.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        raise MachineError(
            f"cannot listen at {host}, port {port} ({error.strerror})",
            fix="Name another: --host 127.0.0.1 --port 5001.",
        ) from None
    return listener


def url_of(listener: socket.socket) -> str:
    """Returns the address of a listener for a client on this machine."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class _Protocol(H11Protocol):
    """A connection on which bytes that are no HTTP, while an answer is on its way, end this client alone."""

    def send_400_response(self, msg: str) -> None:
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        elif not self.transport.is_closing():  # bytes that were read before may still come
            logger.warning("%s:%d sent no HTTP while it was answered", *(self.client or ("a client", 0)))
            self.transport.close()
        if self.cycle:  # what still answers it is told that it has gone
            self.cycle.disconnected = True
            self.cycle.message_event.set()


class HttpServer(uvicorn.Server):
    """A server whose end is ordered by ``drain``: the first call lets requests finish, the next does not.

    Args:
        service: What is served.
        on_ready: Called when clients can connect.
        drain_seconds: After which running requests are cut off.
    """

    def __init__(self, service: Service, on_ready: Callable[[], None], *, drain_seconds: float) -> None:
        super().__init__(
            uvicorn.Config(
                build_app(service),
                http=_Protocol,  # pure Python: the same everywhere
                lifespan="off",
                log_config=None,
                log_level="error",  # clients that send no HTTP would fill the log
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=1,
                h11_max_incomplete_event_size=64 << 10,
            )
        )
        self._service = service
        self._on_ready = on_ready
        self._drain_seconds = drain_seconds
        self._draining: asyncio.Task[None] | None = None

    async def run_on(self, listener: socket.socket) -> None:
        """Serves until it has drained, or the engine broke."""
        async with self._service.engine.running(self._end):
            await self.serve(sockets=[listener])

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begins to listen."""
        await super().startup(sockets=sockets)
        self._on_ready()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves signals to ``handle_signals``: uvicorn would end the process by them in the end."""
        yield

    def drain(self) -> None:
        """Takes no more requests, and ends when those that run have finished; called again: at once."""
        if self._draining:
            self._end()
        else:
            self._service.draining = True
            self._draining = asyncio.get_running_loop().create_task(self._drain())

    async def _drain(self) -> None:
        logger.info("draining: %d texts to finish; again ends at once", self._service.engine.num_texts)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._drain_seconds):
                while self._service.engine.num_texts:
                    await asyncio.sleep(0.05)
        self._end()

    def _end(self) -> None:
        self.should_exit = True


def run(
    service: Service, listener: socket.socket, on_ready: Callable[[], None], *, drain_seconds: float
) -> None:
    """Serves until SIGTERM or Ctrl-C, which let running requests finish.

    Raises:
        BaseException: That of the engine, where it broke.
    """

    async def main() -> None:
        server = HttpServer(service, on_ready, drain_seconds=drain_seconds)
        loop = asyncio.get_running_loop()

        def drain(*_: object) -> None:
            if not loop.is_closed():  # one that comes later changes nothing: the end is near
                loop.call_soon_threadsafe(server.drain)

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, drain)
        await server.run_on(listener)

    asyncio.run(main())
    if service.engine.failed:
        raise service.engine.failed
