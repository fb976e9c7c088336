"""The config of a fine-tuning: that of a training run, and what is learned in it.

A stage joins by one file beside this one and one member of ``Stage``. The file holds a ``@config`` class
with a ``kind`` and two methods:

- ``defaults(model)``, settings of the run (a tree, as YAML has them) that stand below the user's own;
- ``learning(run)``, the ``Learning`` that ``train.loop.train`` is given: see ``groundup.train.learning``.

Whatever does not fit the stage (a layout, a packing) it refuses in ``learning``, with a ``ConfigError``.
"""

import typing
from collections.abc import Mapping
from typing import Annotated, Any

from groundup.core.config import ByKind, config
from groundup.finetune.grpo import Grpo
from groundup.finetune.pretrain import Pretrain
from groundup.train.config import TrainConfig
from groundup.train.learning import Learning

Stage = Annotated[Pretrain | Grpo, ByKind]


@config
class FinetuneConfig(TrainConfig):
    """A fine-tuning.

    Attributes:
        stage: What is learned, by kind.
    """

    stage: Stage = Pretrain()

    def learning(self) -> Learning:
        """Returns what the training loop is given.

        Raises:
            GroundupError: The stage cannot be done with these settings.
        """
        return self.stage.learning(self)


def stage_defaults(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings that the stage of a config's tree has other defaults for."""
    given = tree.get("stage")
    kind = given.get("kind", "pretrain") if isinstance(given, Mapping) else "pretrain"
    stages = typing.get_args(typing.get_args(Stage)[0])
    members = [one for one in stages if getattr(one, "kind", None) == kind]
    model = tree.get("model")
    return members[0].defaults(model if isinstance(model, Mapping) else {}) if members else {}
