"""The commands of docs/guides/report.md run as they stand."""

import pytest

from tests.guides import commands, run
from tests.runs import write_run

GUIDE = "docs/guides/report.md"


@pytest.mark.slow
def test_every_command_runs(tmp_path):
    write_run(tmp_path)
    *trained, again, compared = commands(GUIDE)
    for line in trained:
        run(line, tmp_path)
    first = (tmp_path / "first/report.html").read_text()
    assert "complete (contents not read)" in first and "command line (sample.interval=3)" in first
    assert (tmp_path / "second/report.html").is_file()
    assert run(again, tmp_path) == "first/report.html\n"
    assert "<td>sound</td>" in (tmp_path / "first/report.html").read_text()
    run(compared, tmp_path)
    page = (tmp_path / "compared.html").read_text()
    assert "Settings that differ" in page and "optimizer.lr" in page
