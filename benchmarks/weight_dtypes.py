"""What the dtype of a service's weights costs and saves: resident memory, tokens per second, accuracy.

Memory: `groundup serve` of the GPT-2 of 124M parameters (random weights, a folder in fp32) in a process of
its own, after its first text; and of a model of 260 thousand parameters, for what the program itself takes.
The peak counts the pages of the folder's file that were mapped while it was read. Speed: greedy texts of 32
tokens of prompt and 32 new ones, 1, 8 and 32 at once; the dtypes take turns, CPU seconds count, the best
round. Accuracy: nats a token of the small model, a Llama of TinyStories, on texts that it drew itself in
fp32. Writes ``results/weight_dtypes.json`` and ``results/weight_dtypes.md``.

    python benchmarks/weight_dtypes.py --model shared/data/models/stories260K --rounds 5
"""

import argparse
import datetime
import json
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import torch
from processes import describe_machine
from random_model import model_of_124m

from groundup.checkpoint.huggingface.weights import read_huggingface, write_huggingface
from groundup.checkpoint.lazy import LoadedModel, as_lazy, load
from groundup.inference.engine import Engine
from groundup.inference.sampler import Sampling
from groundup.inference.sequence import Request
from groundup.models import WeightDtypes

RESULTS_DIR = Path(__file__).parent / "results"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int8": torch.int8}
CACHE_BYTES = 1 << 28


def megabytes(path: Path, *names: str) -> float:
    """Sum of some lines of a file of /proc, in MB."""
    lines = dict(re.findall(r"^(\w+):\s+(\d+) kB", path.read_text(), re.MULTILINE))
    return sum(int(lines[name]) for name in names) * 1024 / 1e6


def memory_of_service(folder: Path, dtype: str) -> dict[str, float]:
    """MB of a service after its first text, and seconds until it was ready."""
    words = [sys.executable, "-m", "groundup", "serve", str(folder), "--port", "0", "--dtype", dtype]
    begin = time.perf_counter()
    process = subprocess.Popen(
        [*words, "--device", "cpu"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert process.stdout is not None
        found = re.search(r":(\d+) ", process.stdout.readline())
        assert found
        seconds = time.perf_counter() - begin
        body = json.dumps({"prompt": [1, 2, 3], "max_tokens": 32, "temperature": 0}).encode()
        url = f"http://127.0.0.1:{found[1]}/v1/completions"
        headers = {"Content-Type": "application/json"}
        urllib.request.urlopen(urllib.request.Request(url, body, headers)).read()
        proc = Path(f"/proc/{process.pid}")
        return {
            "ready_seconds": seconds,
            "peak_MB": megabytes(proc / "status", "VmHWM"),
            "resident_MB": megabytes(proc / "status", "VmRSS"),
            "private_MB": megabytes(proc / "smaps_rollup", "Private_Clean", "Private_Dirty"),
        }
    finally:
        process.terminate()
        process.wait()


def engine_of(kept: LoadedModel, dtype: torch.dtype) -> Engine:
    """An engine with weights of its own."""
    default = torch.bfloat16 if dtype == torch.int8 else dtype
    own = load(as_lazy(kept), device="cpu", dtypes=WeightDtypes(default=default))
    return Engine(own, dtype=dtype, cache_bytes=CACHE_BYTES, owns_model=True)


def speeds(rounds: int) -> dict[str, dict[int, float]]:
    """Dtype -> number of texts -> new tokens a CPU second."""
    kept = model_of_124m()
    engines = {name: engine_of(kept, dtype) for name, dtype in DTYPES.items()}
    best: dict[str, dict[int, float]] = {name: {} for name in DTYPES}
    for count in (1, 8, 32):
        for number in range(rounds + 1):
            random = np.random.default_rng((count, number))
            wanted = [
                Request(
                    prompt=random.integers(50000, size=32).tolist(),
                    sampling=Sampling(temperature=0),
                    max_new_tokens=32,
                )
                for _ in range(count)
            ]
            for name, engine in engines.items():
                begin = time.process_time()
                list(engine.complete(wanted))
                rate = count * 32 / (time.process_time() - begin)
                if number:  # the first round warms up
                    best[name][count] = max(best[name].get(count, 0.0), rate)
        print(count, {name: found[count] for name, found in best.items()}, flush=True)
    return best


def losses(folder: Path) -> dict[str, float]:
    """Dtype -> nats a token of texts that the model drew in fp32."""
    kept = read_huggingface(folder)
    engine = engine_of(kept, torch.float32)
    drawn = engine.generate(
        [[kept.bos_id]] * 64, sampling=Sampling(temperature=1.0), max_new_tokens=400, seed=1
    )
    found = {}
    for name, dtype in DTYPES.items():
        engine, scored = engine_of(kept, dtype), []
        for text in drawn:
            request = Request(
                prompt=[kept.bos_id, *text.ids],
                sampling=Sampling(temperature=0),
                max_new_tokens=0,
                num_prompt_logprobs=0,
            )
            [scores] = engine.complete([request])
            scored += [logprob.chosen for logprob in scores.prompt_logprobs]
        found[name] = -sum(scored) / len(scored)
    return found


def as_markdown(found: dict[str, Any]) -> str:
    """The table."""
    lines = [
        "# The dtype of a service's weights",
        "",
        f"{found['date']}, {found['threads']} threads, {json.dumps(found['machine'])}; best of"
        f" {found['rounds']} rounds. {(__doc__ or '').split('.')[0]}: see benchmarks/weight_dtypes.py.",
        "",
        "| dtype | resident MB | beyond the program's | peak MB | ready, s | tokens per CPU second: 1, 8, 32"
        " texts | nats a token |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    program = found["program"]["resident_MB"]
    for name, memory in found["memory"].items():
        rates = ", ".join(f"{rate:.0f}" for rate in found["speeds"][name].values())
        lines.append(
            f"| {name} | {memory['resident_MB']:.0f} | {memory['resident_MB'] - program:.0f} |"
            f" {memory['peak_MB']:.0f} | {memory['ready_seconds']:.1f} | {rates} |"
            f" {found['losses'][name]:.4f} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measures and writes the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True, help="the folder of stories260K")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_huggingface(model_of_124m(), folder)
        program = memory_of_service(arguments.model, "float32")
        memory = {dtype: memory_of_service(folder, dtype) for dtype in DTYPES}
    print(program, memory, flush=True)
    found = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": describe_machine("torch"),
        "threads": arguments.threads,
        "rounds": arguments.rounds,
        "program": program,
        "memory": memory,
        "speeds": speeds(arguments.rounds),
        "losses": losses(arguments.model),
    }
    RESULTS_DIR.joinpath("weight_dtypes.json").write_text(json.dumps(found, indent=1) + "\n")
    RESULTS_DIR.joinpath("weight_dtypes.md").write_text(as_markdown(found))


if __name__ == "__main__":
    main()
