"""Lists of URLs: what is kept, what is dropped and why, on made-up and on real lists."""

import gzip
import io
import sys
from pathlib import Path

import numpy as np
import pytest
import zstandard

from groundup.cli.corpus_urls import urls
from groundup.core.errors import DataError, GroundupError
from groundup.core.manifest import find_damage, read_manifest
from groundup.corpus.digest_set import DigestSet
from groundup.corpus.url_list import UrlListManifest, clean_url_list
from groundup.corpus.urls import RejectedUrl, default_rules, duplicate_key, is_public_address, read_list


@pytest.mark.parametrize(
    ("line", "cleaned"),
    [
        (" http://Example.COM:80/a b#part \n", "http://example.com/a%20b"),
        ("HTTPS://example.com:443", "https://example.com/"),
        ("http://example.com:8080/x?utm_source=feed&id=7", "http://example.com:8080/x?id=7"),
        ("http://example.com/a?x=1&amp;y=2", "http://example.com/a?x=1&y=2"),
        ("http://münchen.de/straße?q=ä", "http://xn--mnchen-3ya.de/stra%C3%9Fe?q=%C3%A4"),
        ("http://example.com/%E4%BE%8B", "http://example.com/%E4%BE%8B"),
        ("http://example.com./end", "http://example.com/end"),
        ("http://93.184.216.34/page", "http://93.184.216.34/page"),
        ("http://example.com/page.php?file=report.pdf", "http://example.com/page.php?file=report.pdf"),
        ("http://pdf.example.com/about-pdf", "http://pdf.example.com/about-pdf"),
        ("http://notyoutube.com.example.net/essay", "http://notyoutube.com.example.net/essay"),
    ],
)
def test_a_url_is_written_one_way(line, cleaned):
    rules = default_rules()
    assert rules.clean(line) == cleaned
    assert rules.clean(cleaned) == cleaned


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("not a url at all", "malformed"),
        ("http://", "malformed"),
        ("http:///missing-host", "malformed"),
        ("http://[::1/broken", "malformed"),
        ("http://exa mple.com/x", "malformed"),
        ("http://example..com/", "malformed"),
        ("http://-example.com/", "malformed"),
        ("http://example.com:99999/page", "malformed"),
        ("http://example.com:0/page", "malformed"),
        ("http://example.com/tab\there", "malformed"),
        ("http://1.2.3/short-address", "malformed"),
        ("http://2130706433/number-as-address", "malformed"),
        ("http://example.com/not\ufffdutf8", "malformed"),
        ("ftp://ftp.example.org/pub/x", "not http or https"),
        ("mailto:someone@example.com", "not http or https"),
        ("www.example.org/no-scheme", "not http or https"),
        ("//cdn.example.net/x", "not http or https"),
        ("http://user:secret@example.com/x", "holds a password"),
        ("http://127.0.0.1/admin", "local address"),
        ("http://[::1]:8080/x", "local address"),
        ("http://[::ffff:10.0.0.1]/x", "local address"),
        ("http://localhost/some/page", "local address"),
        ("http://printer.local/page", "local address"),
        ("http://a.b", "too short"),
        ("http://example.com/" + "a" * 3000, "too long"),
        ("http://m.youtube.com/watch?v=abc", "blocked domain"),
        ("http://i.imgur.com/abc", "blocked domain"),
        ("http://example.com/IMAGE.JPG?1", "blocked extension"),
        ("http://example.com/photo.jpg:large", "blocked extension"),
        ("http://example.com/paper.PDF#page=2", "blocked extension"),
    ],
)
def test_what_is_no_page_is_rejected_with_the_reason(line, reason):
    with pytest.raises(RejectedUrl) as refusal:
        default_rules().clean(line)
    assert refusal.value.reason == reason


def test_duplicates_differ_only_in_what_makes_no_difference():
    same = [
        "http://example.com/a?x=1&y=2",
        "https://www.example.com/a/?y=2&x=1",
        "http://example.com/a?x=1&utm_medium=rss&y=2#top",
    ]
    assert len({duplicate_key(default_rules().clean(url)) for url in same}) == 1
    others = ["http://example.com/A?x=1&y=2", "http://example.com/a?x=2&y=1", "http://example.org/a?x=1&y=2"]
    assert len({duplicate_key(default_rules().clean(url)) for url in [same[0], *others]}) == 4


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("93.184.216.34", True),
        ("2606:2800:220:1::1", True),
        ("10.1.2.3", False),
        ("172.16.0.1", False),
        ("192.168.0.1", False),
        ("169.254.169.254", False),
        ("100.64.0.1", False),
        ("0.0.0.0", False),
        ("224.0.0.1", False),
        ("255.255.255.255", False),
        ("::1", False),
        ("fe80::1%eth0", False),
        ("fd00::1", False),
        ("::ffff:127.0.0.1", False),
        ("::ffff:93.184.216.34", True),
        ("64:ff9b::7f00:1", False),
        ("::7f00:1", False),
        ("2002:7f00:1::", False),
    ],
)
def test_only_addresses_of_the_public_internet_are_public(address, public):
    assert is_public_address(address) is public


def test_a_digest_set_agrees_with_a_set():
    random = np.random.default_rng(0)
    known, ours = set(), DigestSet()
    for size in (0, 1, 7, 1000, 3, 500, 4000):
        batch = random.integers(0, 3000, size, dtype=np.uint64)
        expected = [not (value in known or known.add(value)) for value in batch.tolist()]
        assert ours.add(batch).tolist() == expected
        assert len(ours) == len(known)
    asked = np.arange(4000, dtype=np.uint64)
    assert ours.contains(asked).tolist() == [value in known for value in range(4000)]


def test_a_list_is_cleaned_counted_and_described(tmp_path, capsys, monkeypatch):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_bytes(b"# links\n\nhttp://example.com/a-page\nhttp://i.imgur.com/x\n")
    compressed = zstandard.ZstdCompressor().compress(b"http://www.example.com/a-page/\nbad \xff line\n")
    (tmp_path / "in" / "b.txt.zst").write_bytes(compressed)
    (tmp_path / "in" / "c.jsonl.gz").write_bytes(
        gzip.compress(b'{"url": "http://example.com/from-json", "score": 3}\n{"no": "url"}\nnot JSON\n')
    )
    stdin = io.TextIOWrapper(
        io.BytesIO(b"http://example.com/stdin-page\n" + b"x" * 200_000 + b"\nhttp://b.c")
    )
    monkeypatch.setattr(sys, "stdin", stdin)
    out = tmp_path / "urls.txt"
    urls(Path("-"), tmp_path / "in", out=out)
    assert out.read_text().splitlines() == [
        "http://example.com/stdin-page",
        "http://example.com/a-page",
        "http://example.com/from-json",
    ]
    printed = capsys.readouterr().out
    for words in (
        "lines                     10",
        "too long                  -1  xxxx",
        "kept                       3",
    ):
        assert words in printed
    manifest = read_manifest(tmp_path / "urls.txt.manifest.json", UrlListManifest)
    assert manifest.counts == {
        "lines": 10, "kept": 3, "duplicate": 1, "malformed": 3, "too long": 1, "too short": 1,
        "blocked domain": 1,
    }  # fmt: skip
    assert find_damage(tmp_path, manifest.files) is None
    (tmp_path / "own.txt").write_text("example.com  # ours\n*.Example.org\n")
    with pytest.raises(DataError, match=r"none of 7 lines is kept .*blocked domain: 4, such as http://"):
        urls(tmp_path / "in", out=out, block_domains=(tmp_path / "own.txt",))
    assert len(out.read_text().splitlines()) == 3  # a run that fails leaves what was there
    urls(tmp_path / "in" / "a.txt", out=out, default_lists=False)
    assert "http://i.imgur.com/x" in out.read_text()


def test_what_cannot_be_read_is_refused(tmp_path):
    out = tmp_path / "urls.txt"
    (tmp_path / "blank.txt").write_text("\n# nothing\n")
    with pytest.raises(DataError, match="all are blank or comments"):
        urls(tmp_path / "blank.txt", out=out)
    with pytest.raises(DataError, match="no such file"):
        urls(tmp_path / "absent.txt", out=out)
    (tmp_path / "cut.txt.gz").write_bytes(gzip.compress(b"http://example.com/a\n" * 999)[:-20])
    with pytest.raises(DataError, match="ends early"):
        urls(tmp_path / "cut.txt.gz", out=out)
    (tmp_path / "own.txt").write_text("example.com\nwhat is this?\n")
    with pytest.raises(GroundupError, match=r"own.txt:2: 'what is this\?' is neither a domain"):
        read_list(tmp_path / "own.txt")
    assert not out.exists()


def test_the_real_list(shared_data, tmp_path):
    source = shared_data / "urls" / "urls.txt.gz"
    report = clean_url_list([source], tmp_path / "urls.txt", default_rules())
    assert report.lines == 38_873 == report.kept + sum(report.rejected.values())
    kept = (tmp_path / "urls.txt").read_text().splitlines()
    assert len(kept) == report.kept == len(set(kept))
    assert 18_000 < report.kept < 24_000
    assert report.rejected["duplicate"] >= 443 - 200  # of the 443 repeated lines, many are blocked before
    assert report.rejected["not http or https"] == 3
    assert not [
        url for url in kept if "youtube.com/" in url or url.partition("?")[0].endswith((".jpg", ".pdf"))
    ]
    again = clean_url_list([tmp_path / "urls.txt"], tmp_path / "again.txt", default_rules())
    assert again.kept == again.lines and (tmp_path / "again.txt").read_text().splitlines() == kept


def test_the_hand_written_cases(shared_data, tmp_path):
    source = shared_data / "urls" / "edge_cases.txt.gz"
    report = clean_url_list([source], tmp_path / "urls.txt", default_rules())
    assert report.rejected == {
        "malformed": 8, "not http or https": 8, "blocked domain": 4, "duplicate": 4, "blocked extension": 3,
        "local address": 3, "holds a password": 1, "too long": 1,
    }  # fmt: skip
    assert report.kept == 17
