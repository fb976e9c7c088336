"""From a command line of Megatron-LM's ``pretrain_gpt.py`` to the config of a training run."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from groundup.checkpoint.native.contents import read_checkpoint_manifest
from groundup.core.config import Resolved, from_tree
from groundup.core.config_sources import Tree
from groundup.launch.env import RankInfo
from groundup.megatron.batch_flags import put_batches, put_layout, put_schedule
from groundup.megatron.begin_from import Beginning, find_beginning, model_args
from groundup.megatron.data_flags import put_data
from groundup.megatron.model_flags import put_model
from groundup.megatron.parse_flags import parse_flags
from groundup.megatron.run_flags import put_checkpoints, put_memory, put_optimizer, put_reports
from groundup.megatron.setting_tree import Settings
from groundup.tokens.tokenizer.base import Tokenizer
from groundup.train.config import TrainConfig
from groundup.train.init_weights import open_start


@dataclasses.dataclass(frozen=True)
class Pretraining:
    """What a command line asks for.

    Attributes:
        tree: Settings of a run.
        origins: The flags that each was made of.
        deepspeed: A config of DeepSpeed's that wins over them; None for none.
        max_restarts: After failures.
    """

    tree: Tree
    origins: dict[str, str]
    deepspeed: Path | None
    max_restarts: int

    def config(self) -> Resolved[TrainConfig]:
        """The checked config.

        Raises:
            ConfigError: With the flags whose values cannot be.
        """
        return Resolved(from_tree(TrainConfig, self.tree, self.origins), self.origins)


def read_pretrain_gpt(words: Sequence[str], rank: RankInfo | None) -> Pretraining:
    """Reads the flags of ``pretrain_gpt.py``, with Megatron-LM's defaults and rules.

    Args:
        words: As they are typed behind the script's name.
        rank: Of this process; None where it is alone, or starts the ranks.

    Raises:
        ConfigError: With what is wrong with the flags.
        DataError: The data or its tokenizer is not there.
        CheckpointError: What ``--load`` names cannot be loaded.
    """
    given = parse_flags(words)
    beginning = find_beginning(given)
    if given["use_checkpoint_args"] and given["load"] and (beginning.path or beginning.newest):
        given = given.with_values(model_args(beginning, Path(given["load"])), "--use-checkpoint-args")
    settings = Settings(given)
    settings.copy_plain()
    dp = put_layout(settings, rank)
    sizes, num_steps = put_batches(settings, dp)
    beginning = beginning.of_length(num_steps)
    tokenizer = put_data(settings, Path(given["save"]))
    model = put_model(settings, *_vocabulary(beginning, tokenizer))
    put_optimizer(settings)
    put_schedule(settings, sizes, num_steps)
    put_memory(settings)
    put_reports(settings)
    put_checkpoints(settings, model, beginning, num_steps)
    deepspeed = Path(given["deepspeed_config"]) if given["deepspeed_config"] else None
    return Pretraining(settings.tree, settings.origins, deepspeed, given["max_restarts"])


def _vocabulary(beginning: Beginning, tokenizer: Tokenizer) -> tuple[int, str]:
    """The number of ids of the model, and what has so many.

    A run that goes on from Megatron-LM's state keeps the rows that fill up the vocabulary, which its loss
    counts; one that was written here for Megatron-LM says how many ids there truly are.
    """
    if beginning.newest is not None:
        model = read_checkpoint_manifest(beginning.newest).about.config["model"]
        return model["vocab_size"], f"the run in {beginning.run_dir}"
    if beginning.path is None:
        return tokenizer.vocab_size, "the tokenizer"
    rows = beginning.args.get("padded_vocab_size")
    if beginning.state and isinstance(rows, int) and "true_vocab_size" not in beginning.args:
        return rows, f"{beginning.path}, with the rows that fill it up"
    return open_start(beginning.path, tokenizer).config.vocab_size, f"the model of {beginning.path}"
