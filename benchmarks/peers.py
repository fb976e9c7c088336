"""Other engines as contenders of ``generation.py``."""

import argparse
import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from groundup.inference.sequence import Request

BASELINES_DIR = Path(__file__).parent / "baselines"
GGUF_TYPES = {"bfloat16": "BF16", "float32": "F32"}


class Peer:
    """A contender in a process of its own, which does nothing while others work."""

    def __init__(self, script: str, python: Path, order: dict[str, Any]) -> None:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        self._process = subprocess.Popen(
            [python, BASELINES_DIR / script, json.dumps(order)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**environment, "OMP_NUM_THREADS": str(order["threads"])},
        )
        self.versions = self._answer()
        os.killpg(self._process.pid, signal.SIGSTOP)

    def complete(self, requests: list[Request]) -> float:
        """Completes all at once; returns seconds."""
        assert self._process.stdin is not None
        os.killpg(self._process.pid, signal.SIGCONT)
        asked = [[list(one.prompt), one.max_new_tokens] for one in requests]
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        found = self._answer()
        os.killpg(self._process.pid, signal.SIGSTOP)
        assert [len(ids) for ids in found["ids"]] == [one.max_new_tokens for one in requests]
        return float(found["seconds"])

    def end(self) -> None:
        """Ends the process, and those that it started."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the contender has ended; its errors are above"
        return json.loads(line)


@contextlib.contextmanager
def peers(arguments: argparse.Namespace, folder: str, dtype: str) -> Iterator[dict[str, Peer]]:
    """Starts the contenders that have a Python, by their names, while entered."""
    llama = ("generation_llama_cpp.py", arguments.llama_cpp)
    wanted = {
        "vllm": ("generation_vllm.py", arguments.vllm, dtype),
        "llama.cpp": (*llama, GGUF_TYPES[dtype]),
        "llama.cpp q8_0": (*llama, "Q8_0"),
    }
    if dtype != "bfloat16":
        del wanted["llama.cpp q8_0"]  # once is enough
    with contextlib.ExitStack() as until_the_end:
        started = {}
        for name, (script, python, kind) in wanted.items():
            if python:
                order = {"folder": folder, "dtype": kind, "threads": arguments.threads}
                started[name] = Peer(script, python, order)
                until_the_end.callback(started[name].end)
        yield started
