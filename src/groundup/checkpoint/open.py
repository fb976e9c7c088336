"""Opens a model for use, whatever wrote it: a run folder, one of its checkpoints, a Hugging Face folder."""

from pathlib import Path

import torch

from groundup.checkpoint import store
from groundup.checkpoint.huggingface import read_huggingface
from groundup.checkpoint.loaded import LoadedModel
from groundup.checkpoint.logical import model_from
from groundup.core.errors import CheckpointError
from groundup.core.manifest import Manifest
from groundup.models import model_config_from
from groundup.tokens.tokenizer import load_tokenizer


def open_model(path: Path, *, device: torch.device) -> LoadedModel:
    """Loads weights (fp32), architecture and tokenizer; needs nothing but the path.

    Raises:
        CheckpointError: The path does not exist, holds no model, or the model is damaged.
    """
    if not path.exists():
        raise CheckpointError("no such file or folder", where=path, fix="Check the path.")
    if (path / "config.json").is_file():
        return read_huggingface(path, device=device)
    folder = store.resolve(path)
    manifest = Manifest.read(folder / "manifest.json", "checkpoint")
    config = model_config_from(manifest.about["config"]["model"], where=folder / "manifest.json")
    weights = store.load_weights(folder, device=device)
    tokenizer = load_tokenizer(store.tokenizer_dir(folder))
    if tokenizer.fingerprint != manifest.about["tokenizer"]:
        raise CheckpointError(
            f"its tokenizer is {tokenizer.fingerprint},"
            f" the model was trained with {manifest.about['tokenizer']}",
            where=folder,
        )
    model = model_from(config, weights, device=device, where=folder)
    return LoadedModel(config=config, model=model, tokenizer=tokenizer, source=folder)
