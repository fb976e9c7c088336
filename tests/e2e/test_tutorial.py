"""The commands of docs/tutorial.md run in order in an empty folder: from links to a service that answers."""

import contextlib
import http.client
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from groundup.cli.app import build_app
from tests.guides import ROOT, blocks, commands, run

TUTORIAL = "docs/tutorial.md"


def write_what_is_saved(folder: Path) -> None:
    """The files that readers write: a script and two configs, whose run is a short one here."""
    (script,) = blocks(TUTORIAL, "python")
    recipe, config = blocks(TUTORIAL, "yaml")
    for long, short in (("num_steps: 800", "num_steps: 40"), ("interval: 200", "interval: 10")):
        assert long in config
        config = config.replace(long, short)
    for name, text in (("make_site.py", script), ("recipe.yaml", recipe), ("run.yaml", config)):
        (folder / name).write_text(text)


def free_port() -> str:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return str(taken.getsockname()[1])


def start(line: str, folder: Path, log: str) -> subprocess.Popen[bytes]:
    """Starts what readers leave running in a terminal."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with (folder / log).open("wb") as out:
        return subprocess.Popen(
            ["bash", "-c", f"exec {line}"],
            cwd=folder,
            env={**os.environ, "PATH": path},
            stdout=out,
            stderr=subprocess.STDOUT,
        )


@contextlib.contextmanager
def running(line: str, folder: Path, port: str) -> Iterator[None]:
    """Runs a server from when it answers; Ctrl-C ends it."""
    process = start(line, folder, "server.log")
    try:
        while True:
            assert process.poll() is None, (folder / "server.log").read_text()
            with contextlib.suppress(OSError):
                connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=60)
                connection.request("GET", "/")
                connection.getresponse()
                break
            time.sleep(0.05)
        yield
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()


def train_and_press_ctrl_c(line: str, folder: Path) -> str:
    """Stops a training when it has saved something; returns what it said."""
    process = start(line, folder, "stopped.log")
    while "saved run/checkpoints" not in (folder / "stopped.log").read_text():
        assert process.poll() is None, (folder / "stopped.log").read_text()
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    assert process.wait() == 130
    return (folder / "stopped.log").read_text()


def test_its_commands_are_understood():
    app = build_app()
    lines = [shlex.split(line) for line in commands(TUTORIAL)]
    ours = [words for words in lines if words[0] == "groundup"]
    assert len(ours) == 21
    for words in ours:
        app.parse_args(words[1:], print_error=False, exit_on_error=False)


def test_what_it_links_to_is_there():
    text = (ROOT / TUTORIAL).read_text()
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", text):
        assert (ROOT / "docs" / target).exists(), target


@pytest.mark.example
@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_every_command_runs(tmp_path):
    write_what_is_saved(tmp_path)
    site, service = free_port(), free_port()
    lines = [line.replace("8080", site).replace("8000", service) for line in commands(TUTORIAL)]
    printed = {}
    trained = False
    with contextlib.ExitStack() as terminals:
        for line in lines:
            if "http.server" in line or "groundup serve" in line:
                terminals.enter_context(running(line, tmp_path, site if "http.server" in line else service))
            elif line == "groundup train run.yaml" and not trained:
                assert "The same command continues from there." in train_and_press_ctrl_c(line, tmp_path)
                trained = True
            else:
                printed[line] = run(f"{line} 2>&1", tmp_path, fresh=True)
    assert "continuing from run/checkpoints/step_00000" in printed["groundup train run.yaml"]
    assert "120 of 120 final tensors are equal to the bit" in printed["groundup verify resume run.yaml"]
    said = "".join(printed.values())
    for words in ("near_duplicate: much the same", "The plan can be carried out.", "parity: largest"):
        assert words in said
    _, chat, _ = list(printed.values())[-3:]
    assert '"role":"assistant"' in chat and '"finish_reason":' in chat
    assert (tmp_path / "run/report.html").is_file() and (tmp_path / "exported/chat_template.jinja").is_file()
