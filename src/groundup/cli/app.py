"""The command line: verb -> "module:function". A verb's module is imported only when it is used."""

import ast
import inspect
from collections.abc import Iterator, Sequence
from pathlib import Path

from cyclopts import App, CycloptsError, UnknownOptionError

from groundup import __version__
from groundup.core.errors import ConfigError, MachineError
from groundup.core.files import DISK_IS_FULL

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
    "import": "Take over what other projects wrote.",
}

_VERBS = {
    "quickstart": "quickstart:quickstart",
    "corpus build": "corpus:build",
    "corpus run": "corpus:run",
    "corpus import": "corpus_import:import_",
    "corpus clean": "corpus_steps:clean",
    "corpus dedup": "corpus_steps:dedup",
    "corpus decontaminate": "corpus_steps:decontaminate",
    "corpus shuffle": "corpus_steps:shuffle",
    "corpus audit": "corpus_steps:audit",
    "corpus stats": "corpus:stats",
    "corpus report": "corpus:report",
    "corpus show": "corpus:show",
    "corpus trace": "corpus:trace",
    "corpus urls": "corpus_urls:urls",
    "corpus crawl": "crawl:crawl",
    "corpus extract": "corpus_import:extract",
    "tokenizer train": "tokenizer:train",
    "tokenizer inspect": "tokenizer:inspect",
    "tokenizer encode": "tokenizer:encode",
    "tokenizer decode": "tokenizer:decode",
    "tokens build": "tokens:build",
    "tokens inspect": "tokens_files:inspect",
    "tokens verify": "tokens_files:verify",
    "tokens merge": "tokens_files:merge",
    "tokens fetch": "tokens_files:fetch",
    "tokens plan": "tokens_plan:plan",
    "tokens trace": "tokens_plan:trace",
    "plan": "plan:plan",
    "autotune": "autotune:autotune",
    "train": "train:train",
    "finetune": "finetune:finetune",
    "doctor": "doctor:doctor",
    "rehearse": "rehearse:rehearse",
    "deepspeed-config": "deepspeed_config:deepspeed_config",
    "replay": "replay:replay",
    "verify parallel": "verify:parallel",
    "verify resume": "verify:resume",
    "verify convert": "verify:convert",
    "verify serve": "verify:serve",
    "checkpoint ls": "checkpoint:ls",
    "checkpoint show": "checkpoint:show",
    "checkpoint verify": "checkpoint:verify",
    "checkpoint diff": "checkpoint:diff",
    "checkpoint slim": "checkpoint_copies:slim",
    "checkpoint average": "checkpoint_copies:average",
    "checkpoint prune": "checkpoint:prune",
    "checkpoint push": "checkpoint_copies:push",
    "checkpoint pull": "checkpoint_copies:pull",
    "eval": "eval_fetch:EVAL",  # with eval fetch
    "compare": "compare:compare",
    "report": "report:report",
    "convert": "convert:convert",
    "push": "push:push",
    "import nanogpt": "import_nanogpt:nanogpt",
    "generate": "generate:generate",
    "serve": "serve:serve",
    "client": "client:client",
    "megatron": "megatron:MEGATRON",  # reads the arguments of its scripts itself
}
"""Verb -> module of ``groundup.cli`` and function."""

_DESCRIBED_BY = {"eval": "evaluate:evaluate", "megatron": "megatron:megatron"}
"""Verbs that are no functions -> the function whose docstring is their help."""

_INSTALL_COMPLETION = "--install-completion"


def run(arguments: Sequence[str]) -> None:
    """Runs one command line (without the program's name).

    Raises:
        ConfigError: There is no such verb or flag, or a flag's value is not what it takes.
    """
    words = [argument for argument in arguments if not argument.startswith("-")]
    lists_verbs = not words or (len(words) == 1 and words[0] in _GROUPS)
    app = build_app(listing=lists_verbs and _INSTALL_COMPLETION not in arguments)
    try:
        app(arguments, print_error=False, exit_on_error=False)
    except CycloptsError as error:
        raise _refusal(error, arguments) from error


def _refusal(error: CycloptsError, arguments: Sequence[str]) -> ConfigError:
    """Turns the error of a wrong command line into one in the form of every other error."""
    error.verbose = False
    chain = list(error.command_chain or ())
    what = str(error).partition(" Available commands:")[0]  # a cut list of them
    fix = f"See `{' '.join(['groundup', *chain])} --help`."
    parameters = inspect.signature(error.target).parameters if error.target else {}
    if "Did you mean" in what:
        fix = ""
    elif isinstance(error, UnknownOptionError) and "overrides" in parameters:
        setting = _as_setting(error.token.keyword or error.token.value, arguments)
        fix = f"Settings of the training are written as {setting}, without dashes."
    elif isinstance(error, UnknownOptionError) and "options" in parameters:
        setting = _as_setting(error.token.keyword or error.token.value, arguments)
        fix = f"Options of a task are written as TASK.{setting}, without dashes."
    return ConfigError(what[:1].lower() + what[1:], where=" ".join(chain) or "command line", fix=fix)


def _as_setting(flag: str, arguments: Sequence[str]) -> str:
    """Returns what to write instead of ``--num-steps 5``."""
    given = next(argument for argument in arguments if argument.startswith(flag))
    _, _, value = given.partition("=")
    after = [*arguments, ""][list(arguments).index(given) + 1]
    value = value or ("" if after.startswith("-") else after) or "VALUE"
    name = flag.partition("=")[0].lstrip("-").replace("-", "_")
    return f"{name}={value}"


def build_app(*, listing: bool = False) -> App:
    """Builds the tree of verbs.

    Args:
        listing: For a list of verbs alone: they have their help, but no flags, and no module is imported.
    """
    app = App(
        name="groundup",
        help=_HELP,
        version=__version__,
        help_on_error=False,
        help_epilogue=_EPILOGUE,
        suppress_keyboard_interrupt=False,  # __main__ says that it was interrupted
    )
    app.register_install_completion_command(_INSTALL_COMPLETION, help=_COMPLETION)
    for name, text in _GROUPS.items():
        app.command(App(name=name, help=text))
    for path, target in _VERBS.items():
        *group, name = path.split()
        owner = app[group[0]] if group else app
        if listing:
            owner.command(App(name=name, help=_docstring(_DESCRIBED_BY.get(path, target))))
        else:
            owner.command(f"groundup.cli.{target}", name=name)
    return app


def _docstring(target: str) -> str | None:
    """Reads the docstring of a verb in its source: importing all verbs takes several times as long."""
    module, _, name = target.partition(":")
    body = ast.parse(Path(__file__).with_name(f"{module}.py").read_bytes()).body
    (function,) = (node for node in body if isinstance(node, ast.FunctionDef) and node.name == name)
    return ast.get_docstring(function)


def refused_by_system(error: OSError, arguments: Sequence[str]) -> MachineError | None:
    """Turns an error over a file that cannot be read, made or written into one that names its setting.

    Args:
        error: Of the operating system.
        arguments: The command line, in which the setting is looked for.

    Returns:
        None where the error is not about a file: then it is a bug of groundup.
    """
    is_full = error.errno in DISK_IS_FULL
    if not is_full and not isinstance(error.filename, str):
        return None
    path = str(error.filename or "")
    words = [word for word in (_setting_of(path, arguments), path) if word]
    return MachineError(
        f"{'the disk is full' if is_full else 'the system refuses this path'} ({error.strerror})",
        where=": ".join(dict.fromkeys(words)),
        fix="Free some space, or write elsewhere." if is_full else "Check the path, and who may use it.",
    )


def _setting_of(path: str, arguments: Sequence[str]) -> str:
    """Finds the flag or key whose value is the path, or a folder or the beginning of a name above it."""
    of_value = {value: name for name, value in _settings(arguments) if value}
    found = [value for value in of_value if path and _is_made_from(Path(path), Path(value))]
    return of_value[max(found, key=len)] if found else ""


def _settings(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yields name and value of ``--out DIR``, ``--out=DIR`` and ``run_dir=DIR``; a lone path has no name."""
    flag = ""
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if equals:
            yield name, value
        elif not argument.startswith("-"):
            yield flag, argument
        flag = argument if argument.startswith("-") and not equals else ""


def _is_made_from(path: Path, given: Path) -> bool:
    """Tells whether a path is the given one, above or inside it, or a sibling whose name begins with its."""
    path, given = path.absolute(), given.absolute()
    begins_alike = path.parent == given.parent and path.name.lstrip(".").startswith(given.name)
    return path == given or path in given.parents or given in path.parents or begins_alike
