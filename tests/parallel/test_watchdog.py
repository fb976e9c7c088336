"""A rank that hangs is named, with its step, phase and stack, and all end; under any launcher."""

import os
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.forked import python
from tests.parallel.test_launch import RANK, failure_report

GLOO = RANK.with_name("rank_on_gloo.py")
HOST = os.uname().nodename
WAYS = {
    "sleep": ("no progress for [0-9]+ s at misbehave in rank_on_gloo.py", "in misbehave\n"),
    "reader": ("no progress for [0-9]+ s at ", "in sleep_in_a_reader\n"),
    "stop": ("no sign of life for [0-9]+ s", ""),
    "native": ("no sign of life for [0-9]+ s", "in misbehave\n"),
    "recv": ("no progress for [0-9]+ s at recv, called by misbehave in rank_on_gloo.py", "in misbehave\n"),
}


@pytest.mark.slow
def test_a_rank_that_hangs_is_named_with_its_stack(tmp_path):
    """All ways at once: each is a wait for some seconds."""
    with ThreadPoolExecutor(len(WAYS)) as threads:
        python()
        reports = threads.map(lambda how: failure_report(tmp_path / how, 1, how, GLOO, python()), WAYS)
    for how, (code, lines, stderr) in zip(WAYS, reports, strict=True):
        message, stack = WAYS[how]
        assert re.match(
            rf"groundup: first failure: rank 1 \({HOST}\), step 40, phase backward: Hang: {message}", lines[0]
        ), (how, stderr)
        assert "all_reduce" in lines[0], how
        assert stack in stderr, how
        assert code != 0, how


def torchrun(folder, culprit, how):
    """What torchrun says when the culprit of three ranks fails."""
    folder.mkdir()
    words = ["--standalone", "--nproc-per-node", "3", str(GLOO), str(culprit), how, str(folder)]
    run = subprocess.run(
        [python(), "-m", "torch.distributed.run", *words], capture_output=True, text=True, timeout=240
    )
    assert run.returncode != 0
    return run.stderr


TORCHRUNS = {
    "raise": ("step 20, phase backward: ValueError: a bug", "first failure: rank 2"),
    "kill": (
        "step 20, phase backward: its process has ended without a word",
        "first failure: rank 2|SIGKILL",
    ),
    "sleep": ("step 40, phase backward: Hang: no progress", "first failure: rank 2"),
}


@pytest.mark.slow
def test_torchruns_report_names_the_first_failure_too(tmp_path):
    with ThreadPoolExecutor(len(TORCHRUNS)) as threads:
        python()
        reports = threads.map(lambda how: torchrun(tmp_path / how, 2, how), TORCHRUNS)
    for (how, (message, cause)), stderr in zip(TORCHRUNS.items(), reports, strict=True):
        before, _, table = stderr.partition("ChildFailedError")
        assert f"groundup: first failure: rank 2 ({HOST}), {message}" in before, how
        assert re.search(cause, table.partition("Root Cause")[2]), how
        assert "first failure: rank 0" not in stderr, how
