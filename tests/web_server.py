"""A web server for crawls: good pages, and endpoints that misbehave in every way that servers do."""

import asyncio
import collections
import gzip
import logging
import socket
import struct
import threading
import time
import zlib

from aiohttp import web

ARTICLE = (
    "<p>" + "The harbour was quiet that morning, and nobody on the quay spoke of the ship. " * 8 + "</p>"
)


def html(title, body=ARTICLE):
    head = f"<html lang='en'><head><title>{title}</title></head>"
    return f"{head}<body><article><h1>{title}</h1>{body}</article></body></html>"


class WebServer:
    """``with WebServer() as server: server.url("/page/1")``.

    Attributes:
        pages: Path -> bytes, or a function of the request.
        robots: Host -> its robots.txt; a number is a status, a path a redirect.
        requests: Host and path of each request, in order, with the time it came.
    """

    def __init__(self):
        self.pages = {}
        self.robots = {}
        self.requests = []
        self._counts = collections.Counter()
        self._started = threading.Event()

    def __enter__(self):
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self._thread.start()
        assert self._started.wait(60)
        return self

    def __exit__(self, *_):
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join(60)

    @property
    def address(self):
        return f"127.0.0.1:{self.port}"

    def url(self, path, host="127.0.0.1"):
        return f"http://{host}:{self.port}{path}"

    def paths(self, *, host=None):
        """The paths asked for, without robots.txt."""
        return [
            path
            for name, path, _ in self.requests
            if path != "/robots.txt" and (host is None or name.partition(":")[0] == host)
        ]

    async def _serve(self):
        self._loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
        app = web.Application()
        app.router.add_route("GET", "/{path:.*}", self._answer)
        quiet = logging.getLogger("tests.web_server")  # of clients that go away
        quiet.setLevel(logging.CRITICAL)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, logger=quiet)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, backlog=1024)
        await site.start()
        self.port = runner.addresses[0][1]
        self._started.set()
        await self._ended.wait()
        await runner.cleanup()

    async def _answer(self, request):
        host = request.host.partition(":")[0]
        self.requests.append((request.host, request.path, time.monotonic()))
        if request.path == "/robots.txt":
            rules = self.robots.get(host, 404)
            if isinstance(rules, int):
                return web.Response(status=rules)
            redirect = {"Location": rules} if rules.startswith("/") else None
            return web.Response(status=302 if redirect else 200, text=rules, headers=redirect)
        if (page := self.pages.get(request.path)) is not None:
            return web.Response(body=page(request) if callable(page) else page, content_type="text/html")
        name, _, argument = request.path.lstrip("/").partition("/")
        behave = getattr(self, f"_{name}", None)
        if behave is None:
            raise web.HTTPNotFound
        return await behave(request, argument)

    async def _page(self, request, argument):
        return web.Response(text=html(f"Page {argument}"), content_type="text/html")

    async def _status(self, request, argument):
        return web.Response(status=int(argument))

    async def _busy(self, request, argument):
        """The first time 429 or 503 with Retry-After, then the page."""
        status, after = argument.split(",")
        self._counts[request.path] += 1
        if self._counts[request.path] == 1:
            return web.Response(status=int(status), headers={"Retry-After": after})
        return await self._page(request, argument)

    async def _flaky(self, request, argument):
        """500 so many times, then the page."""
        self._counts[request.path] += 1
        if self._counts[request.path] <= int(argument):
            return web.Response(status=500)
        return await self._page(request, argument)

    async def _to(self, request, argument):
        """A redirect to what follows."""
        return web.Response(status=302, headers={"Location": argument})

    async def _loop_back(self, request, argument):
        return web.Response(status=301, headers={"Location": f"/loop_back/{int(argument) + 1}"})

    async def _tarpit(self, request, argument):
        """A byte now and then, for ever: no single read takes long."""
        response = web.StreamResponse(headers={"Content-Type": "text/html"})
        await response.prepare(request)
        while True:
            await response.write(b" ")
            await asyncio.sleep(0.05)

    async def _silence(self, request, argument):
        await asyncio.sleep(3600)

    async def _endless(self, request, argument):
        response = web.StreamResponse(headers={"Content-Type": "text/html"})
        await response.prepare(request)
        while True:
            await response.write(b"<p>more and more</p>" * 1000)

    async def _announced(self, request, argument):
        """10 GB, as it says; nobody should ask for the first byte."""
        response = web.StreamResponse(headers={"Content-Type": "text/html", "Content-Length": str(10**10)})
        await response.prepare(request)
        while True:
            await response.write(b"x" * 10_000)

    async def _bomb(self, request, argument):
        """A few KB of gzip or deflate that stand for so many MB."""
        compressor = zlib.compressobj(9, wbits=31 if request.path.startswith("/bomb/gzip") else 15)
        zeros = bytes(1 << 20)
        body = b"".join(compressor.compress(zeros) for _ in range(50)) + compressor.flush()
        encoding = "gzip" if request.path.startswith("/bomb/gzip") else "deflate"
        return web.Response(body=body, headers={"Content-Type": "text/html", "Content-Encoding": encoding})

    async def _gzipped(self, request, argument):
        body = gzip.compress(html("Gzipped").encode())
        return web.Response(body=body, headers={"Content-Type": "text/html", "Content-Encoding": "gzip"})

    async def _charset(self, request, argument):
        """A page in one encoding that is declared as another: /charset/koi8-r,utf-8."""
        real, declared = argument.split(",")
        text = html("Заголовок", "<p>" + "Гавань была тиха этим утром, и никто не говорил о корабле. " * 9)
        return web.Response(
            body=text.encode(real), headers={"Content-Type": f"text/html; charset={declared}"}
        )

    async def _type(self, request, argument):
        return web.Response(body=b"%PDF-1.4", headers={"Content-Type": argument})

    async def _reset(self, request, argument):
        """The connection is reset in the middle of the page."""
        response = web.StreamResponse(headers={"Content-Type": "text/html", "Content-Length": "100000"})
        await response.prepare(request)
        await response.write(b"<html><p>it begins well")
        connection = request.transport.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        request.transport.abort()
        return response

    async def _bytes(self, request, argument):
        """A header with bytes that are no text."""
        redirect = b"302 Found\r\nLocation: http://[\xff\xfe"
        head = redirect if argument == "location" else b"200 OK\r\nContent-Type: \xff"
        request.transport.write(b"HTTP/1.1 " + head + b"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        request.transport.close()
        return web.Response()

    async def _nonsense(self, request, argument):
        request.transport.write(b"\x16\x03\x01 this is no HTTP\r\n\r\n")
        request.transport.close()
        return web.Response()
