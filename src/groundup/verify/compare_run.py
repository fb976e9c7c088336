"""Is a run, finished or not, what a reference says that it should be?"""

import dataclasses
import math
import re
from collections.abc import Iterator, Sequence

from groundup.checkpoint.native.contents import read_checkpoint_manifest
from groundup.checkpoint.native.folder import CHECKPOINTS, list_checkpoints
from groundup.core.errors import DataError, GroundupError
from groundup.report.run_records import RunRecords, number
from groundup.tokens.dataset.dataset_manifest import find_manifest
from groundup.tokens.dataset.indexed import strip_ending
from groundup.train.metrics import METRICS_FILE
from groundup.verify.reference_band import Window, published_windows, training_windows, validation_windows
from groundup.verify.references import Reference
from groundup.verify.run_suspects import Shape, Suspect, shape_of, suspects

_FIRST_LOSS = re.compile(r"loss at initialisation ([\d.]+)")
_LOG = "train.log"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """What came of a comparison.

    Attributes:
        windows: Of training, then of validation; none where nothing can be compared.
        unit: Of their losses: "nats a token" or "bits a byte".
        shape: Of the deviation.
        suspects: The most likely first.
        remarks: What cannot be compared, or only with care.
        apart: How far the run is from that of its own seed at most; None where the reference has none.
    """

    windows: Sequence[Window]
    unit: str
    shape: Shape
    suspects: Sequence[Suspect]
    remarks: Sequence[str]
    apart: float | None = None

    @property
    def outside(self) -> list[Window]:
        """Those in which the run is outside the band."""
        return [window for window in self.windows if not window.is_inside]

    @property
    def is_right(self) -> bool:
        """Whether something was compared, and lies inside the band."""
        return bool(self.windows) and self.shape == "inside"


def compare_run(run: RunRecords, reference: Reference, *, same_data: bool = False) -> Compared:
    """Compares a run with a reference, as far as it went.

    Args:
        run: With records of training or validation.
        reference: To compare with.
        same_data: Whether the data are known to be the reference's, where nothing in the run tells.

    Raises:
        DataError: The run has no losses.
    """
    if not run.train and not run.kinds.get("validation"):
        raise DataError(
            f"has no loss to compare: {METRICS_FILE} is missing or empty",
            where=run.folder,
            fix="The first is recorded after log.interval steps.",
        )
    remarks = list(_remarks(run, reference, same_data=same_data))
    unit, scales = "nats a token", (1.0, 1.0)
    if not _same_vocabulary(run, reference):
        ours, theirs = _bits_per_nat(run), _per_byte(reference.bytes_per_token)
        if ours and theirs:
            unit, scales = "bits a byte", (ours, theirs)
        else:
            missing = "the run's first validation tells" if theirs else "the published losses do not tell"
            remarks.append(
                f"The vocabularies differ, and bits a byte can be compared alone, which {missing}."
            )
            return Compared(windows=(), unit=unit, shape="inside", suspects=(), remarks=remarks)
    windows = list(_windows(run, reference, scales, same_data=same_data))
    data = _data_of(run)
    apart = _apart(run, reference, windows) if scales == (1, 1) and data in ("", reference.data) else []
    remarks += [_said_of_seed(apart, reference)] if apart else []
    shape = shape_of(run, windows, _first_loss(run))
    return Compared(
        windows=windows,
        unit=unit,
        shape=shape,
        suspects=suspects(run, reference, shape, data),
        remarks=remarks,
        apart=max((found for _, found in apart), default=None),
    )


def _windows(
    run: RunRecords, reference: Reference, scales: tuple[float, float], *, same_data: bool
) -> Iterator[Window]:
    validations = run.kinds.get("validation", ())
    if reference.seeds:
        starts = [int(start["step"]) for start in run.starts]
        yield from training_windows(run.train, starts, reference, scales)
        yield from validation_windows(validations, reference, scales)
    elif _is_its_data(run, reference, same_data=same_data) and scales == (1.0, 1.0):
        held_out = [
            (int(record["step"]), run.place(int(record["step"])).tokens, number(record.get("loss")))
            for record in validations
        ]
        yield from published_windows(held_out, reference)


def _apart(run: RunRecords, reference: Reference, windows: Sequence[Window]) -> list[tuple[int, float]]:
    """Each window's last step, and how far the run is from that of its own seed; empty where there is none.

    Both have the same initial weights and samples, which make nearly all of the difference between seeds: so
    this shows what is far too small for the band.
    """
    seed = run.config.get("seed")
    if seed not in reference.seeds:
        return []
    losses = reference.losses[reference.seeds.index(seed)]
    return [
        (window.last, abs(window.loss - float(losses[window.first : window.last].mean())))
        for window in windows
        if window.kind == "training"
    ]


def _said_of_seed(apart: Sequence[tuple[int, float]], reference: Reference) -> str:
    most = max(found for _, found in apart)
    said = f"The reference has this run's seed: their losses are at most {most:.4f} apart"
    far = next((step for step, found in apart if not found <= reference.rounding), None)
    if far is None:
        return f"{said}, as by rounding (up to {reference.rounding}). It is the same run."
    return (
        f"{said}, and from step {far} on further than by rounding ({reference.rounding}). It is another run,"
        " whose settings, data, code or initial weights differ."
    )


def _remarks(run: RunRecords, reference: Reference, *, same_data: bool) -> Iterator[str]:
    last = run.last_step
    planned = number(run.config.get("num_steps"))
    if planned and last < planned:
        yield f"The run is at step {last:,} of {planned:,.0f}: compared as far as it went."
    if last > reference.num_steps and reference.seeds:
        yield f"The reference ends at step {reference.num_steps:,}; what came after it is not compared."
    if not run.config:
        yield "The run has no config.yaml: its settings cannot be compared."
    if not reference.seeds:
        if not run.kinds.get("validation"):
            yield "The run was not validated yet, and what was published are validation losses."
        if not _is_its_data(run, reference, same_data=same_data):
            yield (
                f"The published losses are of {reference.data_name}. The run's data do not have its name, and"
                " losses on other texts cannot be compared; --same-data says that they are the same."
            )


def _is_its_data(run: RunRecords, reference: Reference, *, same_data: bool) -> bool:
    """Whether the path of the data that are validated on has a word that names the reference's."""
    keys = [key for key in run.config if key.startswith("data.") and key.endswith("path")]
    paths = [str(run.config[key]).lower() for key in keys]
    return same_data or any(word in path for path in paths for word in reference.data_words)


def _same_vocabulary(run: RunRecords, reference: Reference) -> bool:
    """Whether losses a token mean the same; another tokenizer of as many ids does not cut text alike."""
    ours, theirs = run.config.get("model.vocab_size"), reference.config["model.vocab_size"]
    tokenizers = {run.tokenizer or reference.tokenizer, reference.tokenizer or run.tokenizer}
    return ours in (None, theirs) and len(tokenizers) == 1


def _bits_per_nat(run: RunRecords) -> float | None:
    """What makes bits per byte of the run's losses, by its validations or else by its token files."""
    path = run.config.get("data.path")
    if run.bits_per_nat or not path:
        return run.bits_per_nat
    try:
        manifest = find_manifest(strip_ending(run.path(str(path))))
    except GroundupError:  # of files that are gone since
        return None
    if manifest is None or not manifest.counts.text_bytes:
        return None
    return _per_byte(manifest.counts.text_bytes / manifest.counts.tokens)


def _per_byte(bytes_per_token: float) -> float:
    return 1 / (math.log(2) * bytes_per_token) if bytes_per_token else 0.0


def _first_loss(run: RunRecords) -> float | None:
    """The loss of the first step: of a record of it alone, or as the log has it."""
    if run.train and run.train[0]["step"] == 1:
        return number(run.train[0].get("loss"))
    log = run.folder / _LOG
    found = _FIRST_LOSS.findall(log.read_text(errors="replace")) if log.is_file() else []
    return float(found[-1].rstrip(".")) if found else None


def _data_of(run: RunRecords) -> str:
    """The fingerprint of the training data that the newest sound checkpoint has; empty without one."""
    for folder in reversed(list_checkpoints(run.folder / CHECKPOINTS)):
        try:
            return read_checkpoint_manifest(folder).about.data
        except GroundupError:  # damaged
            continue
    return ""
