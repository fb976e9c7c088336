"""A step on disk, so that it can be run again anywhere: ``groundup replay``.

A bundle holds the samples of the step and where they came from, the weights as they were before it (a native
checkpoint without optimizer state, under any layout), the states of all ranks' generators, and what the step
gave. It needs neither the data nor the run folder.
"""

import dataclasses
import platform
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from groundup.checkpoint.native import store
from groundup.checkpoint.native.pruning import Keep
from groundup.checkpoint.native.save import Writer
from groundup.core.config import from_dict, to_dict
from groundup.core.errors import CheckpointError, MachineError
from groundup.core.manifest import Manifest, describe_files, find_damage
from groundup.parallel.device import describe
from groundup.tokens.sampling.trace import DocumentRange, trace_sample
from groundup.tokens.tokenizer.base import Tokenizer
from groundup.tokens.tokenizer.load_tokenizer import load_tokenizer
from groundup.train.config import TrainConfig
from groundup.train.data_loader import Batch, read_batch
from groundup.train.rng import RngStates
from groundup.train.setup import Run

_MANIFEST = "bundle.json"
_BATCH = "batch.safetensors"
_BEFORE = "before"


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepRecord:
    """What a step gave.

    Attributes:
        step: From 1.
        first_sample: Its first, by the index in the data.
        num_samples: Of the global batch.
        loss: Mean over its targets.
        grad_norm: Before clipping.
        loss_scale: By which the loss was multiplied; 1 but for fp16.
        reason: Why it is worth a look.
    """

    step: int
    first_sample: int
    num_samples: int
    loss: float
    grad_norm: float
    loss_scale: float
    reason: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepDump:
    """What a bundle holds but for the weights.

    Attributes:
        folder: Where it is.
        facts: What the step gave.
        config: Of the run.
        precision: That the run worked in.
        layout: Degrees that the run had, worked out for its ranks: "dp", "tp", ...
        batch: The whole global batch, on the CPU.
        sources: Per sample, one entry for each document in it: "document", "begin", "end", "length" (in
            tokens), "source", "line" and "url", the last three empty where they are not recorded.
        about: Versions and the device.
    """

    folder: Path
    facts: StepRecord
    config: TrainConfig
    precision: str
    layout: dict[str, Any]
    batch: Batch
    sources: list[list[dict[str, Any]]]
    about: dict[str, Any]

    @property
    def before(self) -> Path:
        """The checkpoint of the moment before the step."""
        return store.folder_of(self.folder / _BEFORE, self.facts.step - 1)

    @property
    def tokenizer(self) -> Tokenizer:
        """Of the data."""
        return load_tokenizer(store.tokenizer_dir(self.before))


def dump_dir(config: TrainConfig, step: int) -> Path:
    """Where the bundle of a step lies."""
    return config.run_dir / "failures" / f"step-{step}"


def write_dump(run: Run, facts: StepRecord, random: RngStates) -> Path:
    """Saves a step that did not change the weights; all ranks together. Replaces an older one of this step.

    Args:
        run: With the weights, the step and the position of before the step.
        facts: What the step gave.
        random: This rank's generators before the step.

    Raises:
        MachineError: The disk is full.
    """
    folder = dump_dir(run.config, facts.step)
    snapshot = run.state.snapshot(run.config, run.data_fingerprint, run.mesh)
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
            f"the bundle could not be written ({problem})", where=folder, fix="Free some space."
        )
    return folder


def _write_batch(run: Run, facts: StepRecord, folder: Path) -> None:
    data = run.config.data
    batch = read_batch(
        run.training,
        facts.first_sample,
        facts.num_samples,
        vocab_size=run.config.model.vocab_size,
        mask_documents=data.mask_documents,
    )
    batch = batch.changed(lambda tensor: tensor.clone(memory_format=torch.contiguous_format))
    tensors = {name: value for name, value in vars(batch).items() if isinstance(value, Tensor)}
    save_file(tensors, folder / _BATCH)
    indices = range(facts.first_sample, facts.first_sample + facts.num_samples)
    sources = [[_origin(piece) for piece in trace_sample(run.training, index)] for index in indices]
    # JSON has no numbers that are not finite.
    given = {**dataclasses.asdict(facts), "loss": repr(facts.loss), "grad_norm": repr(facts.grad_norm)}
    about = {
        "facts": given,
        "config": to_dict(run.config),
        "precision": run.precision.name,
        "layout": to_dict(run.mesh.layout),
        "sources": sources,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": describe(run.device),
    }
    files = describe_files(folder, [_BATCH])
    Manifest(kind="bundle", files=files, about=about).write(folder / _MANIFEST)


def read_dump(folder: Path) -> StepDump:
    """Opens a bundle.

    Raises:
        CheckpointError: It is none, or damaged.
    """
    if not (folder / _MANIFEST).is_file():
        raise CheckpointError(
            f"holds no {_MANIFEST}",
            where=folder,
            fix="Name a folder like runs/a/failures/step-120, which a failed step leaves.",
        )
    manifest = Manifest.read(folder / _MANIFEST, "bundle")
    about = manifest.about
    given = about["facts"]
    facts = StepRecord(**{**given, "loss": float(given["loss"]), "grad_norm": float(given["grad_norm"])})
    before = store.folder_of(folder / _BEFORE, facts.step - 1)
    unlisted = "" if _BATCH in manifest.files else f"{_MANIFEST} does not list {_BATCH}"
    if reason := unlisted or find_damage(folder, manifest.files) or store.verify(before):
        raise CheckpointError(f"the bundle is damaged: {reason}", where=folder)
    return StepDump(
        folder=folder,
        facts=facts,
        config=from_dict(TrainConfig, about["config"], where=folder / _MANIFEST),
        precision=about["precision"],
        layout=about["layout"],
        batch=Batch(**load_file(folder / _BATCH)),
        sources=about["sources"],
        about={key: about[key] for key in ("torch", "python", "device")},
    )


def _origin(piece: DocumentRange) -> dict[str, Any]:
    origin = piece.came_from
    return {
        "document": piece.document,
        "begin": piece.begin,
        "end": piece.end,
        "length": piece.length,
        "source": origin.source if origin else "",
        "line": origin.line if origin else 0,
        "url": origin.url if origin else "",
    }
