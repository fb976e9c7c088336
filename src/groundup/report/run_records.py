"""What a run folder holds, read for a report: records, config, starts; half a run as far as it goes."""

import bisect
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from groundup.checkpoint.native.contents import read_checkpoint_manifest
from groundup.checkpoint.native.folder import CHECKPOINTS, list_checkpoints
from groundup.core.config_sources import leaves, read_yaml
from groundup.core.errors import DataError, GroundupError
from groundup.core.files import read_json
from groundup.train.metrics import METRICS_FILE, STARTS_FILE
from groundup.train.setup import CONFIG_FILE

ORIGINS_FILE = "origins.json"
"""Each setting's value when the run was started, and where that came from."""

Record = dict[str, Any]
_MOST_POINTS = 1500


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """A point of a run on each axis; hours are of training, without validations, saving and lost work."""

    step: int
    tokens: float
    hours: float


@dataclasses.dataclass(frozen=True, slots=True)
class RunRecords:
    """A run.

    Attributes:
        folder: The run folder.
        name: That tells it from the other runs of a page.
        config: Dotted key -> value.
        origins: Dotted key -> where its value comes from; empty of runs that did not record it.
        kinds: Kind -> records of ``metrics.jsonl``, in order.
        starts: When the run was begun, and gone on with: ``step``, ``time``.
        places: Of the training records.
    """

    folder: Path
    name: str
    config: Mapping[str, Any]
    origins: Mapping[str, str]
    kinds: Mapping[str, Sequence[Record]]
    starts: Sequence[Record]
    places: Sequence[Place]

    @property
    def train(self) -> Sequence[Record]:
        """The records of training."""
        return self.kinds.get("train", ())

    @property
    def last_step(self) -> int:
        """The last step that is recorded; 0 for none."""
        return max((int(record["step"]) for found in self.kinds.values() for record in found), default=0)

    @property
    def tokenizer(self) -> str:
        """The fingerprint that its newest checkpoint has of the tokenizer; empty where there is none."""
        for folder in reversed(list_checkpoints(self.folder / CHECKPOINTS)):
            try:
                return read_checkpoint_manifest(folder).about.tokenizer
            except GroundupError:  # damaged, which the list of checkpoints says
                continue
        return ""

    @property
    def bits_per_nat(self) -> float | None:
        """What makes bits per byte of this run's losses: of its vocabulary and text; None where not known."""
        for record in reversed(self.kinds.get("validation", ())):
            if record.get("loss") and record.get("bits_per_byte"):
                return float(record["bits_per_byte"] / record["loss"])
        return None

    def place(self, step: int) -> Place:
        """Where a step lies on each axis, between the training records around it."""
        at = bisect.bisect_left(self.places, step, key=lambda place: place.step)
        if at < len(self.places) and self.places[at].step == step:
            return self.places[at]
        before = self.places[at - 1] if at else Place(0, 0.0, 0.0)
        if at == len(self.places):
            return dataclasses.replace(before, step=step)
        after = self.places[at]
        part = (step - before.step) / (after.step - before.step)
        return Place(
            step,
            before.tokens + part * (after.tokens - before.tokens),
            before.hours + part * (after.hours - before.hours),
        )

    def path(self, given: str) -> Path:
        """A path of the config, which is relative to where the run was started."""
        own = Path(str(self.config.get("run_dir", "")))
        folder = self.folder.absolute()
        is_relative = not Path(given).is_absolute() and not own.is_absolute() and own.parts
        if is_relative and folder.parts[-len(own.parts) :] == own.parts:
            return folder.parents[len(own.parts) - 1] / given
        return Path(given)


def read_run(folder: Path, name: str) -> RunRecords:
    """Reads a run folder; a line that was cut short is left out.

    Raises:
        DataError: It is no run folder.
    """
    config_file, metrics_file = folder / CONFIG_FILE, folder / METRICS_FILE
    if not config_file.is_file() and not metrics_file.is_file():
        raise DataError(
            f"is not a run: it has neither {CONFIG_FILE} nor {METRICS_FILE}",
            where=folder,
            fix="Name the run_dir of `groundup train` or `groundup finetune`.",
        )
    tree = read_yaml(config_file)[0] if config_file.is_file() else {}
    kinds: dict[str, list[Record]] = {}
    for record in read_lines(metrics_file):
        if isinstance(record.get("step"), int):
            kinds.setdefault(str(record.get("kind")), []).append(record)
    kinds = {kind: sorted(found, key=lambda record: int(record["step"])) for kind, found in kinds.items()}
    config = dict(leaves(tree))
    return RunRecords(
        folder=folder,
        name=name,
        config=config,
        origins=_origins(folder / ORIGINS_FILE, config),
        kinds=kinds,
        starts=[record for record in read_lines(folder / STARTS_FILE) if isinstance(record.get("step"), int)],
        places=list(_places(kinds.get("train", []))),
    )


def read_lines(path: Path) -> Iterator[Record]:
    """The objects of a file of JSON lines, without lines that are not whole; none of a missing file."""
    if not path.is_file():
        return
    for line in path.read_bytes().splitlines():
        try:
            record = orjson.loads(line)
        except orjson.JSONDecodeError:
            continue
        if isinstance(record, dict):
            yield record


def number(value: Any) -> float | None:
    """A figure of a record; None for what is none, as a loss that was not finite."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def names_of(folders: Sequence[Path]) -> list[str]:
    """The shortest ends of the paths that tell folders apart."""
    parts = [folder.absolute().parts for folder in folders]
    for length in range(1, max(map(len, parts), default=1) + 1):
        names = ["/".join(each[-length:]) for each in parts]
        if len(set(names)) == len(names):
            break
    return names


def thinned(records: Sequence[Record], most: int = _MOST_POINTS) -> list[Record]:
    """Records of which a plot can be made: of each group, those of the least and largest loss and norm."""
    if len(records) <= most:
        return list(records)
    size = -(-len(records) // (most // 4))
    kept: list[Record] = []
    for group in (records[first : first + size] for first in range(0, len(records), size)):
        chosen = {0}
        for name in ("loss", "grad_norm"):
            values = [
                (value, place)
                for place, one in enumerate(group)
                if (value := number(one.get(name))) is not None
            ]
            chosen |= {min(values)[1], max(values)[1]} if values else set()
        kept += [group[place] for place in sorted(chosen)]
    return kept if kept[-1] is records[-1] else [*kept, records[-1]]


def _origins(path: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Where values come from; not of those that another start of the run has changed since."""
    found = read_json(path) if path.is_file() else {}
    return {
        key: str(kept[1])
        for key, kept in (found.items() if isinstance(found, dict) else ())
        if isinstance(kept, list) and len(kept) == 2 and kept[0] == str(config.get(key))
    }


def _places(records: Sequence[Record]) -> Iterator[Place]:
    hours, before = 0.0, 0.0
    for record in records:
        tokens = number(record.get("tokens")) or 0.0
        speed = number(record.get("tokens_per_second")) or 0.0
        hours += max(0.0, tokens - before) / speed / 3600 if speed else 0.0
        before = tokens
        yield Place(int(record["step"]), tokens, hours)
