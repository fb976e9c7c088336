"""Drops documents by where they were published."""

import functools
import urllib.parse
from pathlib import Path
from typing import Literal

from groundup.core.config import config
from groundup.core.errors import ConfigError
from groundup.corpus.document import Document
from groundup.corpus.filter import Drop


@config
class UrlRules:
    """Drops documents by the domain and the words of their URL; a rule for a domain holds for those below it.

    Attributes:
        blocked_domains: Domains to drop, such as ``example.com``.
        blocked_domains_file: A file with one more domain a line; lines that begin with ``#`` are comments.
        allowed_domains: Drop all others; empty allows all.
        blocked_words: Drop URLs that hold one of these, in any case.
        require_url: Drop documents without a URL.
    """

    kind: Literal["url_rules"] = "url_rules"
    blocked_domains: tuple[str, ...] = ()
    blocked_domains_file: Path | None = None
    allowed_domains: tuple[str, ...] = ()
    blocked_words: tuple[str, ...] = ()
    require_url: bool = False

    def apply(
        self, document: Document
    ) -> Document | Drop[Literal["no URL", "blocked domain", "domain not allowed", "blocked word"]]:
        """Returns the document itself, or the rule that its URL breaks."""
        if not document.url:
            return Drop("no URL") if self.require_url else document
        domains = _domains(document.url)
        blocked = _blocked(self.blocked_domains, self.blocked_domains_file)
        if not blocked.isdisjoint(domains):
            return Drop("blocked domain")
        if self.allowed_domains and set(self.allowed_domains).isdisjoint(domains):
            return Drop("domain not allowed")
        lower = document.url.lower()
        if any(word.lower() in lower for word in self.blocked_words):
            return Drop("blocked word")
        return document


def _domains(url: str) -> list[str]:
    """The host of a URL and the domains above it: ``a.b.org`` -> ``a.b.org``, ``b.org``, ``org``."""
    try:
        host = urllib.parse.urlsplit(url if "//" in url else f"//{url}").hostname or ""
    except ValueError:  # malformed
        return []
    labels = host.rstrip(".").split(".")
    return [".".join(labels[place:]) for place in range(len(labels))]


@functools.cache
def _blocked(domains: tuple[str, ...], file: Path | None) -> frozenset[str]:
    try:
        lines = file.read_text().splitlines() if file else []
    except OSError as error:
        raise ConfigError(
            f"the list of domains cannot be read ({error.strerror})",
            where=file or "",
            fix="Name a text file with one domain a line.",
        ) from None
    listed = (line.partition("#")[0].strip().lower().rstrip(".") for line in lines)
    return frozenset(filter(None, (*map(str.lower, domains), *listed)))
