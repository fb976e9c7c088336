"""``groundup finetune``."""

import json
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from groundup.cli.options import ConfigFile, Override
from groundup.cli.run_config import file_and_overrides, run_config
from groundup.cli.train import MaxRestarts, PrintConfig, train_resolved

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
    if print_config:
        print(resolved.render())
    else:
        arguments = ["finetune", str(model), *([str(file)] if file else []), *words]
        train_resolved(resolved, max_restarts, arguments)
