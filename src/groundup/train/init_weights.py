"""What a new run begins with: random weights, or those of a model that is there already."""

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from groundup.checkpoint.formats import CheckpointFormat, detect_format
from groundup.checkpoint.lazy import LazyModel, NoTokenizer
from groundup.checkpoint.logical_tensors import find_mismatch, is_of_adapter, logical_shapes, pad
from groundup.checkpoint.megatron.optimizer import ENTRIES
from groundup.checkpoint.native.folder import resolve_checkpoint
from groundup.checkpoint.native.shards import checkpoint_name
from groundup.core.config import to_dict
from groundup.core.errors import CheckpointError, ConfigError
from groundup.core.log import logger
from groundup.core.vocabulary import require_same_tokenizer
from groundup.models import Model
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
    return to_dict(open_start(path).config)


def begin(
    state: TrainState,
    config: TrainConfig,
    mesh: ParallelMesh,
    tokenizer: Tokenizer,
    *,
    change_start: Callable[[LazyModel], LazyModel] | None = None,
    fill: Callable[[Model], None] | None = None,
) -> None:
    """Fills the weights of a new run; with ``start.state`` all that an earlier run knew.

    Args:
        state: With room for the weights.
        config: Of the run.
        mesh: This rank among the others.
        tokenizer: Of the data.
        change_start: Changes the model of ``start.path``, without ``start.state``: see ``train.learning``.
        fill: Gives adapters their initial values.

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
        stored = open_start(path, tokenizer, moments=True, vocab_size=config.model.vocab_size)
        if found.keeps_run:
            _require_tokenizer(stored, tokenizer)
            state.restore(resolve_checkpoint(path), config, mesh)
        else:
            _require_state(stored, found, config)
            _place_weights(state, config, stored, tokenizer)
            _place_progress(state, config, stored)
            _begin_average(state)
        logger.info("going on from %s: step %d", stored.source, state.step)
    else:
        source = place_start(state, config, tokenizer, change_start)
        if fill:
            fill(state.model)
        _begin_average(state)
        logger.info("starting from the weights of %s", source)


def place_start(
    state: TrainState,
    config: TrainConfig,
    tokenizer: Tokenizer,
    change_start: Callable[[LazyModel], LazyModel] | None,
) -> Path:
    """Fills the weights with those of ``start.path``, but for adapters, which it does not have.

    Returns:
        The folder that they were read from.

    Raises:
        CheckpointError, ConfigError: As ``begin``.
    """
    assert config.start.path is not None, "there is a model to begin with"
    if change_start:
        stored = change_start(open_start(config.start.path))
    else:
        stored = open_start(config.start.path, tokenizer, vocab_size=config.model.vocab_size)
    _place_weights(state, config, stored, tokenizer)
    return stored.source


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
        if is_of_adapter(name):
            continue
        value = stored.weights[stored_as].read().to(parameter.dtype)
        place(parameter.detach(), pad(stored_as, value, config.model))
    state.bos_ids = stored.bos_ids
    state.companions = stored.companions


def _require_state(stored: LazyModel, found: CheckpointFormat, config: TrainConfig) -> None:
    """Refuses a checkpoint of another project that does not hold all that a run goes on with."""
    if not found.keeps_optimizer:
        raise CheckpointError(
            f"{found.title} have weights only",
            where=stored.source,
            fix="Leave out start.state, or name a checkpoint of groundup.",
        )
    if not (stored.moments and stored.step and stored.samples):
        raise CheckpointError(
            "holds no state of an optimizer, or does not tell its step and samples",
            where=stored.source,
            fix="Leave out start.state: then its weights begin a run.",
        )
    if config.optimizer.kind != "adamw":
        raise CheckpointError(
            f"holds the state of an AdamW, and optimizer.kind is {config.optimizer.kind}",
            where=stored.source,
            fix="Set optimizer.kind=adamw, or leave out start.state.",
        )


def _place_progress(state: TrainState, config: TrainConfig, stored: LazyModel) -> None:
    """Moments of the optimizer, and where the run stands."""
    entries: dict[str, dict[str, tuple[torch.dtype, tuple[int, ...]]]] = {}
    for name, _ in state.model.named_parameters():
        stored_as = checkpoint_name(name, config.model)
        held = {entry: stored.moments[f"{stored_as}/{entry}"] for entry in ("step", *ENTRIES)}
        entries[name] = {entry: (tensor.dtype, tensor.shape) for entry, tensor in held.items()}
    updates = 0
    for key, moment in state.optimizers.make_room(entries).items():
        name, _, entry = key.rpartition("/")
        stored_as = checkpoint_name(name, config.model)
        value = stored.moments[f"{stored_as}/{entry}"].read()
        if entry == "step":
            updates = int(value)
            moment.copy_(value)
        else:
            place(moment, pad(stored_as, value.to(moment.dtype), config.model))
    state.step, state.samples = stored.step, stored.samples
    state.tokens = stored.samples * config.data.sequence_length
    state.skipped_steps = max(0, stored.step - updates)
    state.updated_samples = stored.samples if stored.updated_samples is None else stored.updated_samples
    if state.scaler and stored.loss_scale:
        state.scaler.load({**state.scaler.state(), **stored.loss_scale})


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


def open_start(
    path: Path,
    tokenizer: Tokenizer | None = None,
    *,
    moments: bool = False,
    vocab_size: int | None = None,
) -> LazyModel:
    """Opens the model that a run is to begin with, of any format.

    Args:
        path: As ``start.path``.
        tokenizer: For a model that comes without one.
        vocab_size: Rows of the vocabulary to keep, of a format that has more; None for the true ones.
        moments: Whether to open the optimizer's state too.

    Raises:
        CheckpointError: There is no such model.
        NoTokenizer: It has no tokenizer, and none is given.
    """
    found = detect_format(path)
    wanted: dict[str, Any] = {"moments": moments or None, "vocab_size": vocab_size}
    options = {name: wanted[name] for name in wanted.keys() & found.open_options if wanted[name] is not None}
    try:
        return found.codec.open(path, **options)
    except NoTokenizer:
        if tokenizer is None:
            raise
        return found.codec.open(path, tokenizer=tokenizer, **options)
