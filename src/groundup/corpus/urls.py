"""Which URLs are worth fetching: well-formed, public, of a page, and written one way."""

import ipaddress
import re
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import SplitResult, quote, urlsplit

from groundup.core.config_class import Positive, config
from groundup.core.errors import ConfigError, DataError

_LISTS = Path(__file__).parent / "lists"
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_ESCAPED_AMPERSAND = re.compile(r"&(amp;)+")
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_TRACKING = re.compile(r"(utm_\w+|fbclid|gclid|dclid|msclkid|mc_cid|mc_eid|igshid|yclid|_ga)", re.IGNORECASE)
_EXTENSION = re.compile(r"\.([a-z0-9]{1,8})(?=[:;/]|$)")
_LOCAL_SUFFIXES = (".local", ".localhost", ".internal", ".lan", ".home.arpa", ".test", ".invalid", ".onion")
_SAFE_IN_PATH = "/%:@!$&'()*+,;=~-._[]|"
_SAFE_IN_QUERY = _SAFE_IN_PATH + "?"
_DEFAULT_PORTS = {"http": 80, "https": 443}


@config
class UrlRules:
    """Which URLs are kept.

    Attributes:
        blocked_domains: Each with its subdomains.
        blocked_extensions: Of the path, in lower case, without the dot.
        min_characters: Of a URL; a shorter one names no page.
        max_characters: Longer ones are mostly traps and scripts.
    """

    blocked_domains: frozenset[str] = frozenset()
    blocked_extensions: frozenset[str] = frozenset()
    min_characters: Positive = 12
    max_characters: Positive = 2048

    def clean(self, line: str) -> str:
        """The URL of a line of a list, normalised.

        Raises:
            RejectedUrl: It is not kept; says why.
        """
        url = _ESCAPED_AMPERSAND.sub("&", line.strip())
        if len(url) > self.max_characters:
            raise RejectedUrl("too long")
        parts = _split(url)
        host = _host_of(parts)
        cleaned = _join(parts, host)
        if len(cleaned) < self.min_characters:
            raise RejectedUrl("too short")
        labels = host.split(".")
        if any(".".join(labels[start:]) in self.blocked_domains for start in range(len(labels))):
            raise RejectedUrl("blocked domain")
        last = parts.path.lower().rsplit("/", 1)[-1]
        if (found := _EXTENSION.findall(last)) and not self.blocked_extensions.isdisjoint(found):
            raise RejectedUrl("blocked extension")
        return cleaned

    def key(self, url: str) -> str:
        """Equal for kept URLs of which one is enough."""
        return duplicate_key(url)


class RejectedUrl(Exception):
    """A URL that is not kept; ``reason`` is a short phrase from a small set."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def default_rules(
    *, more_domains: Iterable[str] = (), more_extensions: Iterable[str] = (), min_characters: int = 12
) -> UrlRules:
    """The rules with the lists that come with the package, and more entries."""
    return UrlRules(
        blocked_domains=frozenset({*read_list(_LISTS / "blocked_domains.txt"), *more_domains}),
        blocked_extensions=frozenset({*read_list(_LISTS / "blocked_extensions.txt"), *more_extensions}),
        min_characters=min_characters,
    )


def read_list(path: Path) -> frozenset[str]:
    """The entries of a list of domains or extensions, in lower case: one a line; "#" begins a comment.

    Raises:
        DataError: It is missing or no text.
        ConfigError: An entry is neither a domain nor an extension.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise DataError("no such file", where=path, fix="Check the path.") from None
    except UnicodeDecodeError as error:
        raise DataError(f"not UTF-8 ({error.reason})", where=path) from None
    entries = set()
    for number, line in enumerate(lines, 1):
        entry = line.partition("#")[0].strip().lower().removeprefix("*.").strip(".")
        if entry and not re.fullmatch(r"[\w.-]+", entry):
            raise ConfigError(
                f"{entry[:80]!r} is neither a domain nor an extension",
                where=f"{path}:{number}",
                fix="Write one a line, such as example.com or .pdf.",
            )
        if entry:
            entries.add(entry if entry.isascii() else entry.encode("idna").decode())
    return frozenset(entries)


def duplicate_key(url: str) -> str:
    """Equal for normalised URLs that most likely name the same page.

    Scheme, ``www.``, a slash at the end and the order of the query's parameters make no difference.
    """
    _, _, rest = url.partition("://")
    path, _, query = rest.removeprefix("www.").partition("?")
    return f"{path.rstrip('/')}?{'&'.join(sorted(query.split('&')))}"


def is_public_address(address: str) -> bool:
    """Whether an IP address is one of the public internet.

    It is not where it is private, loopback, link-local, shared, reserved or multicast, also where one of IPv6
    stands for such a one of IPv4.
    """
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.ipv4_mapped or ip.sixtofour or (ip.teredo[1] if ip.teredo else None)
        if ip in _NAT64 or ip in _IPV4_COMPATIBLE:
            inner = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        if inner is not None:
            return is_public_address(str(inner))
    return ip.is_global and not (ip.is_multicast or ip.is_reserved)


_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_IPV4_COMPATIBLE = ipaddress.ip_network("::/96")


def _split(url: str) -> SplitResult:
    if _CONTROL.search(url) or "\ufffd" in url:
        raise RejectedUrl("malformed")
    scheme, colon, _ = url.partition("://")
    if not colon or scheme.lower() not in _DEFAULT_PORTS:
        is_other = re.match(r"(?i)[a-z][a-z0-9+.-]*:|//|[\w-]+(\.[\w-]+)+(/|$)", url)
        raise RejectedUrl("not http or https" if is_other else "malformed")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise RejectedUrl("malformed") from None
    if not parts.hostname or port == 0:
        raise RejectedUrl("malformed")
    if parts.username is not None:
        raise RejectedUrl("holds a password")
    return parts


def _host_of(parts: SplitResult) -> str:
    """The host in lower case, names of other scripts in ASCII; only public ones."""
    host = (parts.hostname or "").removesuffix(".")
    if ":" in host or re.fullmatch(r"[\d.]+|0x[\da-f.x]+", host):
        try:
            if not is_public_address(host):
                raise RejectedUrl("local address")
        except ValueError:
            raise RejectedUrl("malformed") from None
        return f"[{host}]" if ":" in host else host
    try:
        host = host if host.isascii() else host.encode("idna").decode()
    except UnicodeError:
        raise RejectedUrl("malformed") from None
    labels = host.split(".")
    if not all(_LABEL.fullmatch(label) for label in labels):
        raise RejectedUrl("malformed")
    if len(labels) < 2 or host.endswith(_LOCAL_SUFFIXES):
        raise RejectedUrl("local address")
    return host


def _join(parts: SplitResult, host: str) -> str:
    """The URL without fragment, default port and parameters that only track its readers."""
    port = "" if parts.port in (None, _DEFAULT_PORTS[parts.scheme]) else f":{parts.port}"
    path = quote(parts.path, safe=_SAFE_IN_PATH) or "/"
    kept = [item for item in parts.query.split("&") if not _TRACKING.fullmatch(item.partition("=")[0])]
    query = quote("&".join(kept), safe=_SAFE_IN_QUERY)
    return f"{parts.scheme}://{host}{port}{path}{'?' + query if query else ''}"
