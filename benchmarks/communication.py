"""Bytes that a step sends under each layout, counted, against the formulas of the papers.

Counts every collective of one training step on gloo ranks of this machine, and what a ring sends for it per
rank: an all-reduce of S bytes over n ranks 2 S (n - 1) / n, a gather or scatter of S bytes in all
S (n - 1) / n, a message its size. Writes ``results/communication.json`` and ``results/communication.md``.

    python benchmarks/communication.py

The formulas are those of ``src/groundup/plan/traffic.py``.
"""

import dataclasses
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
from torch.utils._python_dispatch import TorchDispatchMode

RESULTS_DIR = Path(__file__).parent / "results"
LAYERS, WIDTH, LENGTH, VOCABULARY = 4, 64, 64, 384
MICRO_BATCH, MICRO_BATCHES = 2, 4
LAYOUTS = ("dp2", "dp2-zero1", "dp2-zero2", "dp2-zero3", "tp2", "pp2", "cp2", "tp4", "pp4", "tp2-pp2")
TOGETHER = (
    *(f"dp2-pp2-zero{stage}" for stage in range(4)),
    *("dp2-tp2-zero3", "dp2-cp2-zero3", "cp2-tp2", "dp4-zero3", "pp2-interleaved"),
)
IN_BF16 = ("dp2", "dp2-zero3")  # also with gradients added up in bf16
RECOMPUTED = ("tp2", "cp2", "dp2-zero3", "tp2-pp2")  # also with layers that recompute
SHARDED_BY_TWO = ("dp4-zero1", "dp4-zero3")  # and replicated twice


@dataclasses.dataclass(frozen=True, kw_only=True)
class Traffic:
    """Attributes: ``sent`` is the mean over ranks of a step's bytes; ``formula`` what the papers say."""

    layout: str
    calls: int
    sent: float
    formula: float


class Count(TorchDispatchMode):
    """Adds up what the collectives within send."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.sent = 0.0

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        if function.namespace in ("c10d", "_c10d_functional"):
            given = function._schema.arguments
            by_name = {argument.name: value for argument, value in zip(given, arguments, strict=False)}
            self._add(function.__name__.partition(".")[0], arguments, {**by_name, **(named or {})})
        return function(*arguments, **(named or {}))

    def _add(self, name: str, arguments: Any, by_name: dict[str, Any]) -> None:
        if name in ("wait_tensor", "_wrap_tensor_autograd", "barrier", "recv_"):
            return
        part = _bytes(arguments[1] if name in ("allgather_", "_allgather_base_") else arguments[0])
        size = _group_size(by_name)
        whole = ("allgather_", "_allgather_base_", "all_gather_into_tensor")
        if name in (*whole, "reduce_scatter_", "_reduce_scatter_base_"):
            self.sent += part * (size - 1)
        elif name == "reduce_scatter_tensor":
            self.sent += part * (size - 1) / size
        elif name in ("allreduce_", "all_reduce"):
            self.sent += 2 * part * (size - 1) / size
        elif name == "send":
            self.sent += part
        else:
            raise NotImplementedError(f"{name} is not counted yet")
        self.calls += 1


def _bytes(tensors: Any) -> float:
    """Of a tensor or a list of some."""
    if isinstance(tensors, torch.Tensor):
        return float(tensors.numel() * tensors.element_size())
    return sum(_bytes(tensor) for tensor in tensors)


def _group_size(arguments: dict[str, Any]) -> int:
    from torch.distributed.distributed_c10d import _resolve_process_group

    group = arguments.get("process_group", arguments.get("group_name"))
    if isinstance(group, torch.ScriptObject):
        group = torch.distributed.ProcessGroup.unbox(group)
    return int((_resolve_process_group(group) if isinstance(group, str) else group).size())


def expected(layout: Any, model: Any, recompute: Any) -> float:
    """Bytes a rank sends in a step, by the formulas of ``groundup plan``."""
    from groundup.plan.layer_memory import MicroBatch
    from groundup.plan.rank_memory import Step
    from groundup.plan.traffic import bytes_sent
    from groundup.train.optim import Sgd

    batch = MicroBatch(rows=MICRO_BATCH, length=LENGTH, tp=layout.tp, cp=layout.cp, itemsize=4, on_gpu=False)
    step = Step(
        model=model,
        optimizer=Sgd(),
        layout=layout.over(layout.num_ranks),
        recompute=recompute,
        batch=batch,
        num_micro_batches=MICRO_BATCHES // layout.dp,
    )
    return sum(bytes_sent(step).values())


def main() -> None:
    """Counts under each layout and writes the results."""
    from groundup.models.gpt2 import GPT2Config
    from groundup.parallel.activation_checkpointing import Recompute
    from groundup.verify.parallel import parse_layout

    model = GPT2Config(
        vocab_size=VOCABULARY,
        max_sequence_length=LENGTH,
        num_layers=LAYERS,
        hidden_size=WIDTH,
        num_heads=4,
        ffn_size=4 * WIDTH,
    )
    found = []
    layouts = {name: (parse_layout(name), Recompute()) for name in (*LAYOUTS, *TOGETHER)}
    for name in IN_BF16:
        layouts[f"{name}, bf16"] = dataclasses.replace(parse_layout(name), reduce_dtype="bf16"), Recompute()
    for name in SHARDED_BY_TWO:
        layouts[f"{name}, shard 2"] = dataclasses.replace(parse_layout(name), shard=2), Recompute()
    for name in RECOMPUTED:
        layouts[f"{name}, selective"] = parse_layout(name), Recompute(mode="selective")
        layouts[f"{name}, full"] = parse_layout(name), Recompute(mode="full")
    for name, (layout, recompute) in layouts.items():
        with tempfile.TemporaryDirectory() as folder:
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
            ranks = layout.num_ranks
            torch.multiprocessing.spawn(
                _rank, (ranks, port, layout, model, recompute, Path(folder)), nprocs=ranks
            )
            counts = [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(ranks)]
        sent = sum(count["sent"] for count in counts) / ranks
        calls = max(count["calls"] for count in counts)
        traffic = Traffic(layout=name, calls=calls, sent=sent, formula=expected(layout, model, recompute))
        print(
            f"{name:25} {traffic.sent / 1e3:10.1f} kB, formula {traffic.formula / 1e3:10.1f} kB,"
            f" {traffic.sent / traffic.formula:.3f}x, {calls} calls",
            file=sys.stderr,
        )
        found.append(traffic)
    _write(found)


def _rank(rank: int, ranks: int, port: int, layout: Any, model: Any, recompute: Any, folder: Path) -> None:
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
    os.environ.update({name: str(value) for name, value in names.items()})
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    from groundup.launch.env import rank_from_env
    from groundup.models import build_model
    from groundup.models.init import initialise
    from groundup.parallel.apply import parallelize
    from groundup.parallel.device import Precision
    from groundup.parallel.mesh import init_distributed
    from groundup.tokens.sampling.data_config import DataConfig
    from groundup.train.config import TrainConfig
    from groundup.train.data_loader import Batch, share_of_tokens
    from groundup.train.forward_backward import add_gradients
    from groundup.train.optim import Sgd, build_optimizers
    from groundup.train.state import TrainState

    config = TrainConfig(
        run_dir=folder,
        model=model,
        data=DataConfig(path=folder, sequence_length=LENGTH),
        num_steps=2,
        micro_batch_size=MICRO_BATCH,
        global_batch_size=MICRO_BATCH * MICRO_BATCHES,
        layout=layout,
    )
    device = torch.device("cpu")
    mesh = init_distributed(layout, rank_from_env(), device)
    precision = Precision("fp32", device)
    whole = build_model(model).train()
    initialise(whole, model, seed=0)
    pipeline = parallelize(whole, mesh, recompute=recompute, compile=False, precision=precision.autocast)
    optimizers = build_optimizers(whole, Sgd())
    state = TrainState(model=whole, optimizers=optimizers, scaler=None, pipeline=pipeline)
    rows = config.global_batch_size // layout.dp
    tokens_BT = torch.randint(VOCABULARY, (rows, LENGTH), generator=torch.Generator().manual_seed(0))
    batch = share_of_tokens(Batch(tokens_BT=tokens_BT, targets_BT=tokens_BT), mesh.cp_rank, layout.cp)
    for _ in range(2):  # the first step also agrees on shapes
        with Count() as count:
            add_gradients(state, batch, config, precision, mesh, scale=1.0)
        state.optimizers.step()
        state.optimizers.zero_grad()
    (folder / f"{rank}.json").write_text(json.dumps({"sent": count.sent, "calls": count.calls}))
    mesh.barrier()
    torch.distributed.destroy_process_group()


def _write(found: list[Traffic]) -> None:
    machine = describe_machine("torch")
    RESULTS_DIR.mkdir(exist_ok=True)
    rows = [dataclasses.asdict(one) for one in found]
    (RESULTS_DIR / "communication.json").write_text(json.dumps({"machine": machine, "rows": rows}, indent=1))
    lines = [
        "# Bytes sent in a step",
        "",
        f"GPT-2 of {LAYERS} layers, width {WIDTH}, vocabulary {VOCABULARY} (tied), {MICRO_BATCHES}"
        f" micro-batches of {MICRO_BATCH} x {LENGTH} tokens, fp32, gloo; what a ring sends per rank, whose"
        " formulas are in `src/groundup/plan/traffic.py`. Sums of losses and the softmax over a divided"
        " vocabulary are the rest.",
        "",
        f"torch {machine['torch']}",
        "",
        "| layout | collectives a step | kB a rank | formula, kB | ratio |",
        "|---|---|---|---|---|",
        *(
            f"| {one.layout} | {one.calls} | {one.sent / 1e3:.1f} | {one.formula / 1e3:.1f} |"
            f" {one.sent / one.formula:.3f} |"
            for one in found
        ),
    ]
    (RESULTS_DIR / "communication.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
