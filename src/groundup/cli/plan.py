"""``groundup plan``: what a run will need, before it takes a GPU."""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import pydantic

from groundup.cli.options import ConfigFile, Override, Switch
from groundup.cli.printing import new_table, print_json
from groundup.cli.run_config import run_config
from groundup.core.errors import ConfigError, DataError, MachineError
from groundup.core.progress import human_count

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from groundup.plan.devices import Devices
    from groundup.plan.fitting import Change
    from groundup.plan.rank_memory import RankMemory
    from groundup.plan.run_plan import Plan
    from groundup.train.config import TrainConfig

Gpus = Annotated[int, pydantic.Field(ge=0)]
_GIB = 1 << 30
_SHOWN_RANKS = 8


def plan(
    config: ConfigFile = None,
    *overrides: Override,
    gpu: str = "",
    gpus: Gpus = 0,
    memory: float = 0.0,
    mfu: float = 0.0,
    tokens_per_second: float = 0.0,
    per_machine: int = 8,
    link: float = 0.0,
    network: float = 50.0,
    link_latency: float = 25.0,
    network_latency: float = 12.0,
    data: bool = True,
    formula: Literal["groundup", "megatron"] = "groundup",
    search: Switch = False,
    scale: str = "",
    grow_batch: Switch = False,
    top: int = 10,
    json: Switch = False,
) -> None:
    """Show what a run will need, before it takes a GPU: memory of each rank, time, data, disk, energy.

    Takes what `groundup train` takes, starts nothing, and needs a second or two. A run that could not start,
    or whose memory does not fit, is refused (exit code 1) with the smallest changes that mend it.

    For example:

        groundup plan run.yaml --gpu H100

        groundup plan preset=gpt2-345m run_dir=runs/a data.path=data/web_text_document layout.dp=4 --gpu A800

        groundup plan run.yaml --search --gpus 16 --gpu A100 --memory 40

        groundup plan run.yaml --scale 8,64,512,4096 --gpu H100 --search --no-data

    Args:
        gpu: Device to plan for, as H100 or "RTX 4090"; a wrong name lists those that are known.
        gpus: Number of devices; 0 for as many as the layout names.
        memory: Of each device in GiB, if not the device's own.
        mfu: Share of the device's peak that the model's operations reach, instead of the model of time.
        tokens_per_second: Of the whole run, as measured, instead of either.
        per_machine: Devices of a machine.
        link: GB/s between devices of a machine, in one direction, if not the device's own.
        network: GB/s between machines for each device, in one direction.
        link_latency: Microseconds that a collective within a machine takes besides its bytes.
        network_latency: Microseconds besides for each further machine that it spans.
        data: Whether to read the data's headers; --no-data plans a run whose data is still to be made.
        formula: Whose memory: ours, or what Megatron-LM of 2019 to 2023 took with eager attention in fp16.
        search: List the fastest layouts that fit --gpus devices; the layout of the config does not matter.
        scale: Numbers of devices, as 8,64,512: a table of the step's time, idle time, waiting and MFU on
            each, under the config's layout with as many replicas as there are devices for; with --search
            under the fastest layout.
        grow_batch: With --scale, let the batch grow with the devices, from the config's at the least of them.
        top: Number of layouts to list.
        json: Print everything as JSON, for machines.
    """
    devices = _devices(gpu, gpus, memory, mfu, tokens_per_second, per_machine)
    devices = _linked(devices, link, network, link_latency, network_latency)
    run = run_config(config, overrides).value
    if scale or grow_batch:
        from groundup.cli.plan_scale import show_scaling

        show_scaling(run, devices, scale, searches=search, grows=grow_batch, as_json=json)
        return
    if search:
        from groundup.cli.plan_search import list_layouts

        list_layouts(run, devices, top=top, as_json=json)
        return
    from groundup.plan.run_plan import plan_run

    try:
        found = plan_run(run, devices, reads_data=data, as_megatron=formula == "megatron")
    except DataError as error:
        raise DataError(
            error.what, where=error.where, fix=f"{error.fix} To plan without the data: --no-data.".strip()
        ) from None
    if json:
        print_json(found.to_dict())
    else:
        _print_plan(found, run, devices)
    if found.problems:
        raise ConfigError(" ".join(found.problems), where="plan")
    if not found.fits:
        raise _does_not_fit(found)
    if not json:
        print("The plan can be carried out.")


def _devices(
    gpu: str, gpus: int, memory: float, mfu: float, tokens_per_second: float, per_machine: int
) -> "Devices":
    from groundup.plan.device_table import accelerator
    from groundup.plan.devices import Devices

    if not 0 <= mfu <= 1:
        raise ConfigError(f"{mfu:g} is no share of the peak", where="--mfu", fix="Give a number from 0 to 1.")
    for name, value in (("--memory", memory), ("--tokens-per-second", tokens_per_second)):
        if value < 0:
            raise ConfigError(
                f"{value:g} is less than nothing", where=name, fix="Leave it out, or give a number."
            )
    if per_machine < 1:
        raise ConfigError("a machine has at least one device", where="--per-machine")
    return Devices(
        kind=accelerator(gpu) if gpu else None,
        memory_gib=memory,
        ranks=gpus,
        mfu=mfu,
        tokens_per_second=tokens_per_second,
        per_machine=per_machine,
    )


def _linked(
    devices: "Devices", link: float, network: float, link_latency: float, network_latency: float
) -> "Devices":
    """Returns the devices with the links as given; latencies in microseconds."""
    for name, value in (
        ("--link", link),
        ("--link-latency", link_latency),
        ("--network-latency", network_latency),
    ):
        if value < 0:
            raise ConfigError(
                f"{value:g} is less than nothing", where=name, fix="Leave it out, or give a number."
            )
    if network <= 0:
        raise ConfigError(
            f"{network:g} GB/s send nothing", where="--network", fix="Give GB/s for each device."
        )
    return dataclasses.replace(
        devices,
        link_gb=link,
        network_gb=network,
        link_latency=link_latency * 1e-6,
        network_latency=network_latency * 1e-6,
    )


def _does_not_fit(found: "Plan") -> MachineError:
    most = max(found.memory, key=lambda one: one.total)
    ways = [_words(change) for change in found.changes[:3]]
    who = f"rank {most.rank} of the pipeline" if len(found.memory) > 1 else "each rank"
    return MachineError(
        f"{who} needs {most.total / _GIB:.2f} GiB, tensors may take {found.capacity / _GIB:.2f} GiB",
        where="memory",
        fix=f"Set {', or '.join(ways)}."
        if ways
        else "No change that is known here makes it fit: take more devices.",
    )


def _words(change: "Change") -> str:
    from groundup.plan.fitting import as_overrides

    settings = " ".join(as_overrides(change.settings))
    return f"{settings} ({change.total / _GIB:.2f} GiB on {_devices_in_words(change.ranks)}; {change.costs})"


def _devices_in_words(number: int) -> str:
    return "one device" if number == 1 else f"{number} devices"


def _print_plan(found: "Plan", run: "TrainConfig", devices: "Devices") -> None:
    from rich.console import Console

    console = Console(width=max(100, Console().width), highlight=False)
    sections = (
        ("Parameters", _parameters(found)),
        (f"Memory in GiB, {found.layout}, {found.precision}", _memory(found.memory)),
    )
    for title, table in sections:
        console.print(f"[bold]{title}[/bold]")
        console.print(table)
    modes = ", ".join(f"{mode} {size / _GIB:.2f}" for mode, size in found.by_mode.items())
    console.print(
        f"by recompute.mode, in GiB: {modes}" if found.by_mode else "", end="\n" if found.by_mode else ""
    )
    if found.capacity:
        share = max(one.total for one in found.memory) / found.capacity
        name = devices.kind.name if devices.kind else "the device"
        console.print(
            f"tensors may take {found.capacity / _GIB:.2f} GiB of {name}: {share:.0%} is used,"
            " without the CUDA context and NCCL"
        )
    console.print("[bold]Data[/bold]")
    _print_reading(console, found, run)
    console.print("[bold]Disk[/bold]")
    disk = found.disk
    console.print(
        f"{disk.written:,} checkpoints of {disk.one / 1e9:.2f} GB, {disk.kept:,} of them kept: at most"
        f" {disk.peak / 1e9:.2f} GB at once, {found.disk_free / 1e9:.0f} GB are free"
    )
    console.print("[bold]Time and energy[/bold]")
    if found.time:
        from groundup.cli.plan_scale import step_in_words

        console.print(step_in_words(found.time))
    console.print(_effort(found, devices))
    for warning in found.warnings:
        console.print(f"[yellow]warning[/yellow]: {warning}", soft_wrap=True)


def _parameters(found: "Plan") -> "Table":
    table = new_table(("part", "parameters", "share"))
    total = sum(found.parameters.values())
    for part, count in found.parameters.items():
        table.add_row(part, f"{count:,}", f"{count / total:.1%}")
    table.add_row("all", f"{total:,}", "")
    if found.logical_parameters != total:
        table.add_row("without padding of the vocabulary", f"{found.logical_parameters:,}", "")
    if found.parameters_per_rank != total:
        table.add_row("on a rank, before ZeRO", f"{found.parameters_per_rank:,}", "")
    return table


def _memory(memory: Sequence["RankMemory"]) -> "Table":
    from groundup.plan.rank_memory import CLASSES

    table = new_table(("rank", *CLASSES, "total", "highest at"))
    shown = list(memory[:_SHOWN_RANKS])
    for one in shown:
        sizes = [f"{one.by_class[name] / _GIB:.2f}" for name in CLASSES]
        rank = f"pipeline {one.rank}" if len(memory) > 1 else "each"
        table.add_row(rank, *sizes, f"{one.total / _GIB:.2f}", one.moment)
    if len(memory) > len(shown):
        table.add_row(f"and {len(memory) - len(shown)} more", *[""] * (len(CLASSES) + 2))
    return table


def _print_reading(console: "Console", found: "Plan", run: "TrainConfig") -> None:
    reading = found.reading
    table = new_table(("split", "documents", "tokens", "samples"))
    for name, counts in reading.splits.items():
        table.add_row(name, f"{counts.documents:,}", f"{counts.tokens:,}", f"{counts.samples:,}")
    if reading.splits:
        console.print(table)
    epochs = f", {reading.epochs:.3g} epochs" if reading.splits else ""
    console.print(
        f"{run.num_steps:,} steps of {run.batch_sizes} samples of {run.data.sequence_length:,} tokens:"
        f" {human_count(reading.tokens)} tokens{epochs}; {found.micro_batches} micro-batches of"
        f" {run.micro_batch_size} a rank and step;"
        f" {reading.tokens / found.logical_parameters:.3g} tokens a parameter"
    )


def _effort(found: "Plan", devices: "Devices") -> str:
    effort = found.effort
    words = f"{effort.flops_per_token / 1e9:.4g} GFLOP a token, {effort.flops:.3g} FLOP in all"
    if not effort.tokens_per_second:
        return f"{words}; for hours give --gpu NAME, or --tokens-per-second as measured"
    how = f"at an MFU of {found.time.mfu if found.time else devices.mfu:.0%}"
    how = "as given" if devices.tokens_per_second else how + ", as predicted" * (found.time is not None)
    each = f" ({effort.tokens_per_second / found.ranks:,.0f} each)" if found.ranks > 1 else ""
    where = f"{_devices_in_words(found.ranks)}{each}"
    speed = f"{human_count(effort.tokens_per_second)} tokens/s on {where} {how}"
    words += f"\n{speed}: {effort.hours:,.1f} hours"
    if effort.kilowatt_hours and devices.kind:
        words += (
            f", {effort.kilowatt_hours:,.1f} kWh at {devices.kind.watts} W each, without hosts and cooling"
        )
    return words
