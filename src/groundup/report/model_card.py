"""Model cards: the ``README.md`` of a Hugging Face folder, with what the records of a model's making say.

Whatever no record tells is said to be unknown. Of paths, only names are told: see ``card_text.place``.
"""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from groundup import __version__
from groundup.checkpoint.lazy import LazyModel, dtype_name
from groundup.checkpoint.low_rank import AdapterAbout
from groundup.core.config import to_dict
from groundup.core.progress import human_count
from groundup.models.count import num_parameters
from groundup.report.card_data import corpora_of, data_of, languages_of, names_of_stage
from groundup.report.card_limits import limits
from groundup.report.card_scores import evaluation, model_index
from groundup.report.card_stages import CardStage, stage_rows, stage_settings, stages_to
from groundup.report.card_text import bullets, code, hub_id, place, table
from groundup.report.card_usage import usage

_MARK = "<!-- Written by groundup from the records of the run. -->"
_TAGS = {"sft": ("sft", "conversational"), "dpo": ("dpo",), "grpo": ("grpo",)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class CardOptions:
    """What a user says of a model.

    Attributes:
        name: Of the folder, or ``user/name`` on the hub.
        command: That writes the folder.
        license: As the hub has it: ``apache-2.0``; empty for none.
        languages: As the hub has them: ``en``, ``zh``, ``code``; none takes those found in the data.
        base_model: ``user/name`` on the hub of the model that it began with; empty for none.
        datasets: ``user/name`` on the hub of what it learned from.
    """

    name: str
    command: str
    license: str = ""
    languages: tuple[str, ...] = ()
    base_model: str = ""
    datasets: tuple[str, ...] = ()


def model_card(
    stored: LazyModel,
    options: CardOptions,
    *,
    adapter: AdapterAbout | None = None,
    merged: Path | None = None,
) -> str:
    """The card of a model that is written as a Hugging Face folder.

    Args:
        stored: The model, as it is written.
        options: What the user says of it.
        adapter: The card is of this adapter alone, which makes the model of its base.
        merged: Folder of an adapter that was merged into the model.
    """
    stages = stages_to(merged or stored.source)
    base = options.base_model or _base_on_hub(stages, adapter) or ""
    languages = options.languages or tuple(
        languages_of([one for stage in stages for one in corpora_of(stage)])
    )
    parts = [
        _MARK + "\n\n",
        f"# {options.name.rpartition('/')[2]}\n\n",
        _abstract(stored, stages, adapter, base),
        "## Architecture\n\n" + table(("", ""), _architecture(stored, adapter)),
        "## How to use it\n\n" + usage(stored, options.name, adapter, base),
        "## Data\n\n" + _data(stages),
        "## Training\n\n" + _training(stages, stored),
        "## Evaluation\n\n" + evaluation(stages[-1:]),
        "## Limits\n\n" + bullets(limits(stored, stages, languages)),
        "## License\n\n" + (f"{options.license}.\n\n" if options.license else "None was named.\n\n"),
        "## How this was written\n\n" + _origin(stored, options),
    ]
    metadata = _metadata(stored, options, stages, base, languages, adapter)
    front = yaml.safe_dump(metadata, sort_keys=False, allow_unicode=True, width=110)
    return f"---\n{front}---\n\n" + "".join(parts).rstrip() + "\n"


def _metadata(
    stored: LazyModel,
    options: CardOptions,
    stages: list[CardStage],
    base: str,
    languages: tuple[str, ...],
    adapter: AdapterAbout | None,
) -> dict[str, Any]:
    tags = ["groundup", stored.config.kind]
    for stage in stages:
        tags += [tag for tag in (*_TAGS.get(stage.kind, ()), *(("lora",) if stage.rank else ())) if tag]
    found: dict[str, Any] = {
        "license": options.license,
        "language": list(languages),
        "library_name": "peft" if adapter else "transformers",
        "pipeline_tag": "text-generation",
        "base_model": base,
        "base_model_relation": ("adapter" if adapter else "finetune") if base else "",
        "datasets": list(options.datasets),
        "tags": list(dict.fromkeys(tags)),
        "model-index": model_index(stages[-1:], options.name.rpartition("/")[2]),
    }
    return {key: value for key, value in found.items() if value}


def _base_on_hub(stages: list[CardStage], adapter: AdapterAbout | None) -> str | None:
    """The hub's name of the model that all began with, where its path tells."""
    began = stages[0].base if stages else adapter.base if adapter else ""
    return hub_id(began) if began else None


def _abstract(stored: LazyModel, stages: list[CardStage], adapter: AdapterAbout | None, base: str) -> str:
    size = human_count(num_parameters(stored.config))
    what = f"A language model of {size} parameters ({stored.config.kind}'s architecture)"
    if adapter:
        name = base or place(adapter.base)
        what = f"An adapter (LoRA) of rank {adapter.rank} of `{name}`, a language model of {size} parameters"
    if not stages:
        return f"{what}. Where its weights come from is not known here.\n\n"
    steps = []
    for stage in stages:
        did = stage.title[0].lower() + stage.title[1:]
        steps.append(f"{did} on {names_of_stage(stage) or 'data that no record names'}")
    begun = stages[0].base
    start = (
        f"It began with the weights of `{base or place(begun)}`" if begun else "It began with random weights"
    )
    return f"{what}. {start}; then: {'; '.join(steps)}.\n\n"


def _architecture(stored: LazyModel, adapter: AdapterAbout | None) -> Iterator[tuple[str, str]]:
    config = stored.config
    yield "family", config.kind
    yield "parameters", f"{num_parameters(config):,}"
    if adapter:
        scale = "sqrt(rank)" if adapter.rslora else "rank"
        yield (
            "adapter",
            f"rank {adapter.rank}, alpha {adapter.alpha:g} over {scale}, dropout {adapter.dropout:g}",
        )
    yield "context", f"{config.max_sequence_length:,} tokens"
    yield "vocabulary", f"{config.vocab_size:,} ids"
    tokenizer = stored.tokenizer
    yield (
        "tokenizer",
        f"{tokenizer.kind}, {tokenizer.vocab_size:,} ids, fingerprint `{tokenizer.fingerprint}`",
    )
    yield "chat template", "yes" if stored.companions.chat_template else "none"
    dtypes = sorted({dtype_name(tensor.dtype) for tensor in stored.weights.values()})
    yield "weights", "float32" if adapter else " and ".join(dtypes)
    left_out = ("kind", "vocab_size", "max_sequence_length")
    for name, value in to_dict(config).items():
        if name not in left_out and value is not None:
            yield name.replace("_", " "), str(value)


def _data(stages: list[CardStage]) -> str:
    if not stages:
        return "Not known: no record of a training run came with these weights.\n\n"
    return "".join(_heading(number, stage, stages) + data_of(stage) for number, stage in enumerate(stages, 1))


def _training(stages: list[CardStage], stored: LazyModel) -> str:
    if not stages:
        step = f" They are of step {stored.step:,} of their training." if stored.step else ""
        return f"Not known: no record of a training run came with these weights.{step}\n\n"
    begun = stages[0].base
    parts = []
    if begun:
        parts.append(f"How `{hub_id(begun) or place(begun)}` was trained is not known here.\n\n")
    for number, stage in enumerate(stages, 1):
        settings = code(stage_settings(stage), "text")
        parts += [
            _heading(number, stage, stages),
            table(("", ""), stage_rows(stage)),
            f"<details><summary>Settings</summary>\n\n{settings}</details>\n\n",
        ]
    return "".join(parts)


def _heading(number: int, stage: CardStage, stages: list[CardStage]) -> str:
    return f"### {number}. {stage.title}\n\n" if len(stages) > 1 else f"### {stage.title}\n\n"


def _origin(stored: LazyModel, options: CardOptions) -> str:
    step = f", step {stored.step:,}" if stored.step else ""
    return (
        code(options.command, "bash")
        + f"By groundup {__version__}, from `{place(stored.source)}`{step}. What is not told above is in no"
        " record that lay beside the weights.\n"
    )
