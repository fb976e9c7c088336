"""``groundup autotune``: the quickest layout of a run on this machine, by measurement."""

import contextlib
import dataclasses
import shlex
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import pydantic
from cyclopts import Parameter

from groundup.cli.options import ConfigFile, Override, Switch
from groundup.cli.printing import print_json
from groundup.cli.run_config import file_and_overrides, run_config
from groundup.core.errors import ConfigError, MachineError, TrainingError

if TYPE_CHECKING:
    from groundup.plan.autotune import Choice, Measure, Measured, SearchSpace
    from groundup.plan.local_devices import LocalDevices
    from groundup.plan.probe import Probe
    from groundup.train.config import TrainConfig

_GIB = 1 << 30
_LONGEST_REASON = 160


def autotune(
    config: ConfigFile = None,
    *overrides: Override,
    ranks: Annotated[int, pydantic.Field(ge=0)] = 0,
    divisions: Annotated[int, pydantic.Field(ge=1)] = 8,
    steps: Annotated[int, pydantic.Field(ge=1)] = 5,
    seconds: Annotated[float, pydantic.Field(ge=0)] = 5.0,
    compiles: Annotated[bool, Parameter(name="--compile", negative="--no-compile")] = True,
    out: Annotated[Path | None, Parameter(name=["--out", "-o"])] = None,
    again: Switch = False,
    json: Switch = False,
) -> None:
    """Find the quickest way to train a run on this machine, by training a few steps in each of many ways.

    What is chosen is the layout (dp, tp, pp, cp, ZeRO), the micro-batch, recomputation and torch.compile. The
    global batch stays, so all of them learn the same. `groundup plan` leaves out what does not fit. The
    config's own way is measured first, then the most promising of each division of the ranks, then what is
    around the quickest, until nothing is quicker by 2%; that and the config's own are measured again in
    turns. Each is a short `groundup train` with an evaluation and a checkpoint at its end, in processes of
    its own, so that one that runs out of memory is a line of the table.

    What was measured is kept in autotune.jsonl of the run folder: a call that was interrupted goes on.

    For example:

        groundup autotune run.yaml

        groundup autotune preset=gpt2-124m run_dir=runs/a data.path=data/a global_batch_size=64 -o b.yaml

    Args:
        ranks: Processes to share this machine; 0 for one on each GPU, or on a CPU as many as the layout has.
        divisions: Divisions of the ranks (dp, tp, pp, cp) to measure, the most promising first.
        steps: Steps to measure of each, behind 3 that do not count.
        seconds: Measure more steps where these take less.
        compiles: Try with and without torch.compile.
        out: A new file, for the config with the settings that were found.
        again: Measure anew what is known from earlier calls.
        json: Print everything as JSON, for machines.
    """
    from groundup.core.config import to_yaml
    from groundup.core.files import require_writable
    from groundup.plan.fitting import as_overrides
    from groundup.plan.probe import Probe

    if out is not None and out.exists():
        raise ConfigError("exists already", where=f"--out {out}", fix="Name a new file, or remove it.")
    if out is not None:
        require_writable(out.absolute().parent, where=f"--out {out}")
    run = run_config(config, overrides).value
    devices = _devices(run, ranks)
    _require_data(run)
    require_writable(run.run_dir, where="run_dir")
    here = dataclasses.replace(run, device=devices.device)
    space = _search_space(here, devices, compiles=compiles)
    with _own_folder(run.run_dir) as folder:
        journal = run.run_dir / "autotune.jsonl"
        if again:
            journal.unlink(missing_ok=True)
        if not json:
            print(_heading(space, devices), flush=True)
        probe = Probe(
            here,
            folder,
            _train,
            steps=steps,
            seconds=seconds,
            journal=journal,
            machine=[devices.name, devices.torch, devices.planned.ranks],
        )
        found = _search(space, probe, run, divisions=divisions, quiet=json)
    settings = found.best.choice.settings(run)
    if out is not None:
        out.write_text(to_yaml(found.best.choice.applied(run)), encoding="utf-8")
    if json:
        print_json(found.to_dict(run))
    elif settings:
        words = [*_typed(config, overrides), *as_overrides(settings)]
        print(f"Quickest: {shlex.join(['groundup', 'train', *words])}")
    else:
        print("Nothing is quicker than the config as it is.")


@contextlib.contextmanager
def _own_folder(run_dir: Path) -> Iterator[Path]:
    """Holds a run folder while entered, with a folder in it that is empty then and gone afterwards."""
    from groundup.core.folder_lock import locked_folder

    folder = run_dir / "autotune"
    with locked_folder(run_dir, doing="measuring"):
        shutil.rmtree(folder, ignore_errors=True)  # of a call that was killed
        folder.mkdir()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@dataclasses.dataclass(frozen=True)
class _Found:
    """What was measured, the quickest of it, and its speed over that of the config's own, again in turns."""

    measured: "list[Measured]"
    best: "Measured"
    ratios: list[float]

    def to_dict(self, run: "TrainConfig") -> dict[str, Any]:
        """Returns plain values."""
        rows = [
            {
                "settings": one.choice.settings(run),
                "tokens_per_second": one.tokens_per_second,
                "memory": one.memory,
                "error": one.error,
            }
            for one in self.measured
        ]
        return {"measured": rows, "settings": self.best.choice.settings(run), "ratios": self.ratios}


def _search(
    space: "SearchSpace", probe: "Probe", run: "TrainConfig", *, divisions: int, quiet: bool
) -> _Found:
    """Measures, and prints each row as it is known.

    Raises:
        TrainingError: Nothing trains.
    """
    from groundup.core.live_line import LiveLine
    from groundup.plan.autotune import hill_climb, in_turns, quickest

    measured: list[Measured] = []
    now = _Now(run)
    with LiveLine(now.text):
        for one in hill_climb(space, now.told(probe.measure), most_divisions=divisions):
            measured.append(one)
            if not quiet:
                print(_row(one, measured[0].tokens_per_second, run), flush=True)
        best = quickest(measured)
        own = measured[0]
        compares = own.choice == space.own and own.tokens_per_second and own is not best
        again = now.told(probe.measure_again)
        ratios = in_turns(again, best.choice, own.choice) if best and compares else []
    if best is None:
        raise TrainingError("nothing trains", where="autotune", fix=f"The first said: {own.error}")
    if ratios and not quiet:
        middle = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        print(f"Again, in {len(ratios)} turns: {middle} times as quick as the first row.")
    if ratios and statistics.median(ratios) <= 1:  # it was the quickest by chance
        best = own
    return _Found(measured, best, ratios)


class _Now:
    """Tells on a terminal what is being measured, and since when."""

    def __init__(self, run: "TrainConfig") -> None:
        self._run = run
        self._words = ""
        self._began = time.monotonic()

    def told(self, measure: "Measure") -> "Measure":
        """Returns the same measuring, of which ``text`` tells."""

        def measure_it(choice: "Choice") -> "Measured":
            self._words = _words(choice, self._run)
            self._began = time.monotonic()
            return measure(choice)

        return measure_it

    def text(self) -> str:
        """Returns the line of the terminal."""
        return self._words and f"measuring {self._words}: {time.monotonic() - self._began:.0f}s"


def _row(one: "Measured", first: float, run: "TrainConfig") -> str:
    words = _words(one.choice, run)
    if one.error:
        return f"{'-':>10}  {'-':>5}  {'-':>5}  {words}: {one.error}"
    ratio = f"{one.tokens_per_second / first:.2f}" if first else "-"
    return f"{one.tokens_per_second:>10,.0f}  {ratio:>5}  {one.memory / _GIB:>5.1f}  {words}"


def _words(choice: "Choice", run: "TrainConfig") -> str:
    from groundup.plan.fitting import as_overrides

    return " ".join(as_overrides(choice.settings(run))) or "as configured"


def _devices(run: "TrainConfig", ranks: int) -> "LocalDevices":
    from groundup.plan.local_devices import local_devices

    named = run.layout.num_ranks if run.layout.num_ranks > 1 else 0
    return local_devices(run.device, ranks or named, run.run_dir)


def _require_data(run: "TrainConfig") -> None:
    """Refuses data that is not there, or is not the model's, before anything starts."""
    from groundup.plan.reading import open_data
    from groundup.tokens.sampling.splits import tokenizer_of_data
    from groundup.train.setup import require_vocabulary

    open_data(run)
    require_vocabulary(run, tokenizer_of_data(run.data))


def _search_space(run: "TrainConfig", devices: "LocalDevices", *, compiles: bool) -> "SearchSpace":
    """Returns what may be tried.

    Raises:
        ConfigError: The batch cannot be divided among the ranks.
        MachineError: Nothing fits, or the device lacks the precision.
    """
    from groundup.core.log import quiet
    from groundup.plan.autotune import search_space
    from groundup.plan.run_step import planned_precision

    planned = devices.planned
    with quiet():
        space = search_space(run, planned, planned_precision(run, planned.kind), compiles=compiles)
    if space.choices or space.own:
        return space
    if not space.legal:
        raise ConfigError(
            f"{run.global_batch_size} samples cannot be divided among {planned.ranks} ranks",
            where="global_batch_size",
            fix="Change it so that some number of replicas divides it, or give another --ranks.",
        )
    raise MachineError(
        f"nothing fits {planned.usable / _GIB:.2f} GiB a rank: the least of {space.legal:,} layouts takes"
        f" {space.least / _GIB:.2f} GiB",
        where="memory",
        fix="Take more or larger devices, or a smaller model: groundup plan --search says what would do.",
    )


def _heading(space: "SearchSpace", devices: "LocalDevices") -> str:
    planned = devices.planned
    who = f"{planned.ranks} rank{'s' * (planned.ranks > 1)} on {devices.name}"
    room = f" fit {planned.usable / _GIB:.1f} GiB each" if planned.usable else " can work"
    ways = f"{len(space.choices):,} of {space.legal:,} layouts, micro-batches and recomputations{room}"
    return f"{who}: {ways}\n{'tokens/s':>10}  {'ratio':>5}  {'GiB':>5}  settings"


def _train(file: Path) -> str:
    """Trains on this machine; returns why it failed, in one line."""
    from groundup.rehearsal.commands import last_words

    words = [sys.executable, "-m", "groundup", "train", str(file)]
    log, none = file.with_suffix(".log"), subprocess.DEVNULL
    with log.open("wb") as stderr:
        done = subprocess.run(words, stdin=none, stdout=none, stderr=stderr, check=False)  # noqa: S603  # ours
    return " ".join(last_words(log).split())[:_LONGEST_REASON] if done.returncode else ""


def _typed(config: Path | None, overrides: Sequence[str]) -> list[str]:
    file, rest = file_and_overrides(config, overrides)
    return [*([str(file)] if file else []), *rest]
