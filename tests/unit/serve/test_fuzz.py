"""Whatever clients send: no error of the server's, and nothing is left behind."""

import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from groundup.checkpoint.huggingface.weights import write_huggingface
from groundup.serve.service import Limits
from tests.fuzz_service import fuzz, soak
from tests.served import Served
from tests.tiny import tiny_model
from tests.unit.serve.test_openai_api import with_template


def test_no_request_breaks_the_service() -> None:
    with Served(with_template(tiny_model("gpt2"))) as served:
        statuses = fuzz(served.url, 300)
        assert {200, 400, 405, 422} <= statuses.keys()
        served.wait_until(served.is_idle)
        assert served.ask("POST", "/v1/completions", {"prompt": "a", "max_tokens": 1})[0] == 200


def test_a_mixed_load_leaves_nothing_behind() -> None:
    limits = Limits(new_tokens=10_000, waiting=20)
    with Served(tiny_model("gpt2"), limits=limits, max_batch_size=8, cache_bytes=400_000) as served:
        done = soak(served.url, clients=6, rounds=12)
        assert sum(done.values()) == 72
        assert len(done) == 7
        served.wait_until(served.is_idle)
        ended = sum(served.metric("groundup_texts_finished_total", reason=one) for one in ("length", "stop"))
        assert ended >= done["whole"] + done["stream"] + done["megatron"]


_ROUNDS_TO_WARM_UP = 1000
"""After which kernels are built for nearly all shapes of batches: their caches are of a bounded size."""


@pytest.fixture
def service(tmp_path: Path) -> Iterator[str]:
    """The address of a service in a process of its own."""
    write_huggingface(with_template(tiny_model("gpt2")), tmp_path / "model")
    words = [
        sys.executable,
        "-m",
        "groundup",
        "serve",
        str(tmp_path / "model"),
        "--port",
        "0",
        "--max-new-tokens",
        "10000",
    ]
    process = subprocess.Popen(
        words, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert process.stdout is not None
    yield re.search(r"http://\S+", process.stdout.readline())[0]
    process.terminate()
    assert process.wait(60) == 0


def figure(url: str, name: str) -> float:
    """A figure of ``/metrics``."""
    text = urllib.request.urlopen(f"{url}/metrics").read().decode()
    return float(re.search(rf"^{name} (.*)$", text, re.MULTILINE)[1])


@pytest.mark.exhaustive
@pytest.mark.timeout(7200)
def test_ten_thousand_requests_leave_nothing_behind(service: str) -> None:
    soak(service, clients=16, rounds=_ROUNDS_TO_WARM_UP)
    fuzz(service, 500)
    before = {name: figure(service, name) for name in ("process_resident_memory_bytes", "process_open_fds")}
    statuses = fuzz(service, 10_000, seed=1)
    assert sum(statuses.values()) > 9_000
    assert figure(service, "groundup_texts") == 0
    assert figure(service, "groundup_cache_blocks_free") == figure(service, "groundup_cache_blocks")
    assert figure(service, "process_open_fds") <= before["process_open_fds"] + 2
    grown = figure(service, "process_resident_memory_bytes") - before["process_resident_memory_bytes"]
    assert grown < 50e6


@pytest.mark.exhaustive
@pytest.mark.timeout(7200)
def test_an_hour_of_load_compressed_leaves_memory_flat(service: str) -> None:
    soak(service, clients=16, rounds=_ROUNDS_TO_WARM_UP)
    before = figure(service, "process_resident_memory_bytes")
    soak(service, clients=16, rounds=300)
    assert figure(service, "groundup_texts") == 0
    assert figure(service, "groundup_cache_blocks_free") == figure(service, "groundup_cache_blocks")
    assert figure(service, "process_resident_memory_bytes") - before < 20e6
