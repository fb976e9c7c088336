"""GRPO's rollouts beside the engine of `groundup serve`: tokens a second.

The same model with random weights, the same prompts, each ``group`` times with seeds of their own, the same
sampling. Up to 64 completions are worked on together by both; of more, the service takes 64 and a step of
GRPO 256 at once. "rollouts" is what that step calls, on a run that was begun by the stage: the present
weights are brought into the engine's layout, and the cache is made, anew each time. "serve" is the engine as
the service opens it, made once and not counted. Prompts are new in each round, of which the first does not
count; the contenders take turns, and who is first in a round is second in the next.
Writes ``results/rollouts.json`` and ``results/rollouts.md``.

    OMP_NUM_THREADS=2 python benchmarks/rollouts.py --rounds 6

Nothing else may run meanwhile; ``--busy`` measures all the same, and says so.
"""

import argparse
import dataclasses
import datetime
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from processes import describe_machine, wait_for_idle_cpu
from random_model import model_of_124m

from groundup.checkpoint.huggingface.weights import read_huggingface, write_huggingface
from groundup.checkpoint.lazy import LoadedModel
from groundup.core.config import resolve, to_dict
from groundup.finetune.config import FinetuneConfig
from groundup.finetune.rollouts import complete_prompts
from groundup.inference.engine import Engine
from groundup.inference.sampler import Sampling
from groundup.inference.sequence import Request
from groundup.models import build_model
from groundup.models.gpt2 import GPT2Config
from groundup.models.init import initialise
from groundup.train.setup import Run, build_run

RESULTS_DIR = Path(__file__).parent / "results"
NUM_NEW = 64
SAMPLING = Sampling(temperature=1.0)


@dataclasses.dataclass(frozen=True)
class Case:
    """A model, and how many completions are drawn of how many prompts."""

    name: str
    model: Callable[[], LoadedModel]
    prompts: int
    group: int
    rank: int = 0
    """Of adapters, which the service has merged into the weights."""


def model_of_30m() -> LoadedModel:
    """A GPT-2 of 30M parameters with the tokenizer of the larger one."""
    large = model_of_124m()
    config = dataclasses.replace(large.config, num_layers=6, hidden_size=384, num_heads=6, ffn_size=1536)
    assert isinstance(config, GPT2Config)
    model = build_model(config)
    initialise(model, config, seed=0)
    return dataclasses.replace(large, config=config, model=model.eval())


CASES = (
    Case("GPT-2 30M, 4 prompts x 4", model_of_30m, 4, 4),
    Case("GPT-2 30M, 8 prompts x 8", model_of_30m, 8, 8),
    Case("GPT-2 30M, 16 prompts x 8", model_of_30m, 16, 8),
    Case("GPT-2 124M, 8 prompts x 8", model_of_124m, 8, 8),
    Case("GPT-2 124M, 8 prompts x 8, adapters of rank 16", model_of_124m, 8, 8, rank=16),
)


def prompts_of(case: Case, vocab_size: int, number: int) -> list[list[int]]:
    """Each prompt as often as its group has completions; no prefix is known from an earlier round."""
    random = np.random.default_rng((len(case.name), case.prompts, number))
    own = [
        random.integers(vocab_size - 1, size=random.integers(16, 49)).tolist() for _ in range(case.prompts)
    ]
    return [prompt for prompt in own for _ in range(case.group)]


def begun_run(case: Case, folder: Path, loaded: LoadedModel, arguments: argparse.Namespace) -> Run:
    """A run of GRPO as ``groundup finetune`` begins it."""
    (folder / "prompts.jsonl").write_text('{"prompt": "hello", "answer": 1}\n' * 8)
    shape = [f"model.{name}={value}" for name, value in to_dict(loaded.config).items() if value is not None]
    words = (
        *(f"run_dir={folder / 'run'}", f"start.path={folder / 'model'}", *shape),
        *(f"data.path={folder / 'prompts.jsonl'}", "data.sequence_length=512"),
        *("stage.kind=grpo", "stage.reward=number", "stage.group_size=2", "stage.max_new_tokens=64"),
        *(
            "num_steps=1",
            "global_batch_size=8",
            "micro_batch_size=8",
            "validation.interval=0",
            f"lora.rank={case.rank}",
        ),
        *(f"precision={arguments.precision}", f"device={arguments.device}", f"threads={arguments.threads}"),
    )
    config = resolve(FinetuneConfig, overrides=words).value
    return build_run(config, learning=config.learning())


def by_rollouts(run: Run, case: Case, prompts: list[list[int]], seeds: list[int]) -> int:
    """Completes as a step of GRPO does; returns the number of new tokens."""
    found = complete_prompts(
        run, prompts, seeds, sampling=SAMPLING, max_new_tokens=NUM_NEW, on_progress=lambda: None
    )
    return sum(len(one.ids) for one in found)


def by_engine(engine: Engine, loaded: LoadedModel, prompts: list[list[int]], seeds: list[int]) -> int:
    """Completes the same with the service's engine; returns the number of new tokens."""
    requests = [
        Request(prompt=prompt, sampling=SAMPLING, max_new_tokens=NUM_NEW, seed=seed, stop_ids=loaded.stop_ids)
        for prompt, seed in zip(prompts, seeds, strict=True)
    ]
    return sum(len(one.ids) + (one.stop_id is not None) for one in engine.complete(requests))


def measure(case: Case, arguments: argparse.Namespace) -> dict[str, Any]:
    """Tokens a second of both in each round."""
    rates: dict[str, list[float]] = {"rollouts": [], "serve": []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_huggingface(case.model(), folder / "model")
        loaded = read_huggingface(folder / "model", device=arguments.device)
        run = begun_run(case, folder, loaded, arguments)
        engine = Engine(loaded, dtype=run.precision.dtype, owns_model=True)
        contenders = {
            "rollouts": lambda *given: by_rollouts(run, case, *given),
            "serve": lambda *given: by_engine(engine, loaded, *given),
        }
        for number in range(arguments.rounds + 1):
            prompts = prompts_of(case, engine.vocab_size, number)
            seeds = [number * len(prompts) + at for at in range(len(prompts))]
            for contender in sorted(contenders, reverse=bool(number % 2)):
                if not arguments.busy:
                    wait_for_idle_cpu()
                torch.set_num_threads(arguments.threads)
                begin = time.perf_counter()
                count = contenders[contender](prompts, seeds)
                seconds = time.perf_counter() - begin
                if number:
                    rates[contender].append(count / seconds)
    medians = {contender: statistics.median(each) for contender, each in rates.items()}
    ratios = [own / other for own, other in zip(rates["rollouts"], rates["serve"], strict=True)]
    found = {"case": case.name, **medians, "ratio": statistics.median(ratios), "rates": rates}
    print(
        f"{case.name}: rollouts {found['rollouts']:,.0f}, serve {found['serve']:,.0f} tokens/s,"
        f" ratio {found['ratio']:.3f}",
        flush=True,
    )
    return found


def page(result: dict[str, Any]) -> str:
    """The results in Markdown."""
    busy = " **The machine did other work meanwhile.**" if result["busy"] else ""
    return "\n".join(
        [
            "# GRPO's rollouts beside the engine of `groundup serve`",
            "",
            f"{result['date']}; random weights, {result['precision']}, {result['device']},"
            f" {result['threads']} threads; prompts of 16 to 48 tokens, {NUM_NEW} new ones at temperature 1;"
            f" medians of {result['rounds']} rounds in which both complete the same; the ratio is the median"
            f" of the rounds' own. Made by `benchmarks/rollouts.py`.{busy}",
            "",
            *(f"- {name}: {value}" for name, value in result["machine"].items()),
            "",
            "| | rollouts, tokens/s | serve's engine, tokens/s | ratio |",
            "| --- | --- | --- | --- |",
            *(
                f"| {one['case']} | {one['rollouts']:,.0f} | {one['serve']:,.0f} | {one['ratio']:.3f} |"
                for one in result["cases"]
            ),
            "",
        ]
    )


def main() -> None:
    """Measures, and writes the results."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--cases", type=int, nargs="*", default=range(len(CASES)), help="Numbers from 0.")
    parser.add_argument("--out", type=Path, default=RESULTS_DIR, help="Folder of the results.")
    parser.add_argument("--busy", action="store_true", help="Do not wait for an idle machine.")
    arguments = parser.parse_args()
    result = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": describe_machine("torch"),
        "busy": arguments.busy,
        "rounds": arguments.rounds,
        "threads": arguments.threads,
        "precision": arguments.precision,
        "device": arguments.device,
        "cases": [measure(CASES[number], arguments) for number in arguments.cases],
    }
    (arguments.out / "rollouts.json").write_text(json.dumps(result, indent=1) + "\n")
    (arguments.out / "rollouts.md").write_text(page(result))


if __name__ == "__main__":
    main()
