"""The memory that ``groundup plan`` expects of a step, against what PyTorch's allocator counts in one.

Each model and layout trains two steps on random tokens on gloo ranks of this machine, every rank in a process
of its own, with each allocation and release of the second step recorded (``torch.profiler``). Then the
published figures of Megatron-LM's runs, by the formulas for it. Writes ``results/plan.json`` and
``results/plan.md``.

    python benchmarks/plan_memory.py
"""

import gc
import json
import os
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing
from processes import describe_machine

RESULTS_DIR = Path(__file__).parent / "results"
BASE = ("run_dir=run", "data.path=none", "num_steps=9999", "device=cpu", "threads=1")
SHAPES = {
    "GPT-2 5M": (
        "model.kind=gpt2 model.vocab_size=4096 model.max_sequence_length=512 model.num_layers=4"
        " model.hidden_size=256 model.num_heads=4 model.ffn_size=1024 data.sequence_length=512"
        " micro_batch_size=4 global_batch_size=4"
    ),
    "Llama 6M": (
        "model.kind=llama model.vocab_size=4096 model.max_sequence_length=512 model.num_layers=4"
        " model.hidden_size=256 model.num_heads=4 model.num_kv_heads=2 model.ffn_size=704"
        " data.sequence_length=512 micro_batch_size=4 global_batch_size=4"
    ),
    "GPT-2 124M": "preset=gpt2-124m micro_batch_size=1 global_batch_size=1",
}
RUNS = (
    *(("GPT-2 5M", f"precision={one}") for one in ("fp32", "bf16")),
    *(("GPT-2 5M", f"precision=bf16 recompute.mode={mode}") for mode in ("selective", "full")),
    ("GPT-2 5M", "precision=bf16 recompute.mode=full recompute.every=2"),
    ("GPT-2 5M", "precision=bf16 global_batch_size=12"),
    ("GPT-2 5M", "precision=fp32 model.dropout=0.1 model.attention_dropout=0.1"),
    ("GPT-2 5M", "precision=bf16 micro_batch_size=16 global_batch_size=16"),
    ("GPT-2 5M", "precision=bf16 optimizer.kind=muon ema.decay=0.99"),
    ("GPT-2 5M", "precision=bf16 optimizer.state_dtype=bf16"),
    ("GPT-2 5M", "precision=bf16 data.mask_documents=true"),
    *(("Llama 6M", f"precision={one}") for one in ("fp32", "bf16")),
    *(("Llama 6M", f"precision=bf16 recompute.mode={mode}") for mode in ("selective", "full")),
    ("GPT-2 5M", "precision=bf16 global_batch_size=16 layout.dp=2"),
    *(("GPT-2 5M", f"precision=bf16 global_batch_size=16 layout.dp=2 layout.zero={n}") for n in (1, 2, 3)),
    ("GPT-2 5M", "precision=fp32 global_batch_size=16 layout.dp=2 layout.zero=3 recompute.mode=full"),
    *(("GPT-2 5M", f"precision={one} layout.dp=1 layout.tp=2") for one in ("fp32", "bf16")),
    ("GPT-2 5M", "precision=bf16 layout.dp=1 layout.tp=2 recompute.mode=selective"),
    ("Llama 6M", "precision=bf16 layout.dp=1 layout.tp=2"),
    ("GPT-2 5M", "precision=bf16 layout.dp=1 layout.cp=2"),
    *(
        (
            "GPT-2 5M",
            f"precision=bf16 global_batch_size=16 layout.dp=1 layout.pp=2 layout.pipeline.schedule={one}",
        )
        for one in ("1f1b", "gpipe", "interleaved")
    ),
    ("Llama 6M", "precision=bf16 global_batch_size=16 layout.dp=1 layout.pp=2 recompute.mode=full"),
    ("GPT-2 5M", "precision=bf16 global_batch_size=8 layout.dp=1 layout.tp=2 layout.pp=2"),
    ("GPT-2 124M", "precision=bf16"),
    ("GPT-2 124M", "precision=bf16 recompute.mode=full"),
)
PUBLISHED = (
    (
        "estimate of a tutorial for DeepSpeedExamples, batch 8, no recomputation, without logits",
        "micro_batch_size=8 global_batch_size=8",
        {"estimate": 26.6 * 1024},
    ),
    (
        "the same run, measured, full recomputation",
        "micro_batch_size=8 global_batch_size=8 recompute.mode=full",
        {"all": 14.75 * 1024},
    ),
    (
        "Megatron-LM of 2023, dp 4, micro-batch 1",
        "micro_batch_size=1 global_batch_size=4 layout.dp=4",
        {"all": 9652},
    ),
    (
        "the same, tp 4, micro-batch 1",
        "micro_batch_size=1 global_batch_size=4 layout.dp=1 layout.tp=4",
        {"all": 4236},
    ),
    (
        "the same, tp 4, micro-batch 2",
        "micro_batch_size=2 global_batch_size=8 layout.dp=1 layout.tp=4",
        {"all": 4236},
    ),
    (
        "the same, pp 4, micro-batch 1",
        "micro_batch_size=1 global_batch_size=4 layout.dp=1 layout.pp=4",
        {"all": 8680},
    ),
    (
        "the same, pp 4, micro-batch 2",
        "micro_batch_size=2 global_batch_size=8 layout.dp=1 layout.pp=4",
        {"all": 8680},
    ),
)
"""What was published, the run, and MiB of a GPU: of all, or as the source's own estimate counts."""


def config_of(settings: str) -> Any:
    from groundup.cli.run_config import presets
    from groundup.core.config import from_tree
    from groundup.core.config_sources import merged
    from groundup.train.config import TrainConfig

    return from_tree(TrainConfig, *merged(None, [*BASE, *settings.split()], presets()))


def planned(config: Any) -> list[Any]:
    from groundup.plan.rank_memory import memory_of_ranks
    from groundup.plan.run_step import planned_precision, step_of_run

    layout = config.layout.over(config.layout.num_ranks)
    return memory_of_ranks(step_of_run(config, layout, planned_precision(config, None)))


def measure(config: Any, folder: Path) -> list[int]:
    """The most bytes that were allocated in a step, of each rank."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = config.layout.num_ranks
    torch.multiprocessing.spawn(_rank, (ranks, port, config, folder), nprocs=ranks)
    return [int((folder / f"{rank}.txt").read_text()) for rank in range(ranks)]


def _rank(rank: int, ranks: int, port: int, config: Any, folder: Path) -> None:
    if ranks > 1:
        names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
        os.environ.update({name: str(value) for name, value in names.items()})
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as found:
        state = _train(config)
    events = found.profiler.kineto_results.events()
    (begin,) = (event.start_ns() for event in events if event.name() == "second step")
    changes = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
    held = most = 0
    for when, change in changes:
        held += change
        most = max(most, held if when >= begin else 0)
    if config.layout.dp * config.layout.cp > 1:  # what gloo has not given back of the step before
        most -= sum(change for when, change in changes if when < begin) - state
    (folder / f"{rank}.txt").write_text(str(most))


def _train(config: Any) -> int:
    """Trains two steps; returns the bytes of weights and optimizer state."""
    from groundup.launch.env import rank_from_env
    from groundup.models.init import initialise
    from groundup.parallel.device import choose_precision
    from groundup.parallel.dtensor import local, place
    from groundup.parallel.mesh import init_distributed
    from groundup.train.data_loader import Batch
    from groundup.train.setup import empty_state
    from groundup.train.step import train_step

    device = torch.device("cpu")
    mesh = init_distributed(config.layout, rank_from_env(), device)
    precision = choose_precision(config.precision, device)
    state = empty_state(config, mesh, precision)
    initialise(state.model, config.model, seed=0, place=place)
    shape = config.global_batch_size // mesh.dp, config.data.sequence_length
    tokens_BT = torch.randint(config.model.vocab_size, shape)
    documents_BT = None
    positions_BT = None
    if config.data.mask_documents:
        documents_BT = torch.zeros_like(tokens_BT)
        positions_BT = torch.arange(shape[1]).expand(shape)
    batch = Batch(
        tokens_BT=tokens_BT, targets_BT=tokens_BT, documents_BT=documents_BT, positions_BT=positions_BT
    )
    train_step(state, batch, config, precision, mesh)
    gc.collect()
    with torch.profiler.record_function("second step"):
        train_step(state, batch, config, precision, mesh)
    if mesh.size > 1:
        torch.distributed.destroy_process_group()
    held = [*state.model.parameters(), *state.optimizers.state().values()]
    held += state.average.values.values() if state.average else []
    return sum(local(one.detach()).numel() * one.element_size() for one in held)


def published() -> list[dict[str, Any]]:
    from groundup.plan.megatron_memory import megatron_memory
    from groundup.plan.run_step import step_of_run

    rows = []
    for what, settings, figures in PUBLISHED:
        config = config_of(f"preset=gpt2-345m precision=fp16 {settings}")
        ranks = megatron_memory(step_of_run(config, config.layout.over(config.layout.num_ranks), "fp16"))
        most = max(ranks, key=lambda one: one.total)
        total = most.total - ("estimate" in figures) * most.by_class["logits"]
        (figure,) = figures.values()
        rows.append({"what": what, "published": figure, "formula": total / 2**20})
    return rows


def main() -> None:
    rows = []
    wanted = sys.argv[1:]
    for shape, settings in RUNS:
        if wanted and not all(word in settings or word in shape for word in wanted):
            continue
        config = config_of(f"{SHAPES[shape]} {settings}")
        with tempfile.TemporaryDirectory() as folder:
            counts = measure(config, Path(folder))
        expected = planned(config)
        per_stage = len(counts) // len(expected)
        for stage, one in enumerate(expected):
            most = max(counts[stage * per_stage : (stage + 1) * per_stage])
            name = settings + (f", stage {stage}" if len(expected) > 1 else "")
            row = {"model": shape, "run": name, "planned": one.total, "measured": most, "at": one.moment}
            rows.append(row)
            size = f"{one.total / 1e6:.1f} MB, measured {most / 1e6:.1f} MB, {one.total / most:.3f}"
            print(f"{shape} {name}: {size}", file=sys.stderr)
    if not wanted:
        _write(rows, published())


def _write(rows: list[dict[str, Any]], of_megatron: list[dict[str, Any]]) -> None:
    machine = describe_machine("torch")
    (RESULTS_DIR / "plan.json").write_text(
        json.dumps({"machine": machine, "rows": rows, "published": of_megatron}, indent=1)
    )
    worst = max(abs(row["planned"] / row["measured"] - 1) for row in rows)
    lines = [
        "# What `groundup plan` expects, and what was there",
        "",
        "The most memory that a rank holds in a step, in MB: by the formulas of `src/groundup/plan`, and as"
        " PyTorch's allocator counted it in the second step of a run on random tokens, the larger of alike"
        f" ranks, on gloo ranks of a CPU. Largest deviation: {worst:.1%}. Left out under data"
        " parallelism: what gloo still held of the first step when the second began.",
        "",
        f"{machine.get('cpu', '')}, torch {machine['torch']}".strip(", "),
        "",
        "| model | run | planned | measured | ratio | highest at |",
        "|---|---|---|---|---|---|",
        *(
            f"| {row['model']} | {row['run']} | {row['planned'] / 1e6:.1f} | {row['measured'] / 1e6:.1f} |"
            f" {row['planned'] / row['measured']:.3f} | {row['at']} |"
            for row in rows
        ),
        "",
        "## Megatron-LM's own figures",
        "",
        "GPT-2 345M in fp16 with eager attention, MiB of a GPU as published, and by `groundup plan"
        " --formula megatron`, which leaves out the CUDA context, NCCL and what the allocator keeps for"
        " later. The micro-batch of the runs on four GPUs was not published: 1 is that of the run on one.",
        "",
        "| what | published | formula | ratio |",
        "|---|---|---|---|",
        *(
            f"| {row['what']} | {row['published']:,.0f} | {row['formula']:,.0f} |"
            f" {row['formula'] / row['published']:.2f} |"
            for row in of_megatron
        ),
    ]
    (RESULTS_DIR / "plan.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
