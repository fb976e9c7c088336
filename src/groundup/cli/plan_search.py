"""``groundup plan --search``: the fastest layouts that fit a number of devices."""

import dataclasses
from typing import TYPE_CHECKING

from groundup.cli.printing import new_table, print_json
from groundup.core.errors import ConfigError, MachineError
from groundup.core.progress import human_count

if TYPE_CHECKING:
    from groundup.plan.devices import Devices
    from groundup.train.config import TrainConfig

_GIB = 1 << 30


def list_layouts(run: "TrainConfig", devices: "Devices", *, top: int, as_json: bool) -> None:
    """Prints the fastest layouts that fit so many devices.

    Args:
        run: Whose layout is searched for.
        devices: With their number and memory.
        top: Number of layouts to list.
        as_json: As JSON.

    Raises:
        ConfigError: The number of devices, or their memory, is not known.
        MachineError: Nothing fits.
    """
    from rich.console import Console

    from groundup.plan.fitting import as_overrides, best_of_each, search
    from groundup.plan.run_step import planned_precision
    from groundup.plan.scaling import one_rank

    if not devices.ranks or not devices.usable:
        raise ConfigError(
            "a search needs the number of devices and their memory",
            where="--search",
            fix="Give --gpus N, and --gpu NAME or --memory GIB.",
        )
    precision = planned_precision(run, devices.kind)
    machines = devices.machines(precision)
    found, legal, least = search(
        run, one_rank(run, precision), ranks=devices.ranks, capacity=devices.usable, machines=machines
    )
    shown = best_of_each(found)[:top]
    if as_json:
        layouts = [dataclasses.asdict(one) for one in shown]
        print_json({"legal": legal, "fitting": len(found), "layouts": layouts})
    if not found:
        raise MachineError(
            f"none of {legal:,} layouts of {devices.ranks} devices fits {devices.usable / _GIB:.2f} GiB"
            + (f": the least takes {least / _GIB:.2f} GiB" if legal else ""),
            where="--search",
            fix="Give more devices, or larger ones."
            if legal
            else "Change global_batch_size so that some number of replicas divides it.",
        )
    if as_json:
        return
    table = new_table(
        ("settings", "GiB", "tokens/s", "step, s", "MFU", "work", "idle", "tp", "cp", "pp", "dp")
    )
    for one in shown:
        time = one.time
        parts = (time.work.total, time.bubble, time.tensor, time.context, time.pipeline, time.data)
        shares = [f"{part / time.total:.0%}" for part in parts]
        settings = " ".join(as_overrides(one.settings))
        figures = f"{one.total / _GIB:.1f}", human_count(time.tokens_per_second), f"{time.total:.3g}"
        table.add_row(settings, *figures, f"{time.mfu:.0%}", *shares)
    console = Console(width=max(140, Console().width), highlight=False)
    console.print(
        f"{len(found):,} of {legal:,} layouts of {devices.ranks} devices fit {devices.usable / _GIB:.2f} GiB;"
        f" the fastest, products at {machines.rates.flops / machines.peak:.0%} of"
        f" {machines.peak / 1e12:.0f} TFLOP/s:"
    )
    console.print(table)
    print("A model of time that ranks layouts (docs/guides/plan.md); groundup autotune measures them here.")
