"""Which URL is fetched next: each host at its pace, all hosts side by side."""

import asyncio
import collections
import dataclasses
import heapq
from urllib.parse import urlsplit

from groundup.corpus.crawl.robots import RobotRules

_MAX_IDLE_HOSTS = 20_000


@dataclasses.dataclass(slots=True)
class Visit:
    """A URL on its way.

    Attributes:
        url: As in the list.
        target: What is asked for next: the URL, or where redirects led.
        host: Of the target.
        redirects: Followed so far.
        attempts: That failed so far.
        seconds: Spent on requests of this attempt.
    """

    url: str
    target: str
    host: str
    redirects: int = 0
    attempts: int = 0
    seconds: float = 0.0

    def lead_to(self, target: str) -> None:
        """Takes another target."""
        self.target = target
        self.host = host_of(target)


def host_of(url: str) -> str:
    """The name or address that a URL leads to, without the port.

    Raises:
        ValueError: The URL is malformed.
    """
    host = urlsplit(url).hostname
    if not host:
        raise ValueError(url)
    return host


@dataclasses.dataclass(slots=True)
class Host:
    """What is known of a host.

    Attributes:
        delay_s: Between the starts of two requests.
        ready_at: When the next may start, on the event loop's clock.
        failures: In a row.
        given_up: Its URLs are no longer fetched.
        rules: Origin -> its robots.txt, or the task that fetches it.
    """

    delay_s: float
    ready_at: float = 0.0
    active: int = 0
    failures: int = 0
    given_up: bool = False
    is_listed: bool = False
    queue: collections.deque[Visit] = dataclasses.field(default_factory=collections.deque)
    rules: dict[str, RobotRules | asyncio.Task[RobotRules]] = dataclasses.field(default_factory=dict)


class Frontier:
    """The visits to come, by host.

    Args:
        host_connections: Visits of a host at the same time.
        host_delay_s: Between the starts of two visits to a host.
        room: Visits that are held at most.
        room_per_host: Of one host, so that it does not take all the room.
    """

    def __init__(
        self, *, host_connections: int, host_delay_s: float, room: int = 100_000, room_per_host: int = 2000
    ) -> None:
        self._host_connections = host_connections
        self._host_delay_s = host_delay_s
        self._room = room
        self._room_per_host = room_per_host
        self._hosts: dict[str, Host] = {}
        self._ready: list[tuple[float, int, str]] = []  # a heap of when, a number for equal times, and host
        self._number = 0
        self._pending = 0
        self._refused: set[str] = set()
        self._is_relieved = False
        self._closed = False
        self._changed = asyncio.Event()

    def __getitem__(self, host: str) -> Host:
        if host not in self._hosts:
            if len(self._hosts) > _MAX_IDLE_HOSTS:
                self._forget_idle_hosts()
            self._hosts[host] = Host(self._host_delay_s)
        return self._hosts[host]

    @property
    def is_full(self) -> bool:
        """Whether no more visits are taken."""
        return self._pending >= self._room

    def add(self, visit: Visit) -> bool:
        """Takes a visit; False where its host has too many waiting."""
        host = self[visit.host]
        if len(host.queue) >= self._room_per_host:
            self._refused.add(visit.host)
            return False
        self._pending += 1
        host.queue.append(visit)
        self._list(visit.host)
        return True

    def put_back(self, visit: Visit) -> None:
        """A visit goes on with another request: it is the next of its host."""
        self[visit.host].queue.appendleft(visit)
        self._list(visit.host)

    def release(self, host: str) -> None:
        """A request to a host has ended."""
        self._hosts[host].active -= 1
        self._list(host)

    def end(self) -> None:
        """One of the visits has ended."""
        self._pending -= 1
        self._changed.set()

    def pause(self, host: str, seconds: float) -> None:
        """Nothing is asked of a host for some time."""
        state = self[host]
        state.ready_at = max(state.ready_at, asyncio.get_running_loop().time() + seconds)

    def close(self) -> None:
        """No more visits will be added."""
        self._closed = True
        self._changed.set()

    async def wait_for_room(self) -> None:
        """Returns once half of the room is free."""
        while self._pending > self._room // 2:
            await self._wait(None)

    async def wait_for_refused(self) -> None:
        """Returns once a host of which a visit was not taken has half of its room free."""
        while self._refused and not self._is_relieved:
            await self._wait(None)
        self._refused.clear()
        self._is_relieved = False

    async def next(self) -> Visit | None:
        """The next visit, when its host is ready; None when all have ended. The caller releases its host."""
        loop = asyncio.get_running_loop()
        while True:
            now = loop.time()
            while self._ready and self._ready[0][0] <= now:
                _, _, name = heapq.heappop(self._ready)
                host = self._hosts[name]
                host.is_listed = False
                if host.ready_at > now:  # it was paused meanwhile
                    self._list(name)
                    continue
                host.active += 1
                host.ready_at = now + (0.0 if host.given_up else host.delay_s)
                visit = host.queue.popleft()
                if name in self._refused and len(host.queue) <= self._room_per_host // 2:
                    self._is_relieved = True
                    self._changed.set()
                self._list(name)
                return visit
            if self._closed and not self._pending:
                return None
            await self._wait(self._ready[0][0] - now if self._ready else None)

    async def _wait(self, seconds: float | None) -> None:
        """Until something changes, or so long."""
        self._changed.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            return

    def _list(self, name: str) -> None:
        """Lists a host that has something to fetch and may."""
        host = self._hosts[name]
        if host.is_listed or not host.queue or host.active >= self._host_connections:
            return
        host.is_listed = True
        self._number += 1
        heapq.heappush(self._ready, (host.ready_at, self._number, name))
        self._changed.set()

    def _forget_idle_hosts(self) -> None:
        now = asyncio.get_running_loop().time()
        for name, host in list(self._hosts.items()):
            if not (host.queue or host.active or host.given_up) and host.ready_at < now:
                del self._hosts[name]
