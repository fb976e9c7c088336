"""What a run trains on, as a config."""

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from groundup.core.config import config
from groundup.core.config_class import NotNegative, Size


@config
class SourceConfig:
    """One source of a mixture.

    Attributes:
        path: As ``DataConfig.path``.
        weight: Its share of the samples, relative to the other sources' weights, or "proportional" to its
            size; all sources of a mixture say it in the same way. A source of weight 0 is not read.
        split: Its own shares of train, validation and test; "" for those of the data.
        max_epochs: At most so many passes over its training split; 0 for any number.
    """

    path: Path
    weight: float | Literal["proportional"] = "proportional"
    split: str = ""
    max_epochs: NotNegative = 0

    def __post_init__(self) -> None:
        """Checks the weight."""
        if self.weight != "proportional" and not 0 <= self.weight < math.inf:
            raise ValueError(f"the weight of a source is at least 0, not {self.weight}")


@config
class DataConfig:
    """What to train on: one ``path``, or several ``sources``.

    Attributes:
        path: Prefix of ``.bin`` and ``.idx`` files, with or without the ending; or a folder or quoted glob
            of these, or of the shards of build-nanogpt (``.npy``) or llm.c (``.bin``), whose names may say
            which are for training and which for validation.
        sources: Several of these, mixed: name -> source.
        validation: Sources of validation alone; then training uses all that ``split`` would give it.
        test: Sources of the test alone, likewise.
        tokenizer: Folder of its tokenizer, for data that Megatron-LM or others wrote; ours knows its own.
        opening_id: The id that opens each document of shards without an index, where it is not the
            tokenizer's end of document (llm.c's Llama 3 shards: 128000).
        split: Shares of train, validation and test over the documents.
        sequence_length: Tokens predicted in one sample.
        max_epochs: At most so many passes over the training split; 0 for any number.
        order: Of training samples: "seeded", a bijection computed from the seed alone; or, for continuing
            a run that Megatron-LM began, its own splits, shuffle and blend, which depend on the run's length
            and hold for validation and test too: "megatron" as of 2023, "megatron_core" as of 2026.
        planned_samples: Of training, by which Megatron-LM's order is made: its ``--train-samples``, or those
            of its ``--train-iters`` where fewer steps are made here; 0 for those of the run.
        packing: "stream" cuts samples out of the documents laid behind each other; "best_fit" fits whole
            documents into samples, as far as they go, and pads what is left.
        mask_documents: Keep attention within a document and begin its positions at 0.
    """

    path: Path | None = None
    sources: dict[str, SourceConfig] = dataclasses.field(default_factory=dict)
    validation: dict[str, SourceConfig] = dataclasses.field(default_factory=dict)
    test: dict[str, SourceConfig] = dataclasses.field(default_factory=dict)
    tokenizer: Path | None = None
    opening_id: NotNegative | None = None
    split: str = "969,30,1"
    sequence_length: Size = 1024
    max_epochs: NotNegative = 0
    order: Literal["seeded", "megatron", "megatron_core"] = "seeded"
    planned_samples: NotNegative = 0
    packing: Literal["stream", "best_fit"] = "stream"
    mask_documents: bool = False

    def __post_init__(self) -> None:
        """Checks the settings against each other."""
        if (self.path is None) == (not self.sources):
            raise ValueError("data has either a path, or sources: name one of them")
        for name in ("sources", "validation", "test"):
            _check_weights(name, getattr(self, name))
        if self.order != "seeded" and self.packing != "stream":
            raise ValueError(f'order "{self.order}" is of documents that are not packed: packing is "stream"')
        if self.order == "seeded" and self.planned_samples:
            raise ValueError('planned_samples has no effect on order "seeded", which no length decides')
        for name in ("sources", "validation", "test"):
            sources = getattr(self, name)
            if self.order == "megatron" and len(sources) > 1 and "proportional" in _weights(sources):
                raise ValueError(
                    f'order "megatron" needs a weight for each of {name}: a blend without weights is newer'
                    ' (order "megatron_core")'
                )

    @property
    def training(self) -> dict[str, SourceConfig]:
        """The sources of training by their dotted keys, at least one."""
        if self.path is not None:
            return {"data": SourceConfig(path=self.path, max_epochs=self.max_epochs)}
        return {f"data.sources.{name}": source for name, source in self.sources.items()}

    @property
    def paths(self) -> tuple[Path, ...]:
        """Of all sources."""
        every = (*self.training.values(), *self.validation.values(), *self.test.values())
        return tuple(source.path for source in every)


def _weights(sources: Mapping[str, SourceConfig]) -> list[float | str]:
    return [source.weight for source in sources.values()]


def _check_weights(name: str, sources: Mapping[str, SourceConfig]) -> None:
    weights = _weights(sources)
    if "proportional" in weights and set(weights) != {"proportional"}:
        raise ValueError(f'either each of {name} has a weight, or each is "proportional"')
    if weights and not any(weights):
        raise ValueError(f"the weights of {name} are all 0")
