"""Native checkpoints as a conversion reads and writes them: tensor by tensor."""

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

from groundup.checkpoint.companions import Companions, companions_of
from groundup.checkpoint.export import Check, temporary_beside
from groundup.checkpoint.formats import Codec, Variant
from groundup.checkpoint.lazy import LazyModel
from groundup.checkpoint.native import store
from groundup.checkpoint.native.commit import save_files
from groundup.checkpoint.native.contents import MANIFEST, read_manifest
from groundup.checkpoint.native.load import Group, file_name, group_names
from groundup.checkpoint.native.safetensors import write_safetensors
from groundup.core.config import to_dict
from groundup.core.errors import CheckpointError
from groundup.core.files import fsync_dir
from groundup.core.vocabulary import require_same_tokenizer
from groundup.models import model_config_from
from groundup.tokens.tokenizer.base import Tokenizer
from groundup.tokens.tokenizer.load_tokenizer import load_tokenizer

_CHECKPOINTS = "checkpoints"


def is_native(path: Path) -> bool:
    """Whether a path is a checkpoint, sound or not, or a folder that holds some."""
    folders = (path / _CHECKPOINTS, path)
    return store.is_checkpoint(path) or any(f.is_dir() and store.list_checkpoints(f) for f in folders)


def open_native(path: Path, *, tokenizer: Tokenizer | None = None, ema: bool = False) -> LazyModel:
    """Opens a checkpoint, or the newest sound one of a run folder; with its tokenizer or another.

    Args:
        path: The folder.
        tokenizer: Instead of the checkpoint's.
        ema: Take the average of the weights instead of the weights.

    Raises:
        CheckpointError: There is no usable checkpoint, its tokenizer was changed, or it has no average.
    """
    folder = store.resolve(path)
    if ema and "ema" not in group_names(folder):
        raise CheckpointError(
            "holds no average of the weights",
            where=folder,
            fix="Leave out --ema, or train with an average: ema.decay=0.999, say.",
        )
    manifest = read_manifest(folder)
    config = model_config_from(manifest.about["config"]["model"], where=folder / MANIFEST)
    optimizer = manifest.about["config"].get("optimizer", {})
    companions = companions_of(folder, manifest)
    if tokenizer is not None:
        companions = companions.with_tokenizer_of(Companions())
    else:
        tokenizer = load_tokenizer(store.tokenizer_dir(folder))
        require_same_tokenizer(
            tokenizer.fingerprint,
            manifest.about["tokenizer"],
            where=folder,
            what="holds",
            other="the model was trained with",
            fix="Its files are as they were saved: open it with the version of groundup that saved it.",
            error=CheckpointError,
        )
    return LazyModel(
        config=config,
        weights=Group(folder, "ema" if ema else "model").stored(),
        tokenizer=tokenizer,
        source=folder,
        moments=Group(folder, "optimizer").stored(),
        step=manifest.counts.get("step", 0),
        samples=manifest.counts.get("samples", 0),
        bos_ids=tuple(manifest.about.get("bos_ids", ())),
        companions=companions,
        megatron_args=manifest.about.get("megatron_args", {}),
        optimizer=optimizer if optimizer.get("kind") == "adamw" else {},
    )


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
        on_write: Told the bytes of each tensor when it is written.
        check: Called with the temporary folder when it is complete.

    Raises:
        CheckpointError: The folder holds something.
        MachineError: The disk is too small or the files cannot be written.
    """
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise CheckpointError(
            "is not empty, so it is not overwritten", where=folder, fix="Name a new folder."
        )

    def write(temporary: Path) -> None:
        groups = {"model": stored.weights, "optimizer": stored.moments, "random": {}}
        for group, tensors in groups.items():
            write_safetensors(temporary / file_name(group, 0, 1), tensors, on_write=on_write)

    about: dict[str, Any] = {
        "config": {"model": to_dict(stored.config)},
        "data": "",
        "converted_from": str(stored.source),
        "megatron_args": dict(stored.megatron_args),
        "bos_ids": list(stored.bos_ids),
    }
    with temporary_beside(folder) as temporary:
        written = save_files(
            temporary / _CHECKPOINTS,
            stored.step,
            write,
            size_bytes=sum(t.size_bytes for t in (*stored.weights.values(), *stored.moments.values())),
            state={"step": stored.step, "samples": stored.samples, "tokens": 0, "skipped_steps": 0},
            about=about,
            tokenizer=stored.tokenizer,
            companions=stored.companions,
        )
        if check:
            check(temporary)
        if folder.exists():
            folder.rmdir()  # empty, as was checked
        temporary.rename(folder)
        fsync_dir(folder.parent)
    return folder / written.relative_to(temporary)


CODEC = Codec(
    detect=is_native,
    open=open_native,
    write=write_native,
    kept=lambda stored: stored,
    variants=lambda stored: [Variant(tour="")],
    next_step=lambda folder, _: f"groundup generate {shlex.quote(str(folder))}",
)
