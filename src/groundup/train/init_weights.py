"""What a new run begins with: random weights, or those of a model that is there already."""

import shlex
from pathlib import Path
from typing import Any

from groundup.checkpoint.formats import FORMATS, detect_format
from groundup.checkpoint.lazy import LazyModel
from groundup.checkpoint.logical_tensors import find_mismatch, logical_shapes, pad
from groundup.checkpoint.native.folder import resolve_checkpoint
from groundup.checkpoint.native.shards import checkpoint_name
from groundup.core.config import to_dict
from groundup.core.errors import CheckpointError, ConfigError
from groundup.core.log import logger
from groundup.core.vocabulary import require_same_tokenizer
from groundup.models.init import initialise
from groundup.parallel.dtensor import place
from groundup.parallel.mesh import ParallelMesh
from groundup.tokens.tokenizer.base import Tokenizer
from groundup.train.config import TrainConfig
from groundup.train.state import TrainState


def model_of(path: Path) -> dict[str, Any]:
    """The settings of the model in a folder, as a config has them under ``model``.

    Raises:
        CheckpointError: There is no model that training can start from.
    """
    return to_dict(_open(path).config)


def begin(state: TrainState, config: TrainConfig, mesh: ParallelMesh, tokenizer: Tokenizer) -> None:
    """Fills the weights of a new run; with ``start.state`` all that an earlier run knew.

    Args:
        state: With room for the weights.
        config: Of the run.
        mesh: This rank among the others.
        tokenizer: Of the data.

    Raises:
        CheckpointError: There is no such model, or it is another than the config's.
        ConfigError: The model was trained with another tokenizer.
    """
    path = config.start.path
    if path is None:
        initialise(state.model, config.model, seed=config.seed, place=place)
        _begin_average(state)
    elif config.start.state:
        found = detect_format(path)
        if not found.keeps_run:
            raise CheckpointError(
                f"{found.title} have weights only",
                where=path,
                fix="Leave out start.state, or name a checkpoint of groundup.",
            )
        _require_tokenizer(_open(path), tokenizer)
        folder = resolve_checkpoint(path)
        state.restore(folder, config, mesh)
        logger.info("going on from %s: step %d", folder, state.step)
    else:
        stored = _open(path)
        _place_weights(state, config, stored, tokenizer)
        _begin_average(state)
        logger.info("starting from the weights of %s", stored.source)


def _place_weights(state: TrainState, config: TrainConfig, stored: LazyModel, tokenizer: Tokenizer) -> None:
    _require_tokenizer(stored, tokenizer)
    if problems := find_mismatch(logical_shapes(config.model), stored.shapes):
        raise CheckpointError(
            f"does not fit the model of the config: {problems}",
            where=stored.source,
            fix="Leave `model` and `preset` out of the config: then the model is taken from start.path.",
        )
    for name, parameter in state.model.named_parameters():
        stored_as = checkpoint_name(name, config.model)
        value = stored.weights[stored_as].read().to(parameter.dtype)
        place(parameter.detach(), pad(stored_as, value, config.model))
    state.bos_ids = stored.bos_ids
    state.companions = stored.companions


def _require_tokenizer(stored: LazyModel, tokenizer: Tokenizer) -> None:
    source = shlex.quote(str(stored.source))
    require_same_tokenizer(
        stored.tokenizer.fingerprint,
        tokenizer.fingerprint,
        where=stored.source,
        what="has",
        other="the data was built with",
        fix=f"Build the data with the model's: groundup tokens build ... --tokenizer {source}",
        error=ConfigError,
    )
    if stored.tokenizer.end_of_document_id != tokenizer.end_of_document_id:
        logger.warning(
            "the documents of the data end with id %d, the model's tokenizer in %s ends a text with %d:"
            " generation will stop at the latter",
            tokenizer.end_of_document_id,
            stored.source,
            stored.tokenizer.end_of_document_id,
        )


def _begin_average(state: TrainState) -> None:
    if state.average:
        state.average.begin()


def _open(path: Path) -> LazyModel:
    found = detect_format(path)
    if not found.starts_training:
        titles = ", ".join(entry.title for entry in FORMATS if entry.starts_training)
        raise CheckpointError(
            f"training starts from {titles}",
            where=path,
            fix=f"Convert it first: groundup convert {shlex.quote(str(path))} OUT --to native",
        )
    return found.codec.open(path)
