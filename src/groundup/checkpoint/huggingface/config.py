"""``config.json`` of Hugging Face's models, in both directions, by the tables of ``checkpoint.families``."""

from pathlib import Path
from typing import Any

from groundup.checkpoint.companions import require_ids
from groundup.checkpoint.families import FAMILIES, family_of
from groundup.checkpoint.families.config_values import require_values
from groundup.checkpoint.families.family import unsupported
from groundup.core.errors import CheckpointError, ConfigError, DataError
from groundup.core.files import read_json
from groundup.models import ModelConfig, model_config_from


def architecture_of(config: ModelConfig) -> str:
    """The name of their class for a model of ours."""
    return family_of(config).huggingface.architecture(config)


def config_json(config: ModelConfig) -> dict[str, Any]:
    """The content of ``config.json``, without token ids and dtype."""
    return {
        "architectures": [architecture_of(config)],
        "vocab_size": config.vocab_size,
        "initializer_range": config.init_std,
        "tie_word_embeddings": config.tied_embedding,
        "use_cache": True,
        **family_of(config).huggingface.to_json(config),
    }


def read_config(path: Path) -> ModelConfig:
    """Our config of a ``config.json``.

    Raises:
        CheckpointError: It is of no family that is supported, or has an option that is not: names it.
    """
    try:
        theirs = read_json(path)
    except DataError as error:
        raise CheckpointError(error.what, where=error.where, fix=error.fix) from None
    kind = theirs.get("model_type") if isinstance(theirs, dict) else None
    tables = {name: family.huggingface for family in FAMILIES for name in family.huggingface.model_types}
    if not isinstance(kind, str) or kind not in tables:
        raise CheckpointError(
            f"model_type is {kind!r}; supported are {', '.join(tables)}",
            where=path,
            fix="Name a folder of one of these.",
        )
    if theirs.get("quantization_config"):
        raise unsupported(path, "quantization_config", theirs["quantization_config"], "none")
    table = tables[kind]
    require_values(theirs, path, required=table.required, values=table.values, multiples=table.multiples)
    try:
        return model_config_from(table.from_json(theirs, path), where=path)
    except KeyError as error:
        raise CheckpointError(f"{error.args[0]} is missing", where=path) from None
    except ConfigError as error:
        raise CheckpointError(f"describes no model: {error}", where=path) from None


def token_ids(path: Path) -> dict[str, Any]:
    """The ids of special tokens in a ``config.json``, which ``transformers`` takes where nothing else says.

    Raises:
        CheckpointError: One is no id.
    """
    theirs = read_json(path)
    found = {key: theirs.get(key) for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    for key, value in found.items():
        require_ids(key, value, path)
    return found
