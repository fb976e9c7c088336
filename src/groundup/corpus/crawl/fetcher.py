"""One HTTP request within limits of time, size and place, and what failed in a word."""

import asyncio
import dataclasses
import datetime
import email.utils
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

import aiohttp
import yarl

from groundup.core.errors import ConfigError
from groundup.corpus.crawl.address_guard import GuardedResolver, PrivateAddress, require_public_host
from groundup.corpus.crawl.crawl_config import CrawlConfig

REDIRECTS = frozenset({301, 302, 303, 307, 308})
_ROBOTS_BYTES = 500 << 10  # RFC 9309: at least so much of it is read
_ACCEPT = "text/html,application/xhtml+xml,text/plain;q=0.5,*/*;q=0.1"
_KEEP_ALIVE_SECONDS = 15


@dataclasses.dataclass(frozen=True, slots=True)
class Response:
    """What a server answered.

    Attributes:
        url: That was asked for.
        status: Of HTTP.
        headers: The first of each name wins.
        raw_headers: As served, in order.
        body: Decompressed; empty where it was not read.
    """

    url: str
    status: int
    headers: Mapping[str, str]
    raw_headers: tuple[tuple[bytes, bytes], ...] = ()
    body: bytes = b""

    @property
    def location(self) -> str:
        """Where a redirect leads; empty where this is none.

        Raises:
            FetchFailure: It leads nowhere that is fetched.
        """
        if self.status not in REDIRECTS or "Location" not in self.headers:
            return ""
        try:
            target = yarl.URL(self.url).join(yarl.URL(self.headers["Location"].strip())).with_fragment(None)
        except ValueError:
            raise FetchFailure("bad redirect", self.headers["Location"][:200], self.status) from None
        if target.scheme not in ("http", "https") or not target.host:
            raise FetchFailure("bad redirect", str(target)[:200], self.status)
        return str(target)


class FetchFailure(Exception):
    """A URL without a page.

    Attributes:
        kind: One of a small set, see ``page_outcomes``.
        detail: What is particular to this one.
        status: Of the response; 0 without one.
        retry_after_s: What the server asked for; None where it did not.
    """

    def __init__(
        self, kind: str, detail: str = "", status: int = 0, retry_after_s: float | None = None
    ) -> None:
        super().__init__(kind, detail, status, retry_after_s)
        self.kind = kind
        self.detail = detail.encode("utf-8", "replace").decode()  # headers may hold any bytes
        self.status = status
        self.retry_after_s = retry_after_s


class Fetcher:
    """Sends requests; ``async with`` opens and closes its connections."""

    def __init__(self, config: CrawlConfig) -> None:
        self._config = config
        self._allowed = frozenset(host.lower() for host in config.allow_hosts)
        self._mirror = mirror_of(config.mirror)

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(
            limit=0,
            resolver=GuardedResolver(self._allowed, self._mirror),
            ttl_dns_cache=300,
            keepalive_timeout=_KEEP_ALIVE_SECONDS,
        )
        self._session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None),  # the limit is set around the whole of a request
            headers={
                "User-Agent": self._config.user_agent,
                "Accept": _ACCEPT,
                "Accept-Encoding": "gzip, deflate",
            },
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def page(self, url: str, *, seconds: float) -> Response:
        """A page, or a redirect.

        Args:
            url: With http or https.
            seconds: Wall-clock time, from the look-up of the name to the last byte.

        Raises:
            FetchFailure: It is neither; says why.
        """
        return await self._get(url, seconds, self._config.limits.page_bytes, _refusal)

    async def robots(self, url: str, *, seconds: float) -> Response:
        """A robots.txt, of which the first 500 KiB are read, or a redirect, or any other status."""
        return await self._get(url, seconds, _ROBOTS_BYTES, None)

    async def _get(
        self,
        url: str,
        seconds: float,
        max_bytes: int,
        refusal: Callable[[aiohttp.ClientResponse], FetchFailure | None] | None,
    ) -> Response:
        """The response; without ``refusal`` any is taken, and a long one is cut."""
        try:
            async with asyncio.timeout(max(seconds, 0)):
                asked = yarl.URL(url)
                if not self._mirror:
                    require_public_host(asked.host or "", self._allowed)
                elif asked.scheme == "https":
                    asked = asked.with_scheme("http")
                async with self._session.get(asked, allow_redirects=False) as response:
                    if refusal and (found := refusal(response)):
                        raise found
                    body = (
                        b"" if response.status != 200 else await _read(response, max_bytes, cut=not refusal)
                    )
                    return Response(url, response.status, response.headers, response.raw_headers, body)
        except TimeoutError:
            raise FetchFailure("time limit", f"over {self._config.limits.seconds:g} s") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise _failure_of(error) from None


def mirror_of(text: str) -> tuple[str, int] | None:
    """Host and port of ``host:port``; None of an empty text.

    Raises:
        ConfigError: It is no such.
    """
    if not text:
        return None
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal():
        raise ConfigError(f"{text!r} is no host and port", where="mirror", fix="Write host:port.")
    return host.strip("[]"), int(port)


async def _read(response: aiohttp.ClientResponse, max_bytes: int, *, cut: bool) -> bytes:
    """The body, decompressed piece by piece: a small one may stand for terabytes."""
    announced = response.content_length or 0
    pieces: list[bytes] = []
    size = 0
    if announced <= max_bytes or cut:
        async for piece in response.content.iter_any():
            pieces.append(piece)
            size += len(piece)
            if size > max_bytes:
                break
    if max(size, announced) <= max_bytes or cut:
        return b"".join(pieces)[:max_bytes]
    raise FetchFailure("too large", f"over {max_bytes:,} bytes", response.status)


def _refusal(response: aiohttp.ClientResponse) -> FetchFailure | None:
    """Why a response is no page; None for a page or a redirect."""
    status = response.status
    if status == 200:
        kind = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        is_page = not kind or kind in ("text/html", "application/xhtml+xml", "text/plain")
        return None if is_page else FetchFailure("not a page", kind[:80], status)
    if status in REDIRECTS and "Location" in response.headers:
        return None
    retry_after_s = _retry_after(response.headers.get("Retry-After", ""))
    if status == 429 or (status == 503 and retry_after_s is not None):
        return FetchFailure("asked to wait", str(status), status, retry_after_s)
    if status >= 500:
        return FetchFailure("server error", str(status), status)
    names = {404: "not found", 410: "not found", 401: "forbidden", 403: "forbidden", 451: "forbidden"}
    return FetchFailure(names.get(status, "other status"), str(status), status)


def _retry_after(text: str) -> float | None:
    """Seconds from now of a Retry-After header: a number or a date."""
    if text.strip().isdecimal():
        return float(text)
    try:
        when = email.utils.parsedate_to_datetime(text)
    except (ValueError, TypeError):
        return None
    when = when if when.tzinfo else when.replace(tzinfo=datetime.UTC)
    return max(0.0, (when - datetime.datetime.now(datetime.UTC)).total_seconds())


def _failure_of(error: aiohttp.ClientError | OSError | ValueError) -> FetchFailure:
    cause = getattr(error, "os_error", error)
    detail = " ".join(f"{type(cause).__name__}: {cause}".split())[:200]
    if isinstance(cause, PrivateAddress):
        return FetchFailure("private address", str(cause))
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return FetchFailure("name not resolved", detail)
    if isinstance(error, aiohttp.ClientSSLError | aiohttp.ClientConnectorCertificateError):
        return FetchFailure("TLS failure", detail)
    if isinstance(error, aiohttp.ClientConnectorError):
        return FetchFailure("no connection", detail)
    if isinstance(error, aiohttp.ClientResponseError):
        return FetchFailure("malformed response", detail, error.status)
    if isinstance(error, aiohttp.ClientPayloadError | aiohttp.ClientConnectionError | OSError):
        return FetchFailure("connection broken", detail)
    return FetchFailure("malformed URL", detail)
