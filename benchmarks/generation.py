"""Tokens per second of generation: groundup's engine against ``transformers.generate``, and other engines.

A model with random weights, the same in all, greedy, without an end: the GPT-2 of 124M parameters, or those
that ``--models`` names. Requests have
prompts of 16 to 48 tokens and 8 to 64 new ones, the same for all. transformers completes them one by one
("single"), or in one static batch, padded on the left, that runs as long as its longest text ("batch");
tokens beyond a request's own are not counted. vLLM and llama.cpp, where a Python that has them is named, get
all requests at once, and are stopped while others work. The contenders take turns. The bandwidth is that of
the weights, read once a step, and of the keys and values; its share is of what a sum over 256 MB reads.
Writes ``results/generation.json`` and ``results/generation.md``.

    python benchmarks/generation.py --rounds 3 --threads 2 --vllm PYTHON --llama-cpp PYTHON
    python benchmarks/generation.py --device cuda --models gpt2-345m llama-1b --name generation_gpu
"""

import argparse
import datetime
import functools
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peers import peers
from processes import describe_machine, wait_for_idle_cpu
from random_model import SHAPES, random_model

from groundup.checkpoint.huggingface.weights import write_huggingface
from groundup.checkpoint.lazy import LoadedModel
from groundup.inference.engine import Engine
from groundup.inference.sampler import Sampling
from groundup.inference.sequence import Request

RESULTS_DIR = Path(__file__).parent / "results"
COLUMNS = {
    "groundup": "groundup",
    "transformers single": "transformers, one by one",
    "transformers batch": "transformers, static batch",
    "vllm": "vLLM",
    "llama.cpp": "llama.cpp",
    "llama.cpp q8_0": "llama.cpp, q8_0",
}


def requests_of(count: int, number: int) -> list[Request]:
    """Requests of mixed lengths, the same in every round, and of tokens that differ: no prefix is known."""
    lengths, tokens = np.random.default_rng(count), np.random.default_rng(number)
    return [
        Request(
            prompt=tokens.integers(50000, size=lengths.integers(16, 49)).tolist(),
            sampling=Sampling(temperature=0),
            max_new_tokens=int(lengths.integers(8, 65)) if count > 1 else 48,
        )
        for _ in range(count)
    ]


def ours(engine: Engine, requests: list[Request]) -> float:
    """Completes all at once; returns seconds."""
    begin = time.perf_counter()
    found = list(engine.complete(requests))
    assert [len(one.ids) for one in found] == [one.max_new_tokens for one in requests]
    return time.perf_counter() - begin


def theirs(model: Any, requests: list[Request], *, batch: bool) -> float:
    """Completes all in a static batch, or one by one; returns seconds."""
    begin = time.perf_counter()
    for part in [requests] if batch else [[one] for one in requests]:
        longest = max(len(one.prompt) for one in part)
        rows = [[0] * (longest - len(one.prompt)) + list(one.prompt) for one in part]
        seen = [[int(at >= longest - len(one.prompt)) for at in range(longest)] for one in part]
        num_new = max(one.max_new_tokens for one in part)
        found = model.generate(
            torch.tensor(rows, device=model.device),
            attention_mask=torch.tensor(seen, device=model.device),
            do_sample=False,
            min_new_tokens=num_new,
            max_new_tokens=num_new,
            pad_token_id=0,
        )
        assert found.tolist() and found.shape[1] == longest + num_new
    return time.perf_counter() - begin


def bytes_read(loaded: LoadedModel, requests: list[Request], size: int) -> int:
    """Bytes that decoding must read: weights once a step, and the keys and values of each text."""
    config = loaded.config
    steps = max(one.max_new_tokens for one in requests)
    weights = sum(p.numel() for name, p in loaded.model.named_parameters() if "positions" not in name)
    of_token = 2 * config.num_layers * config.num_kv_heads * config.head_dim
    cached = sum((len(one.prompt) + at) for one in requests for at in range(one.max_new_tokens))
    return size * (steps * weights + of_token * cached)


def read_bandwidth(device: str) -> float:
    """Bytes a second of a sum over memory that caches do not hold: the best of ten."""
    numbers = torch.ones(1 << (26 if device == "cpu" else 29), device=device)
    best = min(_seconds(lambda: numbers.sum().item()) for _ in range(10))
    return float(numbers.nbytes / best)


def _seconds(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def measure(arguments: argparse.Namespace) -> None:
    """Measures all cases, and writes the results after each."""
    import transformers

    transformers.logging.set_verbosity_error()
    found: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": describe_machine("torch", "transformers"),
        "device": arguments.device if arguments.device == "cpu" else torch.cuda.get_device_name(),
        "threads": torch.get_num_threads(),
        "busy": arguments.busy,
        "rounds": arguments.rounds,
        "cases": [],
    }
    for model_name in arguments.models:
        loaded = random_model(model_name)
        loaded.model.to(arguments.device)
        with tempfile.TemporaryDirectory() as folder:
            write_huggingface(loaded, Path(folder))
            for name in arguments.dtypes:
                dtype = getattr(torch, name)
                engine = Engine(loaded, dtype=dtype)
                other = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
                other = other.eval().to(arguments.device)
                with peers(arguments, folder, name) as started:
                    for peer in started.values():
                        found["machine"] |= peer.versions
                    for count in (1, 8, 32):
                        contenders: dict[str, Callable[[list[Request]], float]] = {
                            "groundup": functools.partial(ours, engine)
                        }
                        if count <= 8:
                            contenders["transformers single"] = functools.partial(theirs, other, batch=False)
                        if count > 1:
                            contenders["transformers batch"] = functools.partial(theirs, other, batch=True)
                        contenders |= {key: peer.complete for key, peer in started.items()}
                        figures = race(arguments, loaded, contenders, count, dtype)
                        about = {"model": model_name, "dtype": name, "requests": count}
                        found["cases"].append({**about, **figures})
                        found["load_average"] = os.getloadavg()[1]
                        found["read_bandwidth_GB_s"] = read_bandwidth(arguments.device) / 1e9
                        print(found["cases"][-1], flush=True)
                        text = json.dumps(found, indent=1) + "\n"
                        RESULTS_DIR.joinpath(f"{arguments.name}.json").write_text(text)
                        RESULTS_DIR.joinpath(f"{arguments.name}.md").write_text(as_markdown(found))


def race(
    arguments: argparse.Namespace,
    loaded: LoadedModel,
    contenders: dict[str, Callable[[list[Request]], float]],
    count: int,
    dtype: torch.dtype,
) -> dict[str, Any]:
    """Lets contenders complete the same requests, in turns; returns the figures of each."""
    times: dict[str, list[float]] = {key: [] for key in contenders}
    bandwidth = []
    for number in range(arguments.rounds + 1):
        if not arguments.busy and arguments.device == "cpu":
            wait_for_idle_cpu()
        bandwidth.append(read_bandwidth(arguments.device))
        requests = requests_of(count, number)
        for key, contender in contenders.items():
            seconds = contender(requests)
            if number:  # the first round warms up
                times[key].append(seconds)
    num_tokens = sum(one.max_new_tokens for one in requests)
    read = bytes_read(loaded, requests, dtype.itemsize) / statistics.median(times["groundup"])
    return {
        "tokens_per_second": {key: num_tokens / statistics.median(value) for key, value in times.items()},
        "best": {key: num_tokens / min(value) for key, value in times.items()},
        "share_of_bandwidth": read / statistics.median(bandwidth),
    }


def as_markdown(found: dict[str, Any]) -> str:
    """The table."""
    lines = [
        "# Generation: tokens per second",
        "",
        f"{found['date']}, {found['device']}, {found['threads']} threads, {json.dumps(found['machine'])};"
        f" median of {found['rounds']} rounds in which the contenders take turns, the best in brackets.",
    ]
    if found["busy"]:
        lines.append(
            f"**Other programs were running meanwhile** (load average {found['load_average']:.1f}): the"
            " figures are low, and their ratios a hint."
        )
    lines += [
        "Random weights, greedy; prompts of 16 to 48 tokens, 8 to 64 new ones (one: 48)."
        " The bandwidth is groundup's, as a share of what a sum reaches"
        f" ({found['read_bandwidth_GB_s']:.0f} GB/s at the end).",
        "",
    ]
    columns = {
        key: title for key, title in COLUMNS.items() if any(key in case["best"] for case in found["cases"])
    }
    head = ["model", "dtype", "requests", *columns.values(), "bandwidth"]
    lines += ["| " + " | ".join(head) + " |", "| " + " | ".join("---" for _ in head) + " |"]
    for case in found["cases"]:
        figures = [
            f"{case['tokens_per_second'][key]:.0f} ({case['best'][key]:.0f})" if key in case["best"] else "-"
            for key in columns
        ]
        share = f"{100 * case['share_of_bandwidth']:.0f}%"
        about = [case["model"], case["dtype"], str(case["requests"])]
        lines.append("| " + " | ".join([*about, *figures, share]) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measures and writes the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", choices=SHAPES, default=["gpt2-124m"])
    parser.add_argument("--dtypes", nargs="+", default=["bfloat16", "float32"])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument(
        "--vllm", type=Path, help="a Python that has vLLM: benchmarks/baselines/generation_vllm.py"
    )
    parser.add_argument("--llama-cpp", type=Path, help="one that has llama.cpp: .../generation_llama_cpp.py")
    parser.add_argument("--name", default="generation", help="of the files of results")
    parser.add_argument("--busy", action="store_true", help="do not wait for an idle machine, and say so")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    measure(arguments)


if __name__ == "__main__":
    main()
