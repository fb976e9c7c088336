"""Where the time of a training step on a CPU goes, by kind of work and by instruction set.

For each size, a process under each ceiling of instruction sets trains on random tokens under torch.profiler,
whose operators' own times are added up by kind. Each call of an operator counts with its lowest time of
several steps, so that other programs disturb little; steps without the profiler are timed too, since it makes
small operators look dearer. Below AVX512_CORE_BF16 our code is told that the processor lacks bf16, so that it
does what it would on such a machine. Writes ``results/step_profile.json`` and ``results/step_profile.md``, in
which a case that is measured again replaces its old figures.

    python benchmarks/step_profile.py --sizes tiny 10m 124m --ceilings native AVX512_CORE AVX2
"""

import argparse
import collections
import datetime
import json
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

import torch
from processes import describe_machine, run_process
from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import ProfilerActivity, profile, record_function

from groundup.cli.run_config import presets
from groundup.core.config import resolve
from groundup.models.init import initialise
from groundup.parallel.device import choose_precision
from groundup.parallel.dtensor import place
from groundup.parallel.mesh import init_distributed
from groundup.train.config import TrainConfig
from groundup.train.cpu import keep_freed_memory
from groundup.train.data_loader import Batch
from groundup.train.setup import empty_state
from groundup.train.step import train_step

BENCHMARKS_DIR = Path(__file__).parent
RESULTS_DIR = BENCHMARKS_DIR / "results"
SIZES = {
    "tiny": presets()["tiny"],
    "10m": BENCHMARKS_DIR / "configs" / "10m.yaml",
    "124m": BENCHMARKS_DIR / "configs" / "124m.yaml",
}
CEILINGS = {
    "native": (),
    "AVX512_CORE_BF16": ("ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16",),
    "AVX512_CORE": ("ONEDNN_MAX_CPU_ISA=AVX512_CORE", "MKL_ENABLE_INSTRUCTIONS=AVX512"),
    "AVX2": ("ONEDNN_MAX_CPU_ISA=AVX2", "MKL_ENABLE_INSTRUCTIONS=AVX2", "ATEN_CPU_CAPABILITY=avx2"),
}
"""By the most that oneDNN may use: what else holds PyTorch to it."""
HAS_BF16 = ("native", "AVX512_CORE_BF16")
WARMUP_STEPS, FEWEST_STEPS = 2, 2

REST = "Python and other"
PHASES = {"forward": "", "backward": "", "optimizer": "optimizer"}
"""Phases of a step: the kind of all that runs in them, where that is one."""
ACTIVATIONS = "norms and activations"
REGIONS = {
    "BlockedAttention": "attention",
    "scaled_dot_product": "attention",
    "LinearCrossEntropy": "loss",
    "GeluTanh": ACTIVATIONS,
}
"""Kinds of what runs within a function whose name contains the key; products are told apart."""
KINDS = {
    r"mm|bmm|addmm|baddbmm|linear|mkldnn_\w+|matmul": "products",
    r"copy_|_to_copy|to|contiguous|clone|cat|stack|reshape|_reshape_alias": "casts and copies",
    r"\w*layer_norm\w*|\w*rms_norm\w*|rsqrt|gelu\w*|silu\w*": ACTIVATIONS,
    r"add|add_|mul|mul_|sum|zero_|fill_|zeros|\w*embedding\w*|index\w*": "sums, residuals, embedding",
}
"""Kinds of operators elsewhere: regular expressions of their names."""


class RecordedPhases:
    """Marks the phases of a step for the profiler."""

    def phase(self, name: str) -> record_function:
        """A context that the profiler shows by this name."""
        return record_function(name)


def kind_of(event: FunctionEvent) -> str:
    """Tells what kind of work an event's own time is."""
    name = event.name.removeprefix("aten::")
    of_operator = next((kind for pattern, kind in KINDS.items() if re.fullmatch(pattern, name)), REST)
    phase, parent = "", event
    while parent is not None:
        region = next((kind for key, kind in REGIONS.items() if key in parent.name), "")
        if region and not event.name.startswith("aten::"):
            return REST
        if region == ACTIVATIONS:
            return region
        if region:
            return f"{region}: products" if of_operator == "products" else f"{region}: the rest"
        phase = parent.name if parent.name in PHASES else phase
        parent = parent.cpu_parent
    if not event.name.startswith("aten::"):
        return REST
    return PHASES.get(phase, "clipping") or of_operator


def measure(size: str, *, seconds: float) -> dict[str, Any]:
    """Profiles steps of one size in this process: milliseconds by kind, and by operator and kind."""
    path = SIZES[size]
    overrides = ("run_dir=none", "data.path=none", "num_steps=10", "device=cpu")
    config = resolve(TrainConfig, file=path, overrides=overrides, presets=presets()).value
    mesh = init_distributed(config.layout, None, torch.device("cpu"))
    precision = choose_precision("auto", mesh.device)
    keep_freed_memory()
    state = empty_state(config, mesh, precision)
    initialise(state.model, config.model, seed=0, place=place)
    state.phases = RecordedPhases()  # type: ignore[assignment]
    shape = (config.global_batch_size, config.data.sequence_length + 1)
    ids = torch.randint(config.model.vocab_size, shape, generator=torch.Generator().manual_seed(0))
    batch = Batch(tokens_BT=ids[:, :-1].contiguous(), targets_BT=ids[:, 1:].contiguous())

    def step() -> float:
        began = time.perf_counter()
        train_step(state, batch, config, precision, mesh)
        return time.perf_counter() - began

    for _ in range(WARMUP_STEPS):
        step()
    plain, profiles = [], []
    began = time.perf_counter()
    while time.perf_counter() - began < seconds or len(plain) < FEWEST_STEPS:
        plain.append(step())
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            taken = step()
        profiles.append(
            (taken, [(event.name, kind_of(event), event.self_cpu_time_total) for event in profiler.events()])
        )
    kinds: dict[str, float] = collections.defaultdict(float)
    operators: dict[str, float] = collections.defaultdict(float)
    for calls in zip(*(calls for _, calls in profiles), strict=True):
        (name, kind), milliseconds = calls[0][:2], min(call[2] for call in calls) / 1e3
        kinds[kind] += milliseconds
        operators[f"{kind} | {name}"] += milliseconds
    taken = sum(kinds.values())

    return {
        "size": size,
        "precision": precision.name,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="minutes"),
        "threads": torch.get_num_threads(),
        "load_average": round(os.getloadavg()[0], 1),
        "steps": len(plain),
        "step_ms": 1e3 * min(plain),
        "profiled_ms": taken,
        "kinds": dict(sorted(kinds.items(), key=lambda one: -one[1])),
        "operators": dict(sorted(operators.items(), key=lambda one: -one[1])[:40]),
    }


def measure_under(size: str, ceiling: str, seconds: float) -> dict[str, Any]:
    """Profiles in a process that uses no instruction sets beyond a ceiling."""
    own = ["--of-one-size", size, "--seconds", str(seconds)]
    own += [] if ceiling in HAS_BF16 else ["--without-bf16"]
    output = run_process(["env", *CEILINGS[ceiling], sys.executable, __file__, *own])
    return {"ceiling": ceiling, **json.loads(output.splitlines()[-1])}


def render(result: dict[str, Any]) -> str:
    """The results as Markdown."""
    lines = [
        "# Where the time of a training step on a CPU goes",
        "",
        "Milliseconds, and shares of the profiled step: each call's lowest of several steps under"
        " torch.profiler. Columns are the most that oneDNN, MKL and PyTorch may use. In fp32 attention is one"
        " operator of PyTorch's, whose products are in its rest. Made by `benchmarks/step_profile.py`.",
        "",
        *(f"- {name}: {value}" for name, value in result["machine"].items()),
    ]
    for size in dict.fromkeys(case["size"] for case in result["cases"]):
        cases = [case for case in result["cases"] if case["size"] == size]
        lines += ["", f"## {size}", ""]
        lines += ["| | " + " | ".join(f"{case['ceiling']} ({case['precision']})" for case in cases) + " |"]
        lines += ["|---|" + "---|" * len(cases)]
        for name in ("date", "threads", "load_average"):
            lines.append(
                f"| {name.replace('_', ' ')} | " + " | ".join(str(case[name]) for case in cases) + " |"
            )
        for kind in cases[0]["kinds"]:
            shares = (
                f"{ms:,.1f} ({ms / case['profiled_ms']:.0%})"
                for case in cases
                for ms in [case["kinds"].get(kind, 0.0)]
            )
            lines.append(f"| {kind} | {' | '.join(shares)} |")
        lines.append(
            "| profiled step | " + " | ".join(f"{case['profiled_ms']:,.1f}" for case in cases) + " |"
        )
        lines.append("| step | " + " | ".join(f"{case['step_ms']:,.1f}" for case in cases) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measures and writes the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--ceilings", nargs="+", choices=CEILINGS, default=["native", "AVX512_CORE", "AVX2"])
    parser.add_argument("--seconds", type=float, default=20.0, help="of each size under each ceiling")
    parser.add_argument("--without-bf16", action="store_true", help="as if the processor had none")
    parser.add_argument("--of-one-size", choices=SIZES, help="profile in this process and print JSON")
    parser.add_argument("--name", default="step_profile", help="of the files of results")
    parser.add_argument("--results-dir", type=Path, default=RESULTS_DIR)
    arguments = parser.parse_args()
    if arguments.of_one_size:
        if arguments.without_bf16:
            torch.cpu.get_capabilities = dict
        result = measure(arguments.of_one_size, seconds=arguments.seconds)
        print(json.dumps(result))
        return
    for size in arguments.sizes:
        for ceiling in arguments.ceilings:
            case = measure_under(size, ceiling, arguments.seconds)
            print({key: case[key] for key in ("size", "ceiling", "step_ms", "kinds")}, flush=True)
            write(case, arguments.results_dir / f"{arguments.name}.json")


def write(case: dict[str, Any], path: Path) -> None:
    """Adds a case to the results, in place of an older one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    cases = json.loads(path.read_text())["cases"] if path.exists() else []
    found = {(one["size"], one["ceiling"]): one for one in (*cases, case)}
    order = [(size, ceiling) for size in SIZES for ceiling in CEILINGS]
    has = torch.cpu.get_capabilities().items()
    result = {
        "machine": {
            **describe_machine("torch"),
            "instruction sets": ", ".join(name for name, is_there in has if is_there is True),
        },
        "cases": [found[key] for key in order if key in found],
    }
    path.write_text(json.dumps(result, indent=2) + "\n")
    path.with_suffix(".md").write_text(render(result))


if __name__ == "__main__":
    main()
