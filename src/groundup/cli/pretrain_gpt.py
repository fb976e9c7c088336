"""``groundup megatron pretrain_gpt`` and ``groundup megatron flags``."""

import contextlib
import logging
import shlex
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from groundup.core.errors import ConfigError, MachineError

if TYPE_CHECKING:
    from groundup.megatron.pretrain_gpt import Pretraining
    from groundup.parallel.device import PrecisionName

_PRINT_CONFIG = "--print-config"
_HELP = ("--help", "-h")

_PRETRAIN_GPT = """Usage: groundup megatron pretrain_gpt FLAGS... [--print-config]

Train a model with the command line of Megatron-LM's pretrain_gpt.py: its flags, of any version since 2019,
its defaults, its order of samples and its learning rates. Alone, under torchrun or srun, or with ranks of
its own:

    groundup megatron pretrain_gpt FLAGS...                      one rank, or those of a parallel model
    groundup megatron pretrain_gpt FLAGS... --nproc-per-node 4   four ranks on this machine
    torchrun --nproc-per-node 4 -m groundup megatron pretrain_gpt FLAGS...

For example (GPT-2 345M on the tokens of preprocess_data):

    groundup megatron pretrain_gpt --num-layers 24 --hidden-size 1024 --num-attention-heads 16 \\
        --seq-length 1024 --max-position-embeddings 1024 --micro-batch-size 1 --global-batch-size 2 \\
        --lr 1.5e-4 --train-iters 5000 \\
        --lr-decay-iters 320000 --lr-decay-style cosine --min-lr 1e-5 --weight-decay 1e-2 --clip-grad 1.0 \\
        --lr-warmup-fraction .01 --fp16 --data-path my-gpt2_text_document --vocab-file gpt2-vocab.json \\
        --merge-file gpt2-merges.txt --split 700,200,100 --log-interval 100 --save-interval 10000 \\
        --eval-interval 1000 --eval-iters 10 --save checkpoints --load checkpoints

--save DIR receives what Megatron-LM would leave, iter_0005000/mp_rank_00/model_optim_rng.pt and the tracker
file, and our own run in DIR/groundup, from which the same command goes on, on any number of ranks. --load DIR
takes either, and Megatron-LM's own checkpoints with their optimizer and step; --finetune takes the weights
alone.

--print-config prints the YAML that the flags become, each setting with its flag, and stops; the same run is
`groundup train THAT.yaml`. `groundup megatron flags [WORD]` lists all flags, and why some have no effect."""

_FLAGS = """Usage: groundup megatron flags [WORD...]

List the flags of pretrain_gpt, by the groups of Megatron-LM's help: what each takes, its default there, and
the setting that it becomes, or why it has no effect, or what to do instead. With words: those that have all
of them.

For example:

    groundup megatron flags warmup"""


def pretrain_gpt(words: Sequence[str]) -> None:
    """Trains by Megatron-LM's flags."""
    from groundup.megatron.flag_table import flag_table

    if any(word in _HELP for word in words):
        print(_PRETRAIN_GPT, end="\n\n")
        print("Flags that have a setting of ours:")
        names = " ".join(flag.flag for flag in flag_table().values() if flag.key)
        print(textwrap.fill(names, 110, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False))
        return
    from groundup.cli.train import train_resolved
    from groundup.core.config import to_yaml
    from groundup.core.files import atomic_write
    from groundup.core.log import quiet
    from groundup.launch.env import rank_from_env
    from groundup.megatron.pretrain_gpt import read_pretrain_gpt

    rank = rank_from_env()
    others = rank is not None and rank.rank > 0  # who would say the same
    with quiet(logging.ERROR) if others else contextlib.nullcontext():
        asked = read_pretrain_gpt([word for word in words if word != _PRINT_CONFIG], rank)
        if asked.deepspeed:
            _lay_over(asked, asked.deepspeed)
    resolved = asked.config()
    if _PRINT_CONFIG in words:
        print(resolved.render())
        return
    config = resolved.value
    _require_precision(config.precision)
    file = config.run_dir / "pretrain_gpt.yaml"
    if rank is None:  # ranks that are started from here find the config there
        config.run_dir.mkdir(parents=True, exist_ok=True)
        with atomic_write(file) as stream:
            stream.write(to_yaml(config).encode())
    train_resolved(resolved, asked.max_restarts, ["train", str(file)])


def _lay_over(asked: "Pretraining", path: Path) -> None:
    """Lays DeepSpeed's config over what the flags say; tells what has no counterpart."""
    from groundup.core.config_sources import merge
    from groundup.core.log import logger
    from groundup.deepspeed.translate import translate

    found = translate(path, ranks=asked.tree["layout"]["dp"])
    for note in found.notes:
        if not note.is_harmless:
            logger.warning("%s", note)
    merge(asked.tree, found.tree)
    asked.origins.update(found.origins)


def _require_precision(name: "PrecisionName") -> None:
    from groundup.parallel.device import choose_device, choose_precision

    try:
        choose_precision(name, choose_device("auto"))
    except MachineError as error:
        if name == "fp8":
            raise MachineError(error.what, where="--fp8-format", fix="Give --bf16 alone.") from None
        fix = "Give --bf16 instead" if name == "fp16" else "Give --fp16 instead, on a GPU"
        raise MachineError(error.what, where=f"--{name}", fix=f"{fix}, or neither for fp32.") from None


def flags(words: Sequence[str]) -> None:
    """Prints the table of flags."""
    if any(word in _HELP for word in words):
        print(_FLAGS)
        return
    from groundup.megatron.flag_table import describe_flag, flag_table

    found = [
        flag
        for flag in flag_table().values()
        if all(word.lower() in f"{flag.flag} {flag.group} {describe_flag(flag)}".lower() for word in words)
    ]
    if not found:
        raise ConfigError(
            f"no flag has {shlex.join(words)} in it", where="megatron flags", fix="Leave the words out."
        )
    group = ""
    for flag in found:
        if flag.group != group:
            print(f"\n{flag.group}" if group else flag.group)
            group = flag.group
        value = "" if flag.type in ("set", "unset") else f" {'|'.join(map(str, flag.choices)) or flag.type}"
        default = "" if flag.default is None else f" [{flag.default}]"
        print(f"  {flag.flag}{value}{default}\n      {describe_flag(flag)}")
