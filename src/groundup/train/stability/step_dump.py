"""Step dumps: a step on disk, to be run again anywhere by ``groundup replay``.

A dump holds the samples of the step and where they came from, the weights before it (a native checkpoint
without optimizer state, under any layout), the RNG states of all ranks, and the outcome. It needs neither
the data nor the run folder.
"""

import dataclasses
import platform
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from groundup import __version__
from groundup.checkpoint.native.contents import read_checkpoint_manifest
from groundup.checkpoint.native.folder import checkpoint_path, tokenizer_dir
from groundup.checkpoint.native.folder import find_damage as find_damaged_checkpoint
from groundup.checkpoint.native.pruning import Keep
from groundup.checkpoint.native.save import Writer
from groundup.core.config import from_dict, to_dict
from groundup.core.config_class import NotNegative, Positive, config
from groundup.core.errors import CheckpointError, MachineError
from groundup.core.manifest import FileRecord, describe_files, find_damage, read_manifest, write_manifest
from groundup.parallel.device import describe_device
from groundup.tokens.tokenizer.base import Tokenizer
from groundup.tokens.tokenizer.load_tokenizer import load_tokenizer
from groundup.train.config import TrainConfig
from groundup.train.data_loader import Batch
from groundup.train.objective import LanguageModelling
from groundup.train.setup import Run
from groundup.train.state import RngStates

_MANIFEST = "bundle.json"
_BATCH = "batch.safetensors"
_BEFORE = "before"
_EXTRA = "extra."


# JSON has no numbers that are not finite: in a manifest they are text.
_AnyFloat = Annotated[float, pydantic.Field(allow_inf_nan=True), pydantic.BeforeValidator(float)]


@config
class StepRecord:
    """The outcome of a step.

    Attributes:
        step: From 1.
        first_sample: Index in the data of its first sample.
        num_samples: Size of the global batch.
        loss: Mean over its targets.
        grad_norm: Before clipping.
        loss_scale: Factor by which the loss was multiplied; 1 but for fp16.
        reason: Why the step was dumped.
    """

    step: Positive
    first_sample: NotNegative
    num_samples: Positive
    loss: _AnyFloat
    grad_norm: _AnyFloat
    loss_scale: float
    reason: str


@config
class DumpAbout:
    """What a step dump is of.

    Attributes:
        facts: What the step gave.
        config: Resolved config of the run.
        precision: That the run worked in.
        layout: Degrees that the run had, worked out for its ranks: "dp", "tp", ...
        sources: Per sample, one entry for each document in it: "document", "begin", "end", "length" (in
            tokens), "source", "line" and "url", the last three empty where they are not recorded.
        torch: Version of PyTorch.
        python: Version of Python.
        device: Where the run computed.
        rows_per_sample: As ``Batch.rows_per_sample``.
        objective: Its class, by name.
    """

    facts: StepRecord
    config: dict[str, Any]
    precision: str
    layout: dict[str, Any]
    sources: list[list[dict[str, Any]]]
    torch: str
    python: str
    device: str
    rows_per_sample: Positive = 1
    objective: str = LanguageModelling.__name__


@config
class DumpManifest:
    """Manifest of a step dump."""

    kind: Literal["bundle"] = "bundle"
    fingerprint: str = ""
    inputs: dict[str, str] = dataclasses.field(default_factory=dict)
    counts: dict[str, int] = dataclasses.field(default_factory=dict)
    files: dict[str, FileRecord]
    about: DumpAbout
    format_version: Literal[1] = 1
    groundup_version: str = __version__


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepDump:
    """A step dump but for the weights.

    Attributes:
        folder: Where it is.
        about: What its manifest says.
        config: Of the run.
        batch: The whole global batch, on the CPU.
    """

    folder: Path
    about: DumpAbout
    config: TrainConfig
    batch: Batch

    @property
    def before(self) -> Path:
        """The checkpoint of the moment before the step."""
        return checkpoint_path(self.folder / _BEFORE, self.about.facts.step - 1)

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the data."""
        return load_tokenizer(tokenizer_dir(self.before))


def _batch(tensors: dict[str, Tensor], rows_per_sample: int) -> Batch:
    extra = {name.removeprefix(_EXTRA): tensors[name] for name in tensors if name.startswith(_EXTRA)}
    own = {name: value for name, value in tensors.items() if not name.startswith(_EXTRA)}
    return Batch(**own, extra=extra, rows_per_sample=rows_per_sample)


def dump_dir(config: TrainConfig, step: int) -> Path:
    """Path of the dump of a step."""
    return config.run_dir / "failures" / f"step-{step}"


def write_dump(run: Run, facts: StepRecord, random: RngStates) -> Path:
    """Saves a step that did not change the weights, in place of an older dump of it; collective.

    Args:
        run: With the weights before the step.
        facts: Outcome of the step.
        random: This rank's generators before the step.

    Raises:
        MachineError: The disk is full.
    """
    folder = dump_dir(run.config, facts.step)
    snapshot = run.state.snapshot(run.config, run.data.fingerprint, run.mesh)
    writer = Writer(
        folder / _BEFORE,
        model=run.config.model,
        tokenizer=run.tokenizer,
        mesh=run.mesh,
        asynchronous=False,
        keep=Keep(last=1),
    )
    states = {f"{name}/{run.mesh.rank}": state for name, state in random.states.items()}
    writer.save(
        facts.step - 1,
        dataclasses.replace(snapshot, groups={"model": snapshot.groups["model"]}, random=states),
        replaces=True,
    )
    problem = ""
    if run.mesh.is_first:
        try:
            _write_batch(run, facts, folder)
        except (OSError, SafetensorError) as error:
            problem = str(error)
    if problem := run.mesh.all_gather(problem)[0]:
        raise MachineError(
            f"the step dump could not be written ({problem})", where=folder, fix="Free some space."
        )
    return folder


def _write_batch(run: Run, facts: StepRecord, folder: Path) -> None:
    batch = run.data.train.read(facts.first_sample, facts.num_samples)
    batch = batch.changed(lambda tensor: tensor.clone(memory_format=torch.contiguous_format))
    tensors = {name: value for name, value in vars(batch).items() if isinstance(value, Tensor)}
    tensors |= {f"{_EXTRA}{name}": value for name, value in batch.extra.items()}
    save_file(tensors, folder / _BATCH)
    indices = range(facts.first_sample, facts.first_sample + facts.num_samples)
    sources = [run.data.train.origins(index) for index in indices]
    about = DumpAbout(
        facts=facts,
        config=to_dict(run.config),
        precision=run.precision.name,
        layout=to_dict(run.mesh.layout),
        sources=sources,
        torch=torch.__version__,
        python=platform.python_version(),
        device=describe_device(run.device),
        rows_per_sample=batch.rows_per_sample,
        objective=type(run.learning.objective).__name__,
    )
    manifest = DumpManifest(files=describe_files(folder, [_BATCH]), about=about)
    write_manifest(folder / _MANIFEST, manifest)


def read_dump(folder: Path) -> StepDump:
    """Opens a step dump.

    Raises:
        CheckpointError: It is no step dump, or damaged.
    """
    if not (folder / _MANIFEST).is_file():
        raise CheckpointError(
            f"holds no {_MANIFEST}",
            where=folder,
            fix="Name a folder like runs/a/failures/step-120, which a failed step leaves.",
        )
    manifest = read_manifest(folder / _MANIFEST, DumpManifest)
    before = checkpoint_path(folder / _BEFORE, manifest.about.facts.step - 1)
    unlisted = None if _BATCH in manifest.files else f"{_MANIFEST} does not list {_BATCH}"
    if damage := unlisted or find_damage(folder, manifest.files) or find_damaged_checkpoint(before):
        raise CheckpointError(f"the step dump is damaged: {damage}", where=folder)
    if manifest.about.objective != LanguageModelling.__name__:
        raise CheckpointError(
            f"the step minimised {manifest.about.objective}; only steps of language modelling run again",
            where=folder,
        )
    if read_checkpoint_manifest(before).about.adapter:
        raise CheckpointError(
            "the step trained an adapter, whose base is not here; only steps of whole models run again",
            where=folder,
        )
    known = {field.name for field in dataclasses.fields(TrainConfig)}  # a fine-tuning has more
    settings = {name: value for name, value in manifest.about.config.items() if name in known}
    return StepDump(
        folder=folder,
        about=manifest.about,
        config=from_dict(TrainConfig, settings, where=folder / _MANIFEST),
        batch=_batch(load_file(folder / _BATCH), manifest.about.rows_per_sample),
    )
