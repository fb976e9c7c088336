"""``groundup finetune``."""

import glob
import json
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from groundup.cli.options import ConfigFile, Override
from groundup.cli.run_config import file_and_overrides, run_config
from groundup.cli.train import MaxRestarts, PrintConfig, train_resolved
from groundup.core.errors import ConfigError, DataError

_ADAPTER = "adapter"

Data = Annotated[Path | None, Parameter(help="Conversations, or the prefix of token files: data.path.")]


def finetune(
    model: Path,
    config: ConfigFile = None,
    *overrides: Override,
    data: Data = None,
    print_config: PrintConfig = False,
    max_restarts: MaxRestarts = 0,
) -> None:
    """Train a model further, from the weights in a folder: on conversations, or on token files.

    The architecture is the model's; everything else is given as for `groundup train`, and Ctrl-C, resuming
    and layouts are as there. `stage.kind` says what is learned:

    - sft, where the data are JSONL (also .gz, .zst) or Parquet: the assistant's turns of conversations.
      Records are OpenAI's `messages`, ShareGPT's `conversations`, Alpaca's `instruction`, `input` and
      `output`, or a `prompt` with a `completion`; stage.fields.prompt=question names others. The chat
      template is the model's, or stage.template=plain|chatml|llama3|FILE, whose special tokens are added.
      num_steps follows from stage.epochs (3), the run folder is runs/DATA-sft; what is left out is counted
      with its file and line, and three examples are shown before the first step.
    - dpo: preferences. Records have a `prompt`, a `chosen` and a `rejected` answer (texts, or lists of
      messages with or without the prompt); stage.fields.prompt=question names others. stage.loss is sigmoid,
      sigmoid_norm, ipo, hinge or simpo, stage.beta how far answers may go from the model at the start.
    - grpo: the model's own completions are rewarded (stage.reward=exact|number|regex|FILE.py:FUNCTION), and
      those that beat their group are made likelier. Records have a `prompt`, a text or messages, and what
      rewards need; num_steps follows from stage.epochs (1).
    - pretrain, where the data are token files: `groundup train` with start.path=MODEL. They must be
      tokenized with the model's own tokenizer, which the folder holds too.

    For example:

        groundup finetune smollm --data chats.jsonl

        groundup finetune runs/a --data chats.jsonl stage.template=chatml stage.epochs=2 optimizer.lr=1e-4

        groundup finetune smollm --data chats.jsonl layout.dp=2 micro_batch_size=4 run_dir=runs/b

        groundup finetune runs/b --data pairs.jsonl stage.kind=dpo stage.beta=0.1 optimizer.lr=1e-6

        groundup finetune runs/b --data prompts.jsonl stage.kind=grpo stage.reward=rewards.py:brevity

        groundup tokens build new.jsonl --prefix data/new --tokenizer smollm

        groundup finetune smollm run_dir=runs/c --data data/new_text_document num_steps=500

    Args:
        model: A run folder or one of its checkpoints, a Hugging Face folder, or nanoGPT's ckpt.pt.
    """
    if data and not any(data.parent.glob(glob.escape(data.name) + "*")):
        raise DataError("no such file, nor token files that begin so", where=data, fix="Check the path.")
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
    from groundup.cli.card_options import CardFlags
    from groundup.core.log import logger
    from groundup.report.model_card import model_card

    adapter = open_native_adapter(run_dir)
    assert adapter is not None, "the run trained one"
    model, folder = open_lazy(run_dir), run_dir / _ADAPTER
    command = ["convert", str(run_dir), str(folder), "--to", "hf", "--adapter-only"]
    options = CardFlags(name=run_dir.absolute().name).options(folder, command)
    try:
        card = model_card(model, options, adapter=adapter.about)
        peft_adapter().write_adapter(adapter, model, folder, card=card)
    except ConfigError as error:  # transformers, and so PEFT, has no such model
        logger.warning("the adapter is not written for PEFT: %s", error)
    else:
        logger.info("wrote %s, an adapter as PEFT reads it", folder)
