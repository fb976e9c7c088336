"""The settings of an adapter of PEFT, of which only those are taken that compute what ours do."""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from groundup.core.errors import CheckpointError
from groundup.core.files import read_json

ADAPTER = "adapter_config.json"
"""In a folder that holds an adapter of PEFT, not a model."""

_ONLY: Mapping[str, Any] = {
    "peft_type": "LORA",
    "bias": "none",
    **dict.fromkeys(("use_dora", "lora_bias", "use_qalora", "use_bdlora"), False),
    **dict.fromkeys(
        ("modules_to_save", "trainable_token_indices", "layer_replication", "target_parameters",
         "alora_invocation_tokens", "arrow_config", "kasa_config", "monteclora_config", "velora_config"),
        None,
    ),
}  # fmt: skip
"""Settings of PEFT that change what an adapter computes, with the only value that ours have."""
_CHANGES_BASE = ("pissa", "olora", "loftq", "corda", "lora_ga")
"""Ways to begin (``init_lora_weights``) that change the base's weights too."""


def base_of(folder: Path) -> Path:
    """Returns the folder of the base model that an adapter names.

    Raises:
        CheckpointError: It names none, or one that is not here.
    """
    named = str(read_settings(folder).get("base_model_name_or_path") or "")
    found = [path for path in (Path(named), folder.parent / named) if named and path.exists()]
    if not found:
        raise CheckpointError(
            f"is an adapter of {named or 'a model that it does not name'}, which is not here",
            where=folder,
            fix=f"Name the base model, and this with --adapter {folder}.",
        )
    return found[0]


def read_settings(folder: Path) -> dict[str, Any]:
    """Reads ``adapter_config.json``.

    Raises:
        CheckpointError: It is malformed, or of an adapter that computes something else than a plain LoRA.
    """
    settings = read_json(folder / ADAPTER)
    if not isinstance(settings, dict) or settings.get("peft_type", "LORA") != "LORA":
        kind = settings.get("peft_type") if isinstance(settings, dict) else "no object"
        raise CheckpointError(f"peft_type {kind!r} is not supported, only LORA", where=folder / ADAPTER)
    _require_supported(settings, folder)
    return settings


def _require_supported(settings: Mapping[str, Any], folder: Path) -> None:
    where = folder / ADAPTER
    for key, value in _ONLY.items():
        if (settings.get(key) or value) != value:
            raise CheckpointError(
                f"{key} = {settings[key]!r} is not supported, only {value!r}",
                where=where,
                fix="Merge it with PEFT (merge_and_unload), and open what that saves.",
            )
    _require_pattern(settings.get("alpha_pattern") or {}, where)
    begun = settings.get("init_lora_weights")
    if isinstance(begun, str) and begun.startswith(_CHANGES_BASE):
        raise CheckpointError(
            f"init_lora_weights = {begun!r} has changed the base's weights too, which are not in the adapter",
            where=where,
            fix="Convert it with PEFT: save_pretrained(..., path_initial_model_for_weight_conversion=...).",
        )
    rank, alpha = settings.get("r"), settings.get("lora_alpha")
    if type(rank) is not int or rank < 1 or not isinstance(alpha, int | float) or not 0 < alpha < math.inf:
        raise CheckpointError(
            f"r = {rank!r} and lora_alpha = {alpha!r} are no rank and no number", where=where
        )


def _require_pattern(pattern: Any, where: Path) -> None:
    try:
        given = {re.compile(key): float(value) for key, value in pattern.items()}
    except (AttributeError, TypeError, ValueError, re.error) as error:
        raise CheckpointError(
            f"alpha_pattern has no patterns with a number each ({error})", where=where
        ) from None
    if not all(0 < value < math.inf for value in given.values()):
        raise CheckpointError("alpha_pattern has a number that is not above 0", where=where)
