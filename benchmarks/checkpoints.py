"""Checkpoints: GB/s of saving and loading against torch.save and safetensors; what saving costs the loop.

All save the same tensors (GPT-2 124M in fp32 with Adam's moments, unless told otherwise) on the same disk in
interleaved rounds, and all are asked to have them on the disk (fsync) before the clock stops; groundup also
computes its checksums in that time. Loading brings them to tensors that exist, as a resumed run has them.
Writes ``results/checkpoints.json`` and ``results/checkpoints.md``; a run waits until the CPU is idle.

    python benchmarks/checkpoints.py --folder /a/folder/on/the/disk
"""

import argparse
import datetime
import functools
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import torch
from processes import describe_machine, touch_memory, wait_for_idle_cpu
from safetensors.torch import load_file, save_file

from groundup.checkpoint.native.contents import TrainingCounts
from groundup.checkpoint.native.folder import checkpoint_path, find_damage
from groundup.checkpoint.native.load import TensorGroup, load_into
from groundup.checkpoint.native.pruning import Keep
from groundup.checkpoint.native.save import Snapshot, Writer
from groundup.core.config import resolve
from groundup.core.files import fsync_file
from groundup.models import ModelConfig, build_model
from groundup.models.gpt2 import GPT2Config
from groundup.parallel.layout import Layout
from groundup.parallel.mesh import init_distributed
from groundup.tokens.tokenize import build_tokens
from groundup.tokens.tokenizer.train_bpe import train_tokenizer
from groundup.train.config import TrainConfig
from groundup.train.run_data import read_batch
from groundup.train.setup import build_run
from groundup.train.step import train_step

RESULTS_DIR = Path(__file__).parent / "results"
_MAPPED = "torch.load(mmap=True)"
Groups = dict[str, dict[str, torch.Tensor]]


def state_of(config: ModelConfig) -> Groups:
    """Random weights and Adam's moments."""
    weights = {
        name: torch.randn(parameter.shape)
        for name, parameter in build_model(config, device="meta").named_parameters()
    }
    moments = {
        f"{name}/{moment}": torch.randn_like(weight)
        for name, weight in weights.items()
        for moment in ("exp_avg", "exp_avg_sq")
    }
    return {"model": weights, "optimizer": moments}


def measure_files(
    config: ModelConfig, folder: Path, rounds: int, tokenizer: Any
) -> dict[str, dict[str, list[float]]]:
    """Contender -> what -> seconds of each round."""
    groups = state_of(config)
    flat = {name: tensor for tensors in groups.values() for name, tensor in tensors.items()}
    size = sum(tensor.numel() * tensor.element_size() for tensor in flat.values())
    mesh = init_distributed(Layout(), None, torch.device("cpu"))
    writer = Writer(
        folder, model=config, tokenizer=tokenizer, mesh=mesh, asynchronous=False, keep=Keep(last=1)
    )
    snapshot = Snapshot(
        groups=groups, random={}, counts=TrainingCounts(step=0, samples=0), config={}, data=""
    )
    path = folder / "other"
    checkpoint = checkpoint_path(folder, 0)

    def fsynced(save: Callable[[], None]) -> None:
        save()
        fsync_file(path)

    def load_ours() -> None:
        for group, tensors in groups.items():
            load_into(TensorGroup(checkpoint, group), tensors.items(), config)

    def copy_from(read: Callable[[], dict[str, torch.Tensor]]) -> None:
        for name, tensor in read().items():
            flat[name].copy_(tensor)

    def clear() -> None:
        shutil.rmtree(checkpoint, ignore_errors=True)
        path.unlink(missing_ok=True)
        os.sync()

    def save_by_torch() -> None:
        fsynced(lambda: torch.save(flat, path))

    contenders: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
        "groundup": (lambda: writer.save(0, snapshot), load_ours),
        "torch.save": (
            save_by_torch,
            lambda: copy_from(functools.partial(torch.load, path, weights_only=True)),
        ),
        _MAPPED: (
            save_by_torch,
            lambda: copy_from(functools.partial(torch.load, path, weights_only=True, mmap=True)),
        ),
        "safetensors": (
            lambda: fsynced(lambda: save_file(flat, path)),
            lambda: copy_from(functools.partial(load_file, path)),
        ),
    }
    seconds: dict[str, dict[str, list[float]]] = {name: {} for name in contenders}

    def record(name: str, what: str, work: Callable[[], Any], number: int) -> None:
        touch_memory(2 * size)
        took = timed(work)
        if number:  # the first round warms up
            seconds[name].setdefault(what, []).append(took)

    names = list(contenders)

    def in_turn(number: int) -> list[str]:
        """Each comes first as often as the others: it bears what the one before has left."""
        first = number % len(names)
        return names[first:] + names[:first]

    for number in range(2 * rounds + 1):  # saves vary the most
        for name in in_turn(number):
            if name != _MAPPED:  # is saved as the other
                clear()
                record(name, "save", contenders[name][0], number)
    for number in range(rounds + 1):
        for name in in_turn(number):
            save, load = contenders[name]
            clear()
            save()
            record(name, "load from the page cache", load, number)
            if name == "groundup":
                record(name, "verify from the page cache", lambda: find_damage(checkpoint), number)
            for file in files_of(folder):
                forget(file)
            record(name, "load from the disk", load, number)
    return {
        name: {what: [size / took / 1e9 for took in found] for what, found in entries.items()}
        for name, entries in seconds.items()
    }


def files_of(folder: Path) -> Iterator[Path]:
    """All files below a folder."""
    return (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def forget(path: Path) -> None:
    """Drops a file that is on the disk from the page cache."""
    descriptor = os.open(path, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def timed(work: Callable[[], Any]) -> float:
    """Seconds that it takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def measure_stall(data: Path, folder: Path, *, steps: int, every: int, rounds: int) -> dict[str, Any]:
    """What a save costs the loop, in seconds: called in it, and in all (steps are slower meanwhile)."""
    found: dict[str, dict[str, list[float]]] = {}
    size_bytes = 0
    for _ in range(rounds):
        for name in ("none", "synchronous", "asynchronous"):
            run_dir = folder / name
            config = resolve(
                TrainConfig,
                overrides=(
                    *(
                        f"run_dir={run_dir}",
                        f"data.path={data}",
                        "data.split=100,0,0",
                        "data.sequence_length=256",
                    ),
                    *("model.kind=gpt2", "model.vocab_size=300", "model.max_sequence_length=256"),
                    *(
                        "model.num_layers=6",
                        "model.hidden_size=512",
                        "model.num_heads=8",
                        "model.ffn_size=2048",
                    ),
                    *(f"num_steps={steps + 2}", "micro_batch_size=4", "global_batch_size=4"),
                    *(
                        "validation.interval=0",
                        f"checkpoint.asynchronous={str(name == 'asynchronous').lower()}",
                    ),
                ),
            ).value
            run = build_run(config)
            in_loop = 0.0
            batch = read_batch(run.data.train.samples, 0, 4, vocab_size=300)
            for _ in range(2):
                train_step(run.state, batch, config, run.precision, run.mesh)
            began = time.perf_counter()
            for step in range(1, steps + 1):
                train_step(run.state, batch, config, run.precision, run.mesh)
                if name != "none" and step % every == 0 and step < steps:
                    in_loop += timed(functools.partial(run.save, wait=False))
            seconds = time.perf_counter() - began
            run.writer.finish()
            num_saves = (steps - 1) // every
            entry = found.setdefault(name, {"seconds": [], "in_loop": []})
            entry["seconds"].append(seconds)
            entry["in_loop"].append(in_loop / num_saves)
            size_bytes = (
                sum(path.stat().st_size for path in files_of(run_dir / "checkpoints" / "latest"))
                if num_saves and name != "none"
                else size_bytes
            )
            shutil.rmtree(run_dir, ignore_errors=True)
    plain = statistics.median(found["none"]["seconds"])
    num_saves = (steps - 1) // every
    return {
        "state_gb": size_bytes / 1e9,
        "step_seconds": plain / steps,
        "num_saves": num_saves,
        **{
            name: {
                "in_loop_seconds": statistics.median(found[name]["in_loop"]),
                "cost_seconds": (statistics.median(found[name]["seconds"]) - plain) / num_saves,
            }
            for name in ("synchronous", "asynchronous")
        },
    }


def make_data(folder: Path) -> tuple[Path, Any]:
    """A dataset of made-up words, and its tokenizer of 300 ids."""
    texts = [" ".join(f"word{(i * j) % 97}" for j in range(400)) for i in range(1, 200)]
    source = folder / "documents.jsonl"
    source.write_bytes(b"\n".join(orjson.dumps({"text": text}) for text in texts))
    tokenizer = train_tokenizer(iter(texts), vocab_size=300)
    build_tokens([source], folder / "data", tokenizer, workers=1)
    return folder / "data_text_document", tokenizer


def as_markdown(results: dict[str, Any]) -> str:
    """The results for people to read."""
    lines = ["# Checkpoints", "", f"{results['date']}; {results['size_gb']:.2f} GB of fp32 tensors.", ""]
    lines += [f"- {key}: {value}" for key, value in results["machine"].items()]
    lines += [
        "",
        "## GB/s",
        "",
        "Medians of interleaved rounds; every save ends with fsync, ours has checksums.",
    ]
    whats = list(results["files"]["groundup"])
    lines += ["", f"| | {' | '.join(whats)} |", f"|---|{'---|' * len(whats)}"]
    for name, entries in results["files"].items():
        cells = [f"{statistics.median(entries[what]):.2f}" if what in entries else "" for what in whats]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    for what in ("save", "load from the page cache", "load from the disk"):
        ours = statistics.median(results["files"]["groundup"][what])
        others = (e[what] for n, e in results["files"].items() if n != "groundup" and what in e)
        best = max(map(statistics.median, others))
        lines += ["", f"{what}: {ours / best:.2f}x of the fastest other."]
    stall = results["stall"]
    lines += ["", "## The loop", ""]
    lines.append(
        f"A state of {stall['state_gb']:.2f} GB, steps of {stall['step_seconds']:.2f} s on the CPU, whose"
        f" cores training and writing share; {stall['num_saves']} saves in each run."
    )
    lines += ["", "| | in the loop, s | in all, s | of a run that saves every 60 s |", "|---|---|---|---|"]
    for name in ("synchronous", "asynchronous"):
        entry = stall[name]
        share = f"{entry['cost_seconds'] / 60:.1%}"
        lines.append(f"| {name} | {entry['in_loop_seconds']:.3f} | {entry['cost_seconds']:.3f} | {share} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measures and writes the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--folder", type=Path, default=Path(tempfile.gettempdir()), help="on the disk to measure"
    )
    parser.add_argument("--results", type=Path, default=RESULTS_DIR)
    parser.add_argument("--layers", type=int, default=12, help="of GPT-2's")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=40, help="of each run for the stall")
    parser.add_argument("--no-wait", action="store_true", help="measure although other processes are busy")
    arguments = parser.parse_args()
    if not arguments.no_wait:
        wait_for_idle_cpu()
    config = GPT2Config(
        vocab_size=50257,
        max_sequence_length=1024,
        num_layers=arguments.layers,
        hidden_size=768,
        num_heads=12,
        ffn_size=3072,
    )
    arguments.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as scratch:
        folder = Path(scratch)
        data, tokenizer = make_data(folder)
        (folder / "files").mkdir()
        results = {
            "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
            "machine": describe_machine("torch", "safetensors"),
            "size_gb": sum(t.numel() * 4 for tensors in state_of(config).values() for t in tensors.values())
            / 1e9,
            "files": measure_files(config, folder / "files", arguments.rounds, tokenizer),
            "stall": measure_stall(
                data,
                folder,
                steps=arguments.steps,
                every=arguments.steps // 4,
                rounds=max(1, arguments.rounds // 2),
            ),
        }
    arguments.results.mkdir(parents=True, exist_ok=True)
    (arguments.results / "checkpoints.json").write_text(json.dumps(results, indent=2) + "\n")
    (arguments.results / "checkpoints.md").write_text(as_markdown(results))
    print(as_markdown(results))


if __name__ == "__main__":
    main()
