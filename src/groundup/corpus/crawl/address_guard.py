"""Which machines a crawl may connect to: only public addresses, unless the user names others."""

import asyncio
import concurrent.futures
import socket

from aiohttp.abc import AbstractResolver, ResolveResult

from groundup.corpus.urls import is_public_address

_LOOKUP_THREADS = 64


class PrivateAddress(OSError):
    """A host that is in a private network and was not allowed by name."""


class GuardedResolver(AbstractResolver):
    """Resolves names, and refuses those of private addresses.

    The connection is made to the very address that was looked at, so that a name cannot be public when it is
    checked and private when it is used. Addresses in URLs never come here: see ``require_public_host``.

    Args:
        allow_hosts: Names whose addresses may be private.
        mirror: Host and port that every name resolves to.
    """

    def __init__(self, allow_hosts: frozenset[str], mirror: tuple[str, int] | None = None) -> None:
        self._allowed = allow_hosts
        self._mirror = mirror
        self._threads = concurrent.futures.ThreadPoolExecutor(_LOOKUP_THREADS, thread_name_prefix="resolve")

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """The addresses of a name.

        Raises:
            PrivateAddress: None of them is public.
            OSError: The name is not known.
        """
        asked = (host, port) if self._mirror is None else self._mirror
        # Not the event loop's own look-up: of those, few run at once, and one of a dead name takes seconds.
        found = await asyncio.get_running_loop().run_in_executor(
            self._threads, lambda: socket.getaddrinfo(*asked, family=family, type=socket.SOCK_STREAM)
        )
        results = [
            ResolveResult(
                hostname=host, host=str(where[0]), port=int(where[1]), family=kind, proto=proto,
                flags=socket.AI_NUMERICHOST,
            )
            for kind, _, proto, _, where in found
        ]  # fmt: skip
        if self._mirror or host.lower() in self._allowed:
            return results
        public = [result for result in results if is_public_address(result["host"])]
        if not public:
            raise PrivateAddress(f"{host} is at {results[0]['host'] if results else 'no address'}")
        return public

    async def close(self) -> None:
        """Ends the threads, without waiting for names that do not answer."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def require_public_host(host: str, allow_hosts: frozenset[str]) -> None:
    """Refuses an address of a private network in a URL; names are for the resolver.

    Shortened and octal forms of addresses, such as ``127.1``, are refused too: libraries differ in what they
    take them for.

    Raises:
        PrivateAddress: It is one, and not allowed.
    """
    if ":" not in host and not host.replace(".", "").isdigit():
        return
    try:
        is_public = is_public_address(host)
    except ValueError:
        raise PrivateAddress(f"{host} is no address in its usual form") from None
    if host not in allow_hosts and not is_public:
        raise PrivateAddress(f"{host} is not public")
