"""A command of a rehearsal that fails says why, and what to type to see it again."""

import pytest

from groundup import __version__
from groundup.core.errors import GroundupError
from groundup.rehearsal.commands import Commands, last_words


def test_a_command_runs_in_its_folder(tmp_path):
    commands = Commands(tmp_path)
    assert commands.run("--version").strip() == __version__
    assert commands.typed[0] == "groundup --version"


def test_a_failure_is_told_with_its_log(tmp_path):
    commands = Commands(tmp_path)
    with pytest.raises(GroundupError, match=r"no such file") as raised:
        commands.run("corpus", "crawl", "urls no.txt", "--out", "pages")
    assert str(tmp_path / "corpus-crawl.log") in str(raised.value)
    assert "groundup corpus crawl 'urls no.txt' --out pages" in str(raised.value)
    with pytest.raises(GroundupError):
        commands.run("corpus", "crawl", "urls no.txt", "--out", "pages")
    assert (tmp_path / "corpus-crawl-2.log").is_file()


def test_of_a_crash_the_last_lines_are_shown(tmp_path):
    log = tmp_path / "train.log"
    log.write_text("".join(f"line {number}\n" for number in range(20)) + "ZeroDivisionError: of course\n")
    assert last_words(log).splitlines()[-1] == "ZeroDivisionError: of course"
    log.write_text("")
    assert last_words(log) == "it said nothing"


def test_what_is_left_running_is_killed(tmp_path):
    with Commands(tmp_path).started("--version") as (process, _):
        pass
    assert process.poll() is not None
