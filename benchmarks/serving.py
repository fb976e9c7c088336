"""Latency of `groundup serve` under load: time to first token and between tokens, over HTTP.

The GPT-2 of 124M parameters with random weights, in a process of its own. 1, 8 and 32 clients on this machine
each stream one greedy completion after the other (prompts of 16 to 48 tokens, 32 new ones). The first token
is timed from before the connection is made; between tokens is from one event to the next at the client. The
same requests then go to an engine in this process, as many at once, without HTTP: the contenders take turns.
Writes ``results/serving.json`` and ``results/serving.md``.

    python benchmarks/serving.py --rounds 3 --threads 2
"""

import argparse
import concurrent.futures
import contextlib
import datetime
import http.client
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from processes import describe_machine, wait_for_idle_cpu
from random_model import model_of_124m

from groundup.checkpoint.huggingface.weights import read_huggingface, write_huggingface
from groundup.inference.engine import Engine
from groundup.inference.sampler import Sampling
from groundup.inference.sequence import Request

RESULTS_DIR = Path(__file__).parent / "results"
NUM_NEW = 32
PERCENTILES = (50, 90, 99)


def prompts_of(clients: int, per_client: int, number: int) -> list[list[list[int]]]:
    """Prompts of each client; no prefix is known from before."""
    random = np.random.default_rng((clients, number))
    return [
        [random.integers(50000, size=random.integers(16, 49)).tolist() for _ in range(per_client)]
        for _ in range(clients)
    ]


@contextlib.contextmanager
def service(folder: Path, dtype: str, device: str, threads: int) -> Iterator[int]:
    """Runs `groundup serve`; yields its port."""
    words = [sys.executable, "-m", "groundup", "serve", str(folder), "--port", "0", "--dtype", dtype]
    process = subprocess.Popen(
        [*words, "--device", device],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": str(threads)},
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r":(\d+) ", line)
        assert found, line
        yield int(found[1])
    finally:
        process.terminate()
        process.wait()


def talk(port: int, prompts: list[list[int]]) -> tuple[list[float], list[float]]:
    """What one client does; returns seconds to first tokens, and between tokens."""
    first, between = [], []
    for prompt in prompts:
        body = {"prompt": prompt, "max_tokens": NUM_NEW, "temperature": 0, "stream": True, "logprobs": 0}
        last = time.perf_counter()
        connection = http.client.HTTPConnection("127.0.0.1", port)
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        count = 0
        for line in connection.getresponse():
            if line.startswith(b"data: {"):
                now = time.perf_counter()
                new = len(json.loads(line[6:])["choices"][0]["logprobs"]["tokens"])
                if new:
                    (between if count else first).append(now - last)
                    last = now
                count += new
        assert count == NUM_NEW, count
        connection.close()
    return first, between


def over_http(port: int, prompts: list[list[list[int]]]) -> tuple[float, list[float], list[float]]:
    """All clients at once; returns seconds of it all, and those of ``talk``."""
    first, between = [], []
    begin = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(len(prompts)) as clients:
        for one in clients.map(lambda own: talk(port, own), prompts):
            first += one[0]
            between += one[1]
    return time.perf_counter() - begin, first, between


def in_process(engine: Engine, prompts: list[list[list[int]]]) -> float:
    """The same texts by the engine alone; each client's next one begins when its last has ended."""
    queues = [iter(own) for own in prompts]
    owner: dict[int, int] = {}

    def begin(client: int) -> None:
        prompt = next(queues[client], None)
        if prompt is not None:
            request = Request(prompt=prompt, sampling=Sampling(temperature=0), max_new_tokens=NUM_NEW)
            owner[engine.add(request)] = client

    start = time.perf_counter()
    for client in range(len(prompts)):
        begin(client)
    while owner:
        for delta in engine.step():
            if delta.finished:
                begin(owner.pop(delta.sequence))
    return time.perf_counter() - start


def percentiles_ms(seconds: list[float]) -> dict[int, float]:
    """Percentile -> milliseconds."""
    values = 1000 * np.percentile(seconds, PERCENTILES)
    return dict(zip(PERCENTILES, values.tolist(), strict=True))


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """All cases."""
    cases = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_huggingface(model_of_124m(), folder)
        engine = Engine(
            read_huggingface(folder, device=arguments.device), dtype=getattr(torch, arguments.dtype)
        )
        with service(folder, arguments.dtype, arguments.device, arguments.threads) as port:
            for clients in (1, 8, 32):
                seconds: dict[str, float] = {"http": 0.0, "engine": 0.0}
                first, between = [], []
                for number in range(arguments.rounds + 1):
                    if not arguments.busy:
                        wait_for_idle_cpu()
                    prompts = prompts_of(clients, arguments.per_client, number)
                    taken, *times = over_http(port, prompts)
                    alone = in_process(engine, prompts)
                    if number:  # the first round warms up
                        seconds["http"] += taken
                        seconds["engine"] += alone
                        first += times[0]
                        between += times[1]
                num_tokens = arguments.rounds * clients * arguments.per_client * NUM_NEW
                cases.append(
                    {
                        "clients": clients,
                        "first_token_ms": percentiles_ms(first),
                        "between_ms": percentiles_ms(between),
                        "tokens_per_second": {key: num_tokens / value for key, value in seconds.items()},
                    }
                )
                print(cases[-1], flush=True)
    machine = describe_machine("torch", "uvicorn", "fastapi")
    if arguments.device == "cuda":
        machine["gpu"] = torch.cuda.get_device_name()
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": machine,
        "dtype": arguments.dtype,
        "device": arguments.device,
        "threads": arguments.threads,
        "load_average": os.getloadavg()[1],
        "busy": arguments.busy,
        "rounds": arguments.rounds,
        "per_client": arguments.per_client,
        "cases": cases,
    }


def as_markdown(found: dict[str, Any]) -> str:
    """The table."""
    lines = [
        "# Serving: latency under load",
        "",
        f"{found['date']}, {found['device']}, {found['dtype']}, {found['threads']} threads,"
        f" {json.dumps(found['machine'])};"
        f" {found['rounds']} rounds of {found['per_client']} requests a client.",
    ]
    if found["busy"]:
        lines.append(
            f"**Other programs were running meanwhile** (load average {found['load_average']:.1f}): latencies"
            " are high, and the ratio to the engine a hint."
        )
    lines += [
        f"GPT-2 124M, random weights, greedy; prompts of 16 to 48 tokens, {NUM_NEW} new ones, streamed over"
        " HTTP to clients on the same machine. The last column is the engine in a process without HTTP.",
        "",
        "| clients | first token, ms: p50 / p90 / p99 | between tokens, ms: p50 / p90 / p99 | tokens/s |"
        " engine alone |",
        "| --- | --- | --- | --- | --- |",
    ]
    for case in found["cases"]:
        figures = [
            " / ".join(f"{value:.1f}" for value in case[key].values())
            for key in ("first_token_ms", "between_ms")
        ]
        rates = [f"{case['tokens_per_second'][key]:.0f}" for key in ("http", "engine")]
        lines.append("| " + " | ".join([str(case["clients"]), *figures, *rates]) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measures and writes the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--per-client", type=int, default=4)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--name", default="serving", help="of the files of results")
    parser.add_argument("--busy", action="store_true", help="do not wait for an idle machine, and say so")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    found = measure(arguments)
    RESULTS_DIR.joinpath(f"{arguments.name}.json").write_text(json.dumps(found, indent=1) + "\n")
    RESULTS_DIR.joinpath(f"{arguments.name}.md").write_text(as_markdown(found))


if __name__ == "__main__":
    main()
