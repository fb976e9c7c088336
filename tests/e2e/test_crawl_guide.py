"""The commands of docs/guides/crawl.md run as they stand; a server on this machine is the web."""

import pytest

from tests.guides import ROOT, commands, is_shown, run, sessions
from tests.web_server import WebServer

GUIDE = "docs/guides/crawl.md"

LINKS = """\
http://example.com/page/1
https://example.com/page/1?utm_source=feed
http://example.com/page/2#part
http://example.com/to//page/3
http://www.other.example/page/4
http://www.other.example/page/5
http://closed.example/page/7
http://example.com/missing
http://i.imgur.com/abc.jpg
https://www.youtube.com/watch?v=abc
http://example.com/paper.pdf
http://127.0.0.1/admin
not a URL
"""


@pytest.mark.slow
def test_the_commands_print_what_is_shown(tmp_path):
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "all.txt").write_text(LINKS)
    with WebServer() as server:
        server.robots["closed.example"] = "User-agent: mylab-crawler\nDisallow: /"
        shown = sessions(GUIDE)
        assert len(shown) == 2
        for (command,), expected in shown:
            there = f" --mirror {server.address} --host-delay 0" if "corpus crawl" in command else ""
            assert is_shown(expected, run(command + there, tmp_path)), command
    *_, build, extract = commands(GUIDE)
    assert "\nread  " in run(build, tmp_path)
    (kept,) = [line.split() for line in run(extract, tmp_path).splitlines() if line.startswith("kept")]
    assert kept[1] == "5"


def test_the_results_that_are_shown_are_those_of_the_benchmark():
    guide = (ROOT / GUIDE).read_text()
    rows = (ROOT / "benchmarks/results/extraction.md").read_text().splitlines()
    for engine in ("trafilatura", "resiliparse"):
        [row] = [row for row in rows if row.startswith(f"| groundup, {engine} ")]
        cells = [cell.strip() for cell in row.split("|")]
        [line] = [line for line in guide.splitlines() if line.startswith(f"| `{engine}`")]
        assert [cell.strip() for cell in line.split("|")][2:4] == [cells[4], cells[9]]
