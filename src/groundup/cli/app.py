"""The command line: verb -> "module:function". A verb's module is imported only when it is used."""

import importlib
from collections.abc import Sequence

from cyclopts import App

from groundup import __version__

_HELP = """Pretrain GPT-class language models from the ground up.

Begin with `groundup quickstart`: raw text to a trained, evaluated, talking model in minutes.
Every verb explains itself: `groundup train --help`.
"""


_GROUPS = {
    "corpus": "Texts from many sources, cleaned and deduplicated.",
    "tokenizer": "Tokenizers: train, inspect, encode, decode.",
    "tokens": "Tokenized datasets in Megatron-LM's format.",
    "checkpoint": "Checkpoints of a run: look at them, check, compare, slim, average, prune.",
    "verify": "Is my run right?",
}


def run(arguments: Sequence[str]) -> None:
    """Runs one command line (without the program's name)."""
    words = [argument for argument in arguments if not argument.startswith("-")]
    build_app(listing=not words or (len(words) == 1 and words[0] in _GROUPS))(arguments)


def build_app(*, listing: bool = False) -> App:
    """The tree of verbs.

    Args:
        listing: Import every verb's module, for the first line of its help; else only the one that is used.
    """
    app = App(
        name="groundup",
        help=_HELP,
        version=__version__,
        help_on_error=False,
        suppress_keyboard_interrupt=False,  # __main__ says that it was interrupted
    )
    verbs = {
        "quickstart": "quickstart:quickstart",
        "corpus build": "corpus:build",
        "tokenizer train": "tokenizer:train",
        "tokenizer inspect": "tokenizer:inspect",
        "tokenizer encode": "tokenizer:encode",
        "tokenizer decode": "tokenizer:decode",
        "tokens build": "tokens:build",
        "tokens inspect": "tokens_files:inspect",
        "tokens verify": "tokens_files:verify",
        "tokens merge": "tokens_files:merge",
        "tokens split": "tokens_files:split",
        "tokens fetch": "tokens_fetch:fetch",
        "tokens plan": "tokens_plan:plan",
        "tokens trace": "tokens_plan:trace",
        "train": "train:train",
        "finetune": "finetune:finetune",
        "replay": "replay:replay",
        "verify parallel": "verify:parallel",
        "verify resume": "verify:resume",
        "verify convert": "verify:convert",
        "checkpoint ls": "checkpoint:ls",
        "checkpoint show": "checkpoint:show",
        "checkpoint verify": "checkpoint:verify",
        "checkpoint diff": "checkpoint:diff",
        "checkpoint slim": "checkpoint_copies:slim",
        "checkpoint average": "checkpoint_copies:average",
        "checkpoint prune": "checkpoint:prune",
        "checkpoint push": "checkpoint_copies:push",
        "checkpoint pull": "checkpoint_copies:pull",
        "eval": "evaluate:evaluate",
        "convert": "convert:convert",
        "generate": "generate:generate",
    }
    for name, text in _GROUPS.items():
        app.command(App(name=name, help=text))
    for path, target in verbs.items():
        *group, name = path.split()
        owner = app[group[0]] if group else app
        module, function = f"groundup.cli.{target}".split(":")
        verb = getattr(importlib.import_module(module), function) if listing else f"{module}:{function}"
        owner.command(verb, name=name)
    return app
