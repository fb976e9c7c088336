"""The command line: verb -> "module:function". A verb's module is imported only when it is used."""

import importlib
import inspect
from collections.abc import Sequence

from cyclopts import App, CycloptsError, UnknownOptionError

from groundup import __version__
from groundup.core.errors import ConfigError

_HELP = """Pretrain GPT-class language models from the ground up.

Begin with `groundup quickstart`: raw text to a trained, evaluated, talking model in minutes.
Every verb explains itself: `groundup train --help`.
"""
_EPILOGUE = "With any verb, --debug shows the traceback of an error, and more in the log."
_COMPLETION = "Install the completion of verbs and flags for your shell."

_GROUPS = {
    "corpus": "Texts from many sources, cleaned and deduplicated.",
    "tokenizer": "Tokenizers: train, inspect, encode, decode.",
    "tokens": "Tokenized datasets in Megatron-LM's format.",
    "checkpoint": "Checkpoints of a run: look at them, check, compare, slim, average, prune.",
    "verify": "Is my run right?",
}


def run(arguments: Sequence[str]) -> None:
    """Runs one command line (without the program's name).

    Raises:
        ConfigError: There is no such verb or flag, or a flag's value is not what it takes.
    """
    words = [argument for argument in arguments if not argument.startswith("-")]
    app = build_app(listing=not words or (len(words) == 1 and words[0] in _GROUPS))
    try:
        app(arguments, print_error=False, exit_on_error=False)
    except CycloptsError as error:
        raise _refusal(error, arguments) from error


def _refusal(error: CycloptsError, arguments: Sequence[str]) -> ConfigError:
    """A command line that is wrong, in the words of every other error."""
    error.verbose = False
    chain = list(error.command_chain or ())
    what = str(error).partition(" Available commands:")[0]  # a cut list of them
    fix = f"See `{' '.join(['groundup', *chain])} --help`."
    takes_settings = error.target and "overrides" in inspect.signature(error.target).parameters
    if "Did you mean" in what:
        fix = ""
    elif isinstance(error, UnknownOptionError) and takes_settings:
        fix = _as_setting(error.token.keyword or error.token.value, arguments)
    return ConfigError(what[:1].lower() + what[1:], where=" ".join(chain) or "command line", fix=fix)


def _as_setting(flag: str, arguments: Sequence[str]) -> str:
    """What to write instead of ``--num-steps 5``."""
    given = next(argument for argument in arguments if argument.startswith(flag))
    _, _, value = given.partition("=")
    after = [*arguments, ""][list(arguments).index(given) + 1]
    value = value or ("" if after.startswith("-") else after) or "VALUE"
    name = flag.partition("=")[0].lstrip("-").replace("-", "_")
    return f"Settings of the training are written as {name}={value}, without dashes."


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
        help_epilogue=_EPILOGUE,
        suppress_keyboard_interrupt=False,  # __main__ says that it was interrupted
    )
    verbs = {
        "quickstart": "quickstart:quickstart",
        "corpus build": "corpus:build",
        "corpus urls": "corpus_urls:urls",
        "corpus crawl": "crawl:crawl",
        "corpus extract": "crawl:extract",
        "tokenizer train": "tokenizer:train",
        "tokenizer inspect": "tokenizer:inspect",
        "tokenizer encode": "tokenizer:encode",
        "tokenizer decode": "tokenizer:decode",
        "tokens build": "tokens:build",
        "tokens inspect": "tokens_files:inspect",
        "tokens verify": "tokens_files:verify",
        "tokens merge": "tokens_files:merge",
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
    app.register_install_completion_command(help=_COMPLETION)
    for name, text in _GROUPS.items():
        app.command(App(name=name, help=text))
    for path, target in verbs.items():
        *group, name = path.split()
        owner = app[group[0]] if group else app
        module, function = f"groundup.cli.{target}".split(":")
        verb = getattr(importlib.import_module(module), function) if listing else f"{module}:{function}"
        owner.command(verb, name=name)
    return app
