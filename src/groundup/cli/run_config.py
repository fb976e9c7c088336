"""The config that a command line gives a training run, and the presets that it may begin with."""

import dataclasses
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from groundup.core.errors import ConfigError, DataError

if TYPE_CHECKING:
    from groundup.core.config import Resolved
    from groundup.core.config_sources import Layer, Tree
    from groundup.train.config import TrainConfig

OF_TOKENIZER = "the tokenizer of "
"""What the origin of a vocabulary begins with that is not the preset's."""

_VOCABULARY = "model.vocab_size"


def presets() -> dict[str, Path]:
    """The configs that come with groundup: name -> YAML file."""
    folder = Path(str(files("groundup") / "presets"))
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def file_and_overrides(first: Path | None, overrides: Sequence[str]) -> tuple[Path | None, Sequence[str]]:
    """Tells the config file from the overrides: the first word of a command line may be either."""
    return (None, (str(first), *overrides)) if first is not None and "=" in str(first) else (first, overrides)


def run_config(
    file: Path | None,
    overrides: Sequence[str],
    *,
    deepspeed: Path | None = None,
    finetunes: bool = False,
) -> "Resolved[TrainConfig]":
    """Resolves the config of presets, a file and overrides; ``start.path``, where given, tells the model.

    A model of a preset has the vocabulary of the data's tokenizer.

    Args:
        file: YAML file, or the first override.
        overrides: Settings as dotted.key=value, which win over the file.
        deepspeed: A DeepSpeed config, which wins over the file and not over the overrides.
        finetunes: The config is a ``FinetuneConfig``, with the defaults of its stage.

    Raises:
        ConfigError: With all problems found.
        CheckpointError: There is no model at ``start.path``.
    """
    from groundup.core.config import Resolved, from_tree
    from groundup.core.config_sources import leaves, merge, merged

    file, overrides = file_and_overrides(file, overrides)
    if file is None and not overrides and deepspeed is None:
        raise ConfigError("there is nothing to train yet", fix=_how_to_begin())
    over_file = _of_deepspeed(deepspeed, file, overrides) if deepspeed else ({}, {})
    tree, origins = merged(file, overrides, presets(), _model_of_start, over_file)
    from groundup.train.config import TrainConfig  # imports torch: not before the file is found

    cls: type[TrainConfig] = TrainConfig
    if finetunes:
        from groundup.finetune.config import FinetuneConfig, stage_defaults

        cls, defaults = FinetuneConfig, stage_defaults(tree)
        origins = {key: "default of the stage" for key, _ in leaves(defaults)} | origins
        merge(defaults, tree)
        tree = defaults
    try:
        config = from_tree(cls, tree, origins).completed()
    except ConfigError as error:
        if "model" in tree:
            raise
        raise ConfigError(f"{error}\n{_how_to_begin()}") from None
    return _with_vocabulary_of_data(Resolved(config, origins))


def _of_deepspeed(
    path: Path, file: Path | None, overrides: Sequence[str]
) -> "tuple[Tree, Mapping[str, str]]":
    """Translates DeepSpeed's config for the ranks that there are; tells once what has no counterpart."""
    from groundup.core.config_sources import merged
    from groundup.core.log import logger
    from groundup.deepspeed.translate import ranks_of_a_copy, translate
    from groundup.launch.env import launcher_pipe, own_rank, rank_from_env

    layout = merged(file, overrides, presets())[0].get("layout", {})
    rank = rank_from_env()
    launched = rank.world_size // ranks_of_a_copy(path, layout) if rank else None
    settings = translate(path, ranks=layout.get("dp") or launched, assumed=1)
    if launcher_pipe() is None and own_rank() == 0:
        for note in settings.notes:
            if not note.is_harmless:
                logger.warning("%s", note)
    return settings.tree, settings.origins


def _how_to_begin() -> str:
    return (
        "Begin with a preset: groundup train preset=tiny run_dir=runs/a data.path=PREFIX, PREFIX being what"
        f" `groundup tokens build` wrote. Presets: {', '.join(presets())}; `groundup train --help` says more."
    )


def _with_vocabulary_of_data(resolved: "Resolved[TrainConfig]") -> "Resolved[TrainConfig]":
    from groundup.core.config import Resolved
    from groundup.tokens.sampling.splits import tokenizer_of_data

    config, origins = resolved.value, resolved.origins
    if not origins.get(_VOCABULARY, "").startswith("preset "):
        return resolved
    try:
        vocab_size = tokenizer_of_data(config.data).vocab_size
    except DataError:  # the config can be shown without the data; whoever opens it says what is wrong
        return resolved
    if vocab_size == config.model.vocab_size:
        return resolved
    model = dataclasses.replace(config.model, vocab_size=vocab_size)
    origin = f"{OF_TOKENIZER}{config.data.paths[0]} ({origins[_VOCABULARY]}: {config.model.vocab_size})"
    return Resolved(dataclasses.replace(config, model=model), {**origins, _VOCABULARY: origin})


def _model_of_start(given: Mapping[str, Any]) -> "Layer | None":
    start = given.get("start")
    path = start.get("path") if isinstance(start, Mapping) else None
    if not isinstance(path, str):
        return None
    from groundup.checkpoint.lazy import NoTokenizer
    from groundup.train.init_weights import model_of

    try:
        return {"model": model_of(Path(path))}, f"the model of {path}"
    except NoTokenizer:
        model = given.get("model")
        if isinstance(model, Mapping) and "kind" in model:  # it is told in full
            return None
        raise
