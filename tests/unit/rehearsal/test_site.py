"""The rehearsal's web site has documents, and every kind of page that a crawl leaves out."""

import urllib.error
import urllib.request

import pytest

from groundup.rehearsal.site import NUM_DOCUMENTS, served_site


def read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return answer.read().decode()


def test_pages_are_served():
    with served_site() as urls:
        documents = [url for url in urls if url.count("/") == 3 and "missing" not in url]
        assert len(documents) == NUM_DOCUMENTS and len(set(urls)) == len(urls) == NUM_DOCUMENTS + 5
        first = read(documents[0])
        assert first.count("<p>") > 2 and "<nav>" in first
        (copy,) = [url for url in urls if url.endswith("/again/copy.html")]
        assert read(copy) == first
        site = documents[0].rpartition("/")[0]
        assert "Disallow: /private/" in read(f"{site}/robots.txt")
        with pytest.raises(urllib.error.HTTPError, match="404"):
            read(f"{site}/missing.html")
