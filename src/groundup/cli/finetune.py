"""``groundup finetune``."""

import json
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter, validators

from groundup.cli.train import train


def finetune(
    model: Path,
    config: Path | None = None,
    *overrides: str,
    print_config: Annotated[bool, Parameter(negative="")] = False,
    max_restarts: Annotated[int, Parameter(validator=validators.Number(gte=0))] = 0,
) -> None:
    """Train a model further, from the weights in a folder: `groundup train` with start.path=MODEL.

    The architecture is the model's; everything else is given as for `groundup train`. The data must be
    tokenized with the model's own tokenizer, which the folder holds too.

    For example:

        groundup tokens build new.jsonl --prefix data/new --tokenizer smollm

        groundup finetune smollm finetune.yaml optimizer.lr=2e-5

        groundup finetune smollm run_dir=runs/a data.path=data/new_text_document num_steps=500

    Args:
        model: A run folder or one of its checkpoints, a Hugging Face folder, or nanoGPT's ckpt.pt.
        config: YAML file of the run (or the first override).
        overrides: Settings as dotted.key=value; they win over the file.
        print_config: Print each setting, with where its value comes from, and stop.
        max_restarts: As for `groundup train`.
    """
    start = f"start.path={json.dumps(str(model))}"
    train(config, start, *overrides, print_config=print_config, max_restarts=max_restarts)
