"""``blacklist_urls.py``: lists of links -> one list of pages worth fetching."""

import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from groundup.core.config_class import config
from groundup.corpus.url_list import clean_url_list
from groundup.corpus.urls import RejectedUrl, UrlRules, default_rules
from groundup.megatron.script_arguments import ScriptParser

_SHORTEST = 9
_BLOCKED, _EXTENSION, _SHORT, _MALFORMED = "domain", "extension", "short", "malformed"
_SECOND_LEVEL = frozenset(["ac", "co", "com", "edu", "go", "gov", "net", "or", "org"])
_EVERYWHERE = frozenset(
    ["amazon", "apple", "ebay", "github", "google", "reddit", "walmart", "wikimedia", "wikipedia"]
)
"""Sites under the endings of many countries."""


def blacklist_urls(arguments: Sequence[str]) -> None:
    """Writes the URLs of articles of lists of links."""
    parser = ScriptParser(
        "blacklist_urls",
        "Write the URLs of lists that are well formed, of at least 9 characters, of no site or file type"
        " without articles, and each once. They stay as they are and in their order. `groundup corpus urls`"
        " also writes them one way, so that http://www.a.org/b/ and https://a.org/b are the same.",
        example="urls/ clean_urls.txt",
    )
    parser.add_argument(
        "input", type=Path, help="folder of lists, a list (.gz and .zst too), a quoted glob, - for stdin"
    )
    parser.add_argument("output", type=Path, help="the list to write")
    given = parser.read(arguments)
    began = time.monotonic()
    defaults = default_rules(min_characters=_SHORTEST)
    rules = ScriptUrlRules(
        blocked_domains=defaults.blocked_domains,
        blocked_extensions=defaults.blocked_extensions,
        min_characters=_SHORTEST,
        max_characters=1 << 16,
    )
    report = clean_url_list([given.input], given.output, rules)
    found = report.rejected.get
    sys.stdout.write(
        f"{report.table()}\n"
        f"FINAL | time elapsed (s): {time.monotonic() - began:.2f} | number of urls: {report.lines}"
        f" | domain blacklisted: {found(_BLOCKED, 0)} | extention blacklisted: {found(_EXTENSION, 0)}"
        f" | short urls (<=8): {found(_SHORT, 0)} | malformed urls: {found(_MALFORMED, 0)}"
        f" | duplicate urls: {found('duplicate', 0)}\n"
    )


@config
class ScriptUrlRules(UrlRules):
    """The rules of ``blacklist_urls.py``, in its order; what it keeps stays as it is written."""

    def clean(self, line: str) -> str:
        """The URL of a line.

        Raises:
            RejectedUrl: It is not kept; says why.
        """
        url = line.strip()
        if _site(url) in _EVERYWHERE:
            raise RejectedUrl(_BLOCKED)
        if len(url) < self.min_characters and not re.search(r"\s", url):
            raise RejectedUrl(_SHORT)
        try:
            super().clean(url)
        except RejectedUrl as refusal:
            reasons = {"blocked domain": _BLOCKED, "blocked extension": _EXTENSION}
            raise RejectedUrl(reasons.get(refusal.reason, _MALFORMED)) from None
        if re.search(r"\s", url):
            raise RejectedUrl(_MALFORMED)
        return url

    def key(self, url: str) -> str:
        """The URL itself: only the same letters are the same page."""
        return url


def _site(url: str) -> str:
    """The label of a URL's host that names the site: amazon of www.amazon.co.uk; empty where none does."""
    try:
        labels = (urlsplit(url).hostname or "").rstrip(".").split(".")
    except ValueError:
        return ""
    endings = 2 if len(labels) > 2 and len(labels[-1]) == 2 and labels[-2] in _SECOND_LEVEL else 1
    return labels[-1 - endings] if len(labels) > endings else ""
