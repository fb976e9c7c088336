"""Opens and writes native checkpoints tensor by tensor, as conversions do."""

import shlex
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from groundup.checkpoint.companions import Companions, is_companion
from groundup.checkpoint.export import Check
from groundup.checkpoint.formats import Codec, Variant, open_lazy
from groundup.checkpoint.lazy import LazyModel
from groundup.checkpoint.low_rank import Adapter, AdapterAbout, adapter_of, merged
from groundup.checkpoint.native.commit import (
    MARGIN_BYTES,
    Groups,
    complete_checkpoint,
    save_failure,
    write_groups,
)
from groundup.checkpoint.native.contents import (
    MANIFEST,
    TOKENIZER,
    CheckpointAbout,
    TrainingCounts,
    read_checkpoint_manifest,
    read_groups,
)
from groundup.checkpoint.native.folder import (
    CHECKPOINTS,
    checkpoint_path,
    is_checkpoint,
    list_checkpoints,
    point_latest,
    resolve_checkpoint,
    tokenizer_dir,
)
from groundup.checkpoint.native.load import TensorGroup
from groundup.core.config import to_dict
from groundup.core.errors import CheckpointError
from groundup.core.files import atomic_folder, require_free_space
from groundup.core.log import logger
from groundup.core.manifest import FileRecord, find_damage
from groundup.core.vocabulary import require_same_tokenizer
from groundup.models import model_config_from
from groundup.tokens.tokenizer.base import Tokenizer
from groundup.tokens.tokenizer.load_tokenizer import load_tokenizer


def is_native(path: Path) -> bool:
    """Whether a path is a checkpoint, sound or not, or a folder that holds some."""
    folders = (path / CHECKPOINTS, path)
    return is_checkpoint(path) or any(f.is_dir() and list_checkpoints(f) for f in folders)


def open_native(path: Path, *, tokenizer: Tokenizer | None = None, ema: bool = False) -> LazyModel:
    """Opens a checkpoint, or the newest sound one of a run folder; with its tokenizer or another.

    Args:
        path: The folder.
        tokenizer: Instead of the checkpoint's.
        ema: Take the average of the weights instead of the weights.

    Raises:
        CheckpointError: There is no usable checkpoint, its tokenizer was changed, or it has no average.
    """
    folder = resolve_checkpoint(path)
    if ema and "ema" not in read_groups(folder):
        raise CheckpointError(
            "holds no average of the weights",
            where=folder,
            fix="Leave out --ema, or train with an average: ema.decay=0.999, say.",
        )
    manifest = read_checkpoint_manifest(folder)
    about = manifest.about
    if "model" not in about.config:
        raise CheckpointError("its config has no model", where=folder / MANIFEST, fix="Copy it again.")
    optimizer = about.config.get("optimizer", {})
    companions = sound_companions(folder, manifest.files)
    if tokenizer is not None:
        companions = companions.with_tokenizer_of(Companions())
    else:
        tokenizer = load_tokenizer(tokenizer_dir(folder))
        require_same_tokenizer(
            tokenizer.fingerprint,
            about.tokenizer,
            where=folder,
            what="holds",
            other="the model was trained with",
            fix="Its files are as they were saved: open it with the version of groundup that saved it.",
            error=CheckpointError,
        )
    weights = TensorGroup(folder, "ema" if ema else "model").lazy()
    moments = TensorGroup(folder, "optimizer").lazy()
    if about.adapter:
        base = _base_of(about.adapter, folder)
        weights, moments = dict(merged(base, adapter_of(about.adapter, weights, folder)).weights), {}
    return LazyModel(
        config=model_config_from(about.config["model"], where=folder / MANIFEST),
        weights=weights,
        tokenizer=tokenizer,
        source=folder,
        moments=moments,
        step=manifest.counts.step,
        samples=manifest.counts.samples,
        updated_samples=manifest.counts.updated_samples,
        bos_ids=about.bos_ids,
        companions=companions,
        megatron_args=about.megatron_args or {},
        optimizer=optimizer if optimizer.get("kind") == "adamw" else {},
        loss_scale=manifest.counts.loss_scale or {},
    )


def open_native_adapter(path: Path) -> Adapter | None:
    """Opens the adapter of a checkpoint, or of the newest sound one of a run folder; None for a whole model.

    Raises:
        CheckpointError: There is no usable checkpoint.
    """
    folder = resolve_checkpoint(path)
    about = read_checkpoint_manifest(folder).about.adapter
    return adapter_of(about, TensorGroup(folder, "model").lazy(), folder) if about else None


def _base_of(adapter: AdapterAbout, folder: Path) -> LazyModel:
    base = Path(adapter.base)
    if not base.exists():
        raise CheckpointError(
            f"holds an adapter of {base}, which is not here",
            where=folder,
            fix=f"Put it back there, or name it, wherever it is, and this run with --adapter {folder}.",
        )
    return open_lazy(base)


def write_native(
    stored: LazyModel,
    folder: Path,
    *,
    on_write: Callable[[int], None] | None = None,
    check: Check | None = None,
) -> Path:
    """Writes a run folder with one checkpoint, which every groundup command takes; returns the checkpoint.

    Args:
        stored: The model, read tensor by tensor.
        folder: New or empty.
        on_write: Receives the bytes of each tensor when it is written.
        check: Called with the temporary folder when it is complete.

    Raises:
        CheckpointError: The folder holds something.
        MachineError: The disk is too small or the files cannot be written.
    """
    _require_empty(folder)
    groups: Groups = {"model": stored.weights, "optimizer": stored.moments, "random": {}}
    size_bytes = sum(tensor.size_bytes for tensors in groups.values() for tensor in tensors.values())
    about = CheckpointAbout(
        config={"model": to_dict(stored.config)},
        tokenizer=stored.tokenizer.fingerprint,
        torch=torch.__version__,
        bos_ids=stored.bos_ids,
        converted_from=str(stored.source),
        megatron_args=dict(stored.megatron_args),
    )
    written = checkpoint_path(folder / CHECKPOINTS, stored.step)
    try:
        with atomic_folder(folder) as temporary:
            unnamed = temporary / written.relative_to(folder)
            unnamed.mkdir(parents=True)
            require_free_space(unnamed, size_bytes + MARGIN_BYTES, f"the checkpoint of step {stored.step}")
            complete_checkpoint(
                unnamed,
                write_groups(unnamed, groups, on_write=on_write),
                counts=TrainingCounts(
                    step=stored.step,
                    samples=stored.samples,
                    updated_samples=stored.updated_samples,
                    loss_scale=dict(stored.loss_scale) or None,
                ),
                about=about,
                tokenizer=stored.tokenizer,
                companions=stored.companions,
            )
            point_latest(unnamed)
            if check:
                check(temporary)
            _require_empty(folder)
    except OSError as error:
        raise save_failure(folder, stored.step, error) from error
    return written


def sound_companions(folder: Path, files: Mapping[str, FileRecord]) -> Companions:
    """Reads the companions of a native checkpoint, sound ones only; a damaged one is named and left out.

    Args:
        folder: The checkpoint.
        files: Those that its manifest lists.
    """
    found = {}
    for path, record in files.items():
        name = path.removeprefix(f"{TOKENIZER}/")
        if name == path or not is_companion(name):
            continue
        if damage := find_damage(folder, {path: record}):
            logger.warning("%s: %s: it is left out from here on", folder, damage)
        else:
            found[name] = (folder / path).read_bytes()
    return Companions(files=found)


def _require_empty(folder: Path) -> None:
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise CheckpointError(
            "is not empty, so it is not overwritten", where=folder, fix="Name a new folder."
        )


CODEC = Codec(
    detect=is_native,
    open=open_native,
    write=write_native,
    kept=lambda stored: stored,
    variants=lambda stored: [Variant(tour="")],
    next_step=lambda folder, _: f"groundup generate {shlex.quote(str(folder))}",
)
