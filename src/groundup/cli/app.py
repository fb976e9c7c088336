"""The command line: verb -> "module:function". A verb's module is imported only when it is used."""

from cyclopts import App

from groundup import __version__

_HELP = """Pretrain GPT-class language models from the ground up.

Begin with `groundup quickstart`: raw text to a trained, evaluated, talking model in minutes.
Every verb explains itself: `groundup train --help`.
"""


def build_app() -> App:
    """The tree of verbs."""
    app = App(name="groundup", help=_HELP, version=__version__, help_on_error=False)
    groups = {
        "corpus": "Texts from many sources, cleaned and deduplicated.",
        "tokenizer": "Tokenizers: train, inspect, encode, decode.",
        "tokens": "Tokenized datasets in Megatron-LM's format.",
    }
    verbs = {
        "quickstart": "quickstart:quickstart",
        "corpus build": "corpus:build",
        "tokenizer train": "tokenizer:train",
        "tokenizer inspect": "tokenizer:inspect",
        "tokenizer encode": "tokenizer:encode",
        "tokenizer decode": "tokenizer:decode",
        "tokens build": "tokens:build",
        "tokens inspect": "tokens:inspect",
        "tokens verify": "tokens:verify",
        "train": "train:train",
        "eval": "evaluate:evaluate",
        "convert": "convert:convert",
        "generate": "generate:generate",
    }
    for name, text in groups.items():
        app.command(App(name=name, help=text))
    for path, target in verbs.items():
        *group, name = path.split()
        owner = app[group[0]] if group else app
        owner.command(f"groundup.cli.{target}", name=name)
    return app
