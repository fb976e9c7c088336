"""What documents are like: how long, in which languages, from where; counted in a task, added up for all."""

import collections
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from groundup.core.config_class import NotNegative, config
from groundup.corpus.document import Document

_MOST_DOMAINS = 1000


@config
class Profile:
    """What documents are like.

    Attributes:
        lengths: Documents with 2^(k/2) to 2^((k+1)/2) characters, by k; those without text are not in it.
        languages: ``meta.language``, its first part -> documents.
        domains: Of the URLs, without ``www.`` -> documents; the 1,000 that are most frequent.
        urls: Documents with a URL.
    """

    lengths: tuple[NotNegative, ...] = ()
    languages: dict[str, NotNegative]
    domains: dict[str, NotNegative]
    urls: NotNegative = 0


class ProfileTally:
    """Counts for a ``Profile``."""

    def __init__(self) -> None:
        self._lengths: collections.Counter[int] = collections.Counter()
        self._languages: collections.Counter[str] = collections.Counter()
        self._domains: collections.Counter[str] = collections.Counter()
        self._urls = 0

    def count(self, document: Document) -> None:
        """Counts a document."""
        if size := len(document.text):
            self._lengths[(size * size).bit_length() - 1] += 1
        language = document.meta.get("language")
        if isinstance(language, str):
            self._languages[language.partition("-")[0].partition("_")[0].lower()] += 1
        if document.url:
            self._urls += 1
            self._domains[domain_of(document.url)] += 1

    def counting(self, documents: Iterable[Document]) -> Iterator[Document]:
        """Yields the documents, each counted."""
        for document in documents:
            self.count(document)
            yield document

    def add(self, profile: Mapping[str, Any]) -> None:
        """Adds what the ``counts`` of a task gave."""
        self._lengths.update(dict(enumerate(profile["lengths"])))
        self._languages.update(profile["languages"])
        self._domains.update(profile["domains"])
        self._urls += profile["urls"]

    def counts(self) -> dict[str, Any]:
        """Everything counted, as JSON-like values; the most frequent first."""
        ends = [place for place, count in self._lengths.items() if count]
        return {
            "lengths": [self._lengths[place] for place in range(max(ends, default=-1) + 1)],
            "languages": dict(_by_number(self._languages)),
            "domains": dict(itertools.islice(_by_number(self._domains), _MOST_DOMAINS)),
            "urls": self._urls,
        }


def domain_of(url: str) -> str:
    """The host of a URL in lower case, without ``www.``, port and user."""
    rest = url.partition("://")[2] or url
    host = rest.partition("/")[0].partition("?")[0].rpartition("@")[2].lower()
    return (host if host.endswith("]") else host.partition(":")[0]).removeprefix("www.")


def _by_number(counter: collections.Counter[str]) -> Iterator[tuple[str, int]]:
    return iter(sorted(counter.items(), key=lambda pair: (-pair[1], pair[0])))
