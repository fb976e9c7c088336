"""A live line on a terminal, and nothing of it elsewhere."""

import io
import sys

import pytest

from groundup.core.live_line import LiveLine, cut
from groundup.core.log import logger, set_up
from groundup.core.progress import Progress
from tests.terminal import Terminal


@pytest.fixture
def terminal(monkeypatch):
    def begin():  # in the test itself: before it, pytest puts its own stderr back
        screen = Terminal()
        monkeypatch.setattr(sys, "stderr", screen)
        return screen

    monkeypatch.setenv("TERM", "xterm")
    return begin


def test_what_is_logged_stands_above_the_line_which_is_gone_at_the_end(terminal):
    terminal = terminal()
    set_up()
    with LiveLine(lambda: "working") as line:
        assert line.is_live
        terminal.wait_for("working")
        logger.info("one record")
        sys.stderr.write("a line in ")
        sys.stderr.write("two pieces\n")
        shown = len(terminal.live_lines())
        while len(terminal.live_lines()) == shown:
            pass
    lines = terminal.left().splitlines()
    assert [
        line[-len(end) :] for line, end in zip(lines, ("one record", "a line in two pieces"), strict=True)
    ] == [
        "one record",
        "a line in two pieces",
    ]
    assert sys.stderr is terminal


def test_a_long_line_does_not_wrap(terminal):
    terminal = terminal()
    with LiveLine(lambda: "long " * 100):
        terminal.wait_for("…")
    assert {len(line) for line in terminal.live_lines()} == {79}


def test_progress_shows_its_state(terminal):
    terminal = terminal()
    with Progress("tokenize", 10, "B") as progress:
        progress.add(5)
        terminal.wait_for("tokenize: 5 of 10B (50%)")
    assert "tokenize: 10" not in terminal.left()


@pytest.mark.parametrize("variable", ["xterm", "dumb"])
def test_without_a_terminal_nothing_is_shown(monkeypatch, variable):
    stream = Terminal() if variable == "dumb" else io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", variable)
    with LiveLine(lambda: "working") as line:
        assert not line.is_live
        assert sys.stderr is stream
    assert stream.getvalue() == ""


@pytest.mark.parametrize(
    ("text", "columns", "kept"),
    [
        ("abc", 3, "abc"),
        ("abcd", 3, "ab…"),
        ("書書", 4, "書書"),
        ("書書書", 5, "書書…"),
        ("書書書", 4, "書…"),
    ],
)
def test_a_text_is_cut_to_the_columns_that_it_takes(text, columns, kept):
    assert cut(text, columns) == kept
