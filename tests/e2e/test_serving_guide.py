"""The commands of docs/guides/serving.md run as they stand, at an address that is free."""

import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from groundup.checkpoint.huggingface.weights import write_huggingface
from tests.forked import programs
from tests.guides import blocks, commands, run
from tests.served import Served
from tests.tiny import tiny_model
from tests.unit.serve.test_openai_api import with_template

GUIDE = "docs/guides/serving.md"
USUAL = "http://127.0.0.1:5000"


@contextlib.contextmanager
def serving(folder: Path, *flags: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The first command's process, with more flags, and the address that it prints."""
    write_huggingface(with_template(tiny_model("gpt2")), folder / "model")
    first, *_ = commands(GUIDE)
    _, *words = first.split()
    process = subprocess.Popen(
        [str(programs() / "groundup"), *words, *flags, "--port", "0"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    assert process.stdout is not None
    try:
        found = re.match(r"model at (http://127\.0\.0\.1:\d+) \(ready in ", process.stdout.readline())
        assert found
        yield process, found[1]
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def service(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    with serving(tmp_path) as one:
        yield one


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["layout.tp=2", "layout.tp=2 layout.pp=2"])
def test_a_layout_of_several_ranks_gives_the_same_answers(layout: str, tmp_path: Path) -> None:
    body = {"prompts": ["the cat", "a"], "tokens_to_generate": 9, "random_seed": 3, "logprobs": True}
    with Served(tiny_model("gpt2")) as served:
        expected = served.ask("PUT", "/api", body)[1]
    with serving(tmp_path, *layout.split()) as (process, url):
        connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=120)
        connection.request("PUT", "/api", json.dumps(body))
        answer = json.load(connection.getresponse())
        process.terminate()
        _, log = process.communicate(timeout=120)
        assert process.returncode == 0, log
    assert answer["segments"] == expected["segments"]
    for row, other in zip(answer["logprobs"], expected["logprobs"], strict=True):
        assert row == pytest.approx(other, abs=1e-3)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
def test_every_command_runs(service: tuple[subprocess.Popen[str], str], tmp_path: Path) -> None:
    process, url = service
    _, *rest = commands(GUIDE)
    streamed, megatron, health, completed, of_megatron = [
        run(line.replace(USUAL, url), tmp_path) for line in rest
    ]
    assert streamed.startswith("data: {")
    assert streamed.endswith("data: [DONE]\n\n")
    answer = json.loads(megatron)
    assert list(answer) == ["logprobs", "segments", "text"]
    assert answer["text"][0].startswith("Hello world")
    assert json.loads(health)["status"] == "ok"
    assert completed.startswith("Hello world")
    assert of_megatron.startswith("Hello world")

    (program,) = blocks(GUIDE, "python")
    (tmp_path / "talk.py").write_text(program.replace(USUAL, url))
    assert run("python talk.py", tmp_path, fresh=True).count("\n") > 2

    process.send_signal(signal.SIGTERM)
    _, log = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "Traceback" not in log
    assert "draining" in log


@pytest.mark.slow
def test_the_prompt_loop(service: tuple[subprocess.Popen[str], str], tmp_path: Path) -> None:
    """Both protocols; a refusal does not end it."""
    _, url = service
    for flags, told in (
        ("", "status 422"),
        ("--api megatron", "longer than allowed"),
        ("--chat", "status 422"),
    ):
        lines = "Hello\\n3\\nHello\\n1000\\nHello\\nmany\\nHello again\\n2\\nstop\\n"
        out = run(f"printf '{lines}' | groundup client {url} {flags} 2> errors.txt", tmp_path)
        assert out.count("Enter prompt: ") == 5
        assert out.count("Enter number of tokens to generate: ") == 4
        errors = (tmp_path / "errors.txt").read_text()
        assert told in errors
        assert "'many' is not a number of tokens" in errors


def test_what_cannot_be_served_or_reached_is_told(tmp_path: Path) -> None:
    write_huggingface(tiny_model("gpt2"), tmp_path / "model")
    for command, told in (
        ("serve model --port 70000", "65535"),
        ("serve model --max-texts 0", "--max-texts"),
        ("serve model --api-key x --api-key-file y", "both given"),
        ("serve model --api-key-file missing", "cannot read the key"),
        ("serve missing", "no such file"),
        ("client ftp://x --prompt a", "no address"),
        ("client 127.0.0.1:9 --prompt a", "no service answers"),
        ("client localhost --chat --api megatron", "no conversations"),
    ):
        words = [str(programs() / "groundup"), *command.split()]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=300)
        assert done.returncode == 1, command
        assert told in done.stderr, (command, done.stderr)
        assert "Traceback" not in done.stderr
