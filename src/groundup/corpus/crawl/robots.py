"""What the robots.txt of a server allows (RFC 9309)."""

import asyncio
import dataclasses
from urllib.parse import urlsplit

import protego

from groundup.corpus.crawl.fetcher import Fetcher, FetchFailure
from groundup.corpus.extraction.charset import decode_page

_MAX_REDIRECTS = 5


@dataclasses.dataclass(frozen=True, slots=True)
class RobotRules:
    """The rules of one origin; ``parsed`` is None where all is allowed."""

    user_agent: str
    parsed: protego.Protego | None = None

    def allows(self, url: str) -> bool:
        """Whether a URL may be fetched."""
        return self.parsed is None or bool(self.parsed.can_fetch(url, self.user_agent))

    @property
    def crawl_delay_s(self) -> float:
        """Asked for between two requests; 0 where nothing is."""
        return 0.0 if self.parsed is None else float(self.parsed.crawl_delay(self.user_agent) or 0.0)


def origin_of(url: str) -> str:
    """Scheme, host and port of a URL."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


async def fetch_rules(fetcher: Fetcher, origin: str, user_agent: str, *, seconds: float) -> RobotRules:
    """The rules of an origin.

    Missing or forbidden means that all is allowed; a server in trouble, that nothing is for now.

    Args:
        fetcher: Asks.
        origin: Scheme, host and port.
        user_agent: Whose rules are looked up.
        seconds: Wall-clock time, redirects included.

    Raises:
        FetchFailure: The server is in trouble, or there is none.
    """
    url = f"{origin}/robots.txt"
    clock = asyncio.get_running_loop().time
    deadline = clock() + seconds
    for _ in range(_MAX_REDIRECTS + 1):
        try:
            response = await fetcher.robots(url, seconds=deadline - clock())
            target = response.location
        except FetchFailure as failure:
            if failure.kind in ("bad redirect", "malformed response"):
                return RobotRules(user_agent)
            raise
        if response.status == 200:
            text, _ = decode_page(response.body, response.headers.get("Content-Type", ""))
            return RobotRules(user_agent, protego.Protego.parse(text))
        if response.status >= 500 or response.status == 429:
            raise FetchFailure("robots.txt unavailable", str(response.status), response.status)
        if not target:
            break
        url = target
    return RobotRules(user_agent)
