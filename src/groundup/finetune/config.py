"""The config of a fine-tuning: that of a training run, and what is learned in it.

A stage joins by one file beside this one and one member of ``Stage``. The file holds a ``@config`` class
with a ``kind`` and three methods:

- ``defaults(tree)``, settings of the run (a tree, as YAML has them) that stand below the user's own;
- ``completed(run)``, the config with what model and data decide (a vocabulary that grows, a number of steps);
- ``learning(run)``, the ``Learning`` that ``train.loop.train`` is given: see ``groundup.train.learning``.

Whatever does not fit the stage (a layout, a packing) it refuses in ``completed``, with a ``ConfigError``.
"""

import dataclasses
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from groundup.core.config import ByKind, config
from groundup.corpus.sources import content_ending
from groundup.finetune.dpo import Dpo
from groundup.finetune.grpo import Grpo
from groundup.finetune.int8_base import round_base
from groundup.finetune.lora import LoraConfig, adapters_of
from groundup.finetune.pretrain import Pretrain
from groundup.finetune.sft import Sft
from groundup.train.config import TrainConfig
from groundup.train.learning import Learning
from groundup.train.setup import Run

Stage = Annotated[Pretrain | Sft | Dpo | Grpo, ByKind]

_OF_RECORDS = (".jsonl", ".ndjson", ".json", ".parquet", ".arrow")


@config
class FinetuneConfig(TrainConfig):
    """A fine-tuning.

    Attributes:
        stage: What is learned, by kind.
        lora: Low-rank adapters, trained instead of the weights.
    """

    stage: Stage = Pretrain()
    lora: LoraConfig = LoraConfig()

    def completed(self) -> "FinetuneConfig":
        """Returns the config with what model and data decide.

        Raises:
            GroundupError: The stage cannot be done with these settings.
        """
        return self.stage.completed(self)

    def learning(self) -> Learning:
        """Returns what the training loop is given.

        Raises:
            GroundupError: The stage cannot be done with these settings.
        """
        learning = self.stage.learning(self)
        if not self.lora.rank:
            return learning
        adapters = adapters_of(self, self.lora, learning.change_start)
        begin = learning.begin

        def begin_rounded(present: Run) -> None:
            round_base(present.state.model)
            if begin:
                begin(present)

        rounds = self.lora.base_weights == "int8"
        return dataclasses.replace(learning, adapters=adapters, begin=begin_rounded if rounds else begin)


def stage_defaults(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings that the stage of a config's tree has other defaults for.

    Where the tree names no stage, files of records mean ``sft``.
    """
    given = tree.get("stage")
    kind = given.get("kind") if isinstance(given, Mapping) else None
    if kind is None:
        kind = Sft.kind if _is_of_records(tree) else Pretrain.kind
    members = {one.kind: one for one in typing.get_args(typing.get_args(Stage)[0])}
    settings = members[kind].defaults(tree) if kind in members else {}
    return {"stage": {"kind": kind}, **settings}


def _is_of_records(tree: Mapping[str, Any]) -> bool:
    data = tree.get("data")
    sources = data.get("sources") if isinstance(data, Mapping) else None
    given = [data.get("path")] if isinstance(data, Mapping) else []
    if isinstance(sources, Mapping):
        given += [one.get("path") for one in sources.values() if isinstance(one, Mapping)]
    return any(content_ending(Path(path)) in _OF_RECORDS for path in given if isinstance(path, str))
