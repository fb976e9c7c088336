"""``groundup finetune``."""

import json
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from groundup.cli.options import ConfigFile, Override
from groundup.cli.run_config import file_and_overrides, run_config
from groundup.cli.train import MaxRestarts, PrintConfig, train_resolved
from groundup.core.errors import ConfigError

_ADAPTER = "adapter"

Data = Annotated[Path | None, Parameter(help="What to train on: data.path in the config.")]


def finetune(
    model: Path,
    config: ConfigFile = None,
    *overrides: Override,
    data: Data = None,
    print_config: PrintConfig = False,
    max_restarts: MaxRestarts = 0,
) -> None:
    """Train a model further, from the weights in a folder: `groundup train` with start.path=MODEL.

    The architecture is the model's; everything else is given as for `groundup train`. Token files must be
    tokenized with the model's own tokenizer, which the folder holds too.

    For example:

        groundup tokens build new.jsonl --prefix data/new --tokenizer smollm

        groundup finetune smollm finetune.yaml optimizer.lr=2e-5

        groundup finetune smollm run_dir=runs/a --data data/new_text_document num_steps=500

    Args:
        model: A run folder or one of its checkpoints, a Hugging Face folder, or nanoGPT's ckpt.pt.
    """
    file, words = file_and_overrides(config, overrides)
    words = [f"start.path={json.dumps(str(model))}", *words]
    words += [f"data.path={json.dumps(str(data))}"] if data else []
    resolved = run_config(file, words, finetunes=True)
    from groundup.finetune.config import FinetuneConfig
    from groundup.launch.env import own_rank

    if print_config:
        print(resolved.render())
    else:
        arguments = ["finetune", str(model), *([str(file)] if file else []), *words]
        train_resolved(resolved, max_restarts, arguments)
        if own_rank() == 0 and isinstance(resolved.value, FinetuneConfig) and resolved.value.lora.rank:
            _write_adapter(resolved.value.run_dir)


def _write_adapter(run_dir: Path) -> None:
    """Writes the adapter of the run's newest checkpoint beside its checkpoints, as PEFT reads it."""
    from groundup.checkpoint.formats import open_lazy, peft_adapter
    from groundup.checkpoint.native.model import open_native_adapter
    from groundup.core.log import logger

    adapter = open_native_adapter(run_dir)
    assert adapter is not None, "the run trained one"
    try:
        peft_adapter().write_adapter(adapter, open_lazy(run_dir), run_dir / _ADAPTER)
    except ConfigError as error:  # transformers, and so PEFT, has no such model
        logger.warning("the adapter is not written for PEFT: %s", error)
    else:
        logger.info("wrote %s, an adapter as PEFT reads it", run_dir / _ADAPTER)
