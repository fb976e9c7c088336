"""``groundup plan --scale``: what a run does on ever more devices."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from groundup.cli.printing import new_table, print_json
from groundup.core.errors import ConfigError
from groundup.core.progress import human_count

if TYPE_CHECKING:
    from groundup.plan.devices import Devices
    from groundup.plan.scaling import Point
    from groundup.plan.step_time import StepTime
    from groundup.train.config import TrainConfig

_GIB = 1 << 30
_HEADINGS = (
    *("GPUs", "batch", "layout", "GiB", "step, s", "idle", "waiting", "hidden", "tokens/s a GPU", "tokens/s"),
    *("MFU", "scaling"),
)


def show_scaling(
    run: "TrainConfig", devices: "Devices", counts: str, *, searches: bool, grows: bool, as_json: bool
) -> None:
    """Prints a table of the step's time over numbers of devices.

    Args:
        run: Whose layout stays, or is searched for.
        devices: Their kind and links.
        counts: Numbers of devices, with commas between.
        searches: Take the fastest layout for each number.
        grows: Let the batch grow with the devices.
        as_json: As JSON.

    Raises:
        ConfigError: The numbers are none, or the device is not known.
    """
    from rich.console import Console

    from groundup.plan.run_step import planned_precision
    from groundup.plan.scaling import scale

    numbers = _numbers(counts)
    if devices.kind is None or devices.ranks:
        raise ConfigError(
            "scaling needs the kind of device"
            if devices.kind is None
            else "--gpus and --scale exclude each other",
            where="--scale",
            fix="Give --gpu NAME, and numbers of devices by --scale alone.",
        )
    precision = planned_precision(run, devices.kind)
    points = scale(run, devices, numbers, precision=precision, searches=searches, grows=grows)
    if as_json:
        print_json({"points": [point.to_dict() for point in points]})
        return
    table = new_table(_HEADINGS)
    for point in points:
        table.add_row(*_row(point, points))
    console = Console(width=max(150, Console().width), highlight=False)
    machines = devices.machines(precision)
    console.print(
        f"{devices.kind.name}, {precision}, machines of {machines.per_machine}: {machines.link_gb:g} GB/s"
        f" within, {machines.network_gb:g} GB/s a device between; products at"
        f" {machines.rates.flops / machines.peak:.0%} of {machines.peak / 1e12:.0f} TFLOP/s at best"
    )
    console.print(table)
    for point in points:
        if point.reason:
            console.print(f"[yellow]{point.gpus:,} GPUs[/yellow]: {point.reason}", soft_wrap=True)
    print("idle: a pipeline's; waiting: for bytes; hidden: bytes behind work (docs/guides/plan.md)")


def step_in_words(time: "StepTime") -> str:
    """Says where the time of a step goes."""
    parts = (
        ("products", time.work.products),
        ("attention", time.work.attention),
        ("passes over memory", time.work.passes),
        ("optimizer", time.update),
        ("idle pipeline", time.bubble),
        ("waiting for tp", time.tensor),
        ("cp", time.context),
        ("pp", time.pipeline),
        ("dp", time.data),
    )
    shares = ", ".join(
        f"{name} {part / time.total:.0%}" for name, part in parts if part >= 0.005 * time.total
    )
    return f"a step of {time.total:.3g} s: {shares}"


def _numbers(counts: str) -> list[int]:
    words = [word.strip() for word in counts.split(",") if word.strip()]
    if not words or not all(word.isdecimal() and int(word) > 0 for word in words):
        raise ConfigError(
            f"{counts!r} are no numbers of devices", where="--scale", fix="Write them as 8,64,512,4096."
        )
    return sorted({int(word) for word in words})


def _row(point: "Point", points: Sequence["Point"]) -> list[str]:
    gib = f"{point.memory / _GIB:.1f}" if point.memory else ""
    time = point.time
    if time is None:
        return [f"{point.gpus:,}", f"{point.batch:,}", "none", gib, *[""] * (len(_HEADINGS) - 4)]
    first = next(one for one in points if one.time is not None)
    assert first.time is not None, "it was looked for"
    a_gpu = time.tokens_per_second / point.gpus
    scaling = a_gpu / (first.time.tokens_per_second / first.gpus)
    return [
        *(f"{point.gpus:,}", f"{point.batch:,}", point.layout, gib, f"{time.total:.3g}"),
        *(f"{part / time.total:.0%}" for part in (time.bubble, time.exposed, time.hidden)),
        *(f"{a_gpu:,.0f}", human_count(time.tokens_per_second), f"{time.mfu:.0%}", f"{scaling:.0%}"),
    ]
