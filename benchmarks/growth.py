"""How cost grows: time and memory of training, token builds and checkpoints against what makes them larger.

Each part is a line of points, small ones first: the time of a step against parameters, sequence length and
ranks; measured memory against the plan's; a token build against its bytes and its documents; saving and
loading a checkpoint against its bytes. Beside each point stands the work that it should cost (operations,
bytes), and the cost of a unit of that work over the first point's: a line that bends upwards has rising ones.
Writes ``results/growth.json``, ``results/growth.md`` and ``results/growth.svg``; parts that are not run keep
their earlier results (``--only`` without a part draws them anew). Nothing else may run meanwhile; where that
cannot be, ``--busy`` counts the CPU's seconds on one thread instead, and the page says so.

    python benchmarks/growth.py --only parameters length --limit 120
"""

import argparse
import datetime
import functools
import json
import os
import shutil
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing
from checkpoints import files_of, forget, state_of
from growth_page import draw, render
from plan_memory import config_of, measure, planned
from processes import describe_machine, wait_for_idle_cpu

from groundup.checkpoint.native.contents import TrainingCounts
from groundup.checkpoint.native.folder import checkpoint_path
from groundup.checkpoint.native.load import TensorGroup, load_into
from groundup.checkpoint.native.pruning import Keep
from groundup.checkpoint.native.save import Snapshot, Writer
from groundup.launch.env import rank_from_env
from groundup.models.count import num_parameters, training_flops_per_token
from groundup.models.init import initialise
from groundup.parallel.device import choose_precision
from groundup.parallel.dtensor import place
from groundup.parallel.layout import Layout
from groundup.parallel.mesh import init_distributed
from groundup.tokens.tokenize import build_tokens
from groundup.tokens.tokenizer.train_bpe import train_tokenizer
from groundup.train.cpu import keep_freed_memory
from groundup.train.data_loader import Batch
from groundup.train.setup import empty_state
from groundup.train.step import train_step

RESULTS_DIR = Path(__file__).parent / "results"
WIDTHS = {"0.9M": (4, 128), "3M": (6, 192), "11M": (6, 384), "26M": (8, 512), "87M": (12, 768)}
LENGTHS = (1024, 2048, 4096, 8192, 16384)
RANKS = (1, 2, 4)
BUILD_MB = (10, 30, 100, 300, 1000)
DOCUMENT_CHARACTERS = (300_000, 30_000, 3_000, 300, 100)
DOCUMENTS_MB = 20
ROUNDS = 3
Point = dict[str, Any]
"""``x``, ``y`` in seconds or bytes, ``work`` that it should cost in any unit, and ``name``."""


def wall_clock() -> float:
    """Returns seconds that have passed."""
    return time.perf_counter()


def cpu_clock() -> float:
    """Returns seconds of the CPU that this process and those that it has waited for have had."""
    children = os.times()
    return time.process_time() + children.children_user + children.children_system


class Deadline:
    """Shares the time among parts, and says which point is still to be afforded.

    Attributes:
        busy: Whether others use the machine: then points are timed by the CPU's seconds, on one thread.
        clock: By which points are timed.
        grows: Seconds of the last point that grow with its size; what it took, unless the part says less.
    """

    def __init__(self, seconds: float, parts: int, *, busy: bool) -> None:
        self.busy = busy
        self.clock = cpu_clock if busy else wall_clock
        self._end, self._parts = time.monotonic() + seconds, parts
        self._part_end = 0.0
        self.grows = 0.0

    def begin_part(self) -> None:
        """Gives a part its share."""
        left = max(0.0, self._end - time.monotonic())
        self._part_end = time.monotonic() + left / self._parts
        self._parts -= 1

    def points(self, sizes: dict[Any, float]) -> Iterator[Any]:
        """Yields points in the order of their sizes while the next, by the last one's time, ends in time."""
        last_size = 0.0
        for point, size in sizes.items():
            needed = self.grows * size / last_size if last_size else 0.0
            if time.monotonic() + needed > self._part_end:
                print(f"  {point} left out: it would take {needed:.0f} s", file=sys.stderr)
                continue
            self.grows, began = 0.0, time.monotonic()
            yield point
            self.grows = self.grows or time.monotonic() - began
            last_size = size


def gpt(layers: int, width: int, more: str) -> str:
    """Settings of a GPT-2 shape with a vocabulary of 2,048."""
    return (
        f"model.kind=gpt2 model.vocab_size=2048 model.num_layers={layers} model.hidden_size={width}"
        f" model.num_heads={width // 64} model.ffn_size={4 * width} precision=auto"
        f" validation.interval=0 {more}"
    )


def of_length(length: int, rows: int) -> str:
    """Settings of one micro-batch."""
    return (
        f"model.max_sequence_length={length} data.sequence_length={length} micro_batch_size={rows}"
        f" global_batch_size={rows}"
    )


def stepper(settings: str) -> tuple[Callable[[], object], float]:
    """Prepares a run on random tokens: its step, and the operations of one."""
    config = config_of(settings)
    keep_freed_memory()
    device = torch.device("cpu")
    mesh = init_distributed(config.layout, rank_from_env(), device)
    precision = choose_precision(config.precision, device)
    state = empty_state(config, mesh, precision)
    initialise(state.model, config.model, seed=0, place=place)
    shape = config.global_batch_size // mesh.dp, config.data.sequence_length
    tokens_BT = torch.randint(config.model.vocab_size, shape)
    batch = Batch(tokens_BT=tokens_BT, targets_BT=tokens_BT)
    flops = training_flops_per_token(config.model, shape[1]) * tokens_BT.numel()
    return functools.partial(train_step, state, batch, config, precision, mesh), flops


def timed(work: Callable[[], object], clock: Callable[[], float]) -> float:
    """Returns the seconds that it takes."""
    began = clock()
    work()
    return clock() - began


def seconds_of(
    work: Callable[[], object], clock: Callable[[], float], *, least: int = 3, seconds: float = 4.0
) -> float:
    """Returns the median of at least three repetitions, after one that warms up."""
    work()
    found: list[float] = []
    while len(found) < least or (sum(found) < seconds and len(found) < 30):
        found.append(timed(work, clock))
    return statistics.median(found)


def of_parameters(deadline: Deadline) -> list[Point]:
    """The time of a step of 4 x 512 tokens against parameters."""
    torch.set_num_threads(1 if deadline.busy else os.cpu_count() or 1)
    points = []
    for name in deadline.points({name: layers * width**2 for name, (layers, width) in WIDTHS.items()}):
        settings = gpt(*WIDTHS[name], of_length(512, 4))
        step, flops = stepper(settings)
        seconds, parameters = seconds_of(step, deadline.clock), num_parameters(config_of(settings).model)
        deadline.grows = 5 * seconds
        points.append({"name": name, "x": parameters, "y": seconds, "work": flops})
    return points


def of_lengths(deadline: Deadline) -> list[Point]:
    """The time of a step of one row against its length."""
    torch.set_num_threads(1 if deadline.busy else os.cpu_count() or 1)
    points = []
    for length in deadline.points({length: length**1.5 for length in LENGTHS}):
        step, flops = stepper(gpt(6, 384, of_length(length, 1)))
        seconds = seconds_of(step, deadline.clock)
        deadline.grows = 5 * seconds
        points.append({"name": f"{length:,} tokens", "x": length, "y": seconds, "work": flops})
    return points


def of_ranks(deadline: Deadline) -> list[Point]:
    """The time of a data-parallel step against ranks of one thread each, 4 x 512 tokens a rank."""
    points, cores = [], os.cpu_count() or 1
    for ranks in deadline.points({ranks: ranks for ranks in RANKS}):
        with tempfile.TemporaryDirectory() as folder:
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
            torch.multiprocessing.spawn(_rank, (ranks, port, Path(folder), deadline.clock), nprocs=ranks)
            seconds = max(float((Path(folder) / f"{rank}.txt").read_text()) for rank in range(ranks))
        points.append(
            {
                "name": f"dp {ranks}",
                "x": ranks,
                "y": seconds,
                "work": 1.0 if deadline.busy else max(1.0, ranks / cores),
            }
        )
    return points


def _rank(rank: int, ranks: int, port: int, folder: Path, clock: Callable[[], float]) -> None:
    if ranks > 1:
        names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
        os.environ.update({name: str(value) for name, value in names.items()})
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    size = f"{of_length(512, 4)} layout.dp={ranks}".replace(
        "global_batch_size=4", f"global_batch_size={4 * ranks}"
    )
    step, _ = stepper(gpt(6, 384, size))
    (folder / f"{rank}.txt").write_text(
        str(seconds_of(step, clock, least=5, seconds=0))
    )  # alike on all ranks
    if ranks > 1:
        torch.distributed.destroy_process_group()


def of_memory(deadline: Deadline) -> list[Point]:
    """The most memory of a step, against what the plan expects of it: over sizes, and over lengths."""
    runs = {name: gpt(*WIDTHS[name], of_length(512, 4)) for name in ("0.9M", "11M", "26M")}
    runs |= {f"11M, {length:,} tokens": gpt(6, 384, of_length(length, 1)) for length in (1024, 4096)}
    points = []
    for name in deadline.points(dict.fromkeys(runs, 1.0)):
        config = config_of(runs[name])
        expected = max(one.total for one in planned(config))
        with tempfile.TemporaryDirectory() as folder:
            (most,) = measure(config, Path(folder))
        points.append({"name": name, "x": expected, "y": most, "work": expected})
    return sorted(points, key=lambda point: point["x"])


def of_builds(deadline: Deadline) -> list[Point]:
    """The time of a token build against its size, of documents of 3,000 characters."""
    return _builds(deadline, {f"{size} MB": (size, 3000) for size in BUILD_MB}, lambda size, _: size)


def of_documents(deadline: Deadline) -> list[Point]:
    """The time of a token build of 20 MB against the number of its documents."""
    sizes = {f"{length:,} characters each": (DOCUMENTS_MB, length) for length in DOCUMENT_CHARACTERS}
    return _builds(deadline, sizes, lambda size, length: size * 1e6 / length)


def _builds(
    deadline: Deadline, sizes: dict[str, tuple[int, int]], x_of: Callable[[int, int], float]
) -> list[Point]:
    library = sorted(Path(json.__file__).parent.parent.glob("*.py"))
    text = "\n".join(path.read_text("utf-8") for path in library)
    tokenizer = train_tokenizer([text[:300_000]], vocab_size=2048)
    points = []
    for name in deadline.points({name: size for name, (size, _) in sizes.items()}):
        size, length = sizes[name]
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder) / "text.jsonl"
            _write_documents(source, text, size * 1_000_000, length)
            began = deadline.clock()
            report = build_tokens([source], Path(folder) / "data", tokenizer)
            seconds = deadline.clock() - began
        documents = sum(counts.documents for counts in report.counts.values())
        point = {"name": name, "x": x_of(size, length), "y": seconds, "work": size, "documents": documents}
        points.append(point)
    return points


def _write_documents(path: Path, text: str, size: int, length: int) -> None:
    """Writes JSON lines of so many bytes, documents that begin at ever other places of a text."""
    with path.open("w", encoding="utf-8") as file:
        place, written = 0, 0
        doubled = text + text[:length]
        while written < size:
            written += file.write(json.dumps({"text": doubled[place : place + length]}) + "\n")
            place = (place + length + 7) % len(text)


def of_checkpoints(deadline: Deadline) -> list[Point]:
    """The time of saving (fsync and checksums included) and of loading weights and Adam's moments."""
    tokenizer = train_tokenizer(["a text"], vocab_size=257)
    mesh = init_distributed(Layout(), None, torch.device("cpu"))
    points = []
    for name in deadline.points({name: layers * width**2 for name, (layers, width) in WIDTHS.items()}):
        model = config_of(gpt(*WIDTHS[name], of_length(512, 4))).model
        groups = state_of(model)
        size = sum(one.numel() * one.element_size() for group in groups.values() for one in group.values())
        with tempfile.TemporaryDirectory() as folder:
            writer = Writer(
                Path(folder),
                model=model,
                tokenizer=tokenizer,
                mesh=mesh,
                asynchronous=False,
                keep=Keep(last=1),
            )
            snapshot = Snapshot(
                groups=groups, random={}, counts=TrainingCounts(step=0, samples=0), config={}, data=""
            )
            path = checkpoint_path(Path(folder), 0)
            saves, loads = [], []
            for number in range(ROUNDS + 1):
                shutil.rmtree(path, ignore_errors=True)
                os.sync()
                saves.append(timed(functools.partial(writer.save, 0, snapshot), deadline.clock))
                for file in files_of(path):
                    forget(file)
                loads.append(timed(functools.partial(_load, path, groups, model), deadline.clock))
                if number == 0:  # warms up
                    saves, loads = [], []
        save, read = statistics.median(saves), statistics.median(loads)
        points.append({"name": name, "x": size, "y": save + read, "work": size, "save": save, "load": read})
    return points


def _load(path: Path, groups: dict[str, Any], model: Any) -> None:
    for group, tensors in groups.items():
        load_into(TensorGroup(path, group), tensors.items(), model)


PARTS: dict[str, Callable[[Deadline], list[Point]]] = {
    "parameters": of_parameters,
    "ranks": of_ranks,
    "checkpoint": of_checkpoints,
    "documents": of_documents,
    "memory": of_memory,
    "length": of_lengths,
    "build": of_builds,
}


def main() -> None:
    """Measures the parts, and writes them beside those that were measured before."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="*", choices=PARTS, default=list(PARTS), metavar="PART")
    parser.add_argument(
        "--limit", type=float, default=480, help="seconds; points that would go beyond are left out"
    )
    parser.add_argument("--busy", action="store_true", help="do not wait for an idle CPU, count its seconds")
    parser.add_argument("--results-dir", type=Path, default=RESULTS_DIR)
    arguments = parser.parse_args()
    path = arguments.results_dir / "growth.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    deadline = Deadline(arguments.limit, len(arguments.only), busy=arguments.busy)
    for name in arguments.only:
        if not arguments.busy:
            wait_for_idle_cpu()
        print(f"{name}: {PARTS[name].__doc__}", file=sys.stderr)
        deadline.begin_part()
        points = PARTS[name](deadline)
        print(*(f"  {point['name']}: {point['y']:.4g}" for point in points), sep="\n", file=sys.stderr)
        found[name] = {
            "what": PARTS[name].__doc__,
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "busy": arguments.busy,
            "machine": describe_machine("torch"),
            "points": points,
        }
        _write(found, arguments.results_dir)
    _write(found, arguments.results_dir)


def _write(found: dict[str, Any], folder: Path) -> None:
    """Writes the results after each part: a run that is stopped loses one."""
    found = {part: found[part] for part in PARTS if part in found}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "growth.json").write_text(json.dumps(found, indent=1) + "\n")
    (folder / "growth.md").write_text(render(found))
    draw(found, folder / "growth.svg")


if __name__ == "__main__":
    main()
