"""``groundup megatron SCRIPT``: Megatron-LM's scripts by their names, with their arguments."""

import importlib
from collections.abc import Callable, Sequence
from typing import Annotated

from cyclopts import App, Parameter

from groundup.core.config_sources import nearest
from groundup.core.errors import ConfigError

_SCRIPTS: dict[str, tuple[str, str]] = {
    "blacklist_urls": ("groundup.megatron.web_links:blacklist_urls", "lists of links -> one list of pages"),
    "download": ("groundup.megatron.web_pages:download", "a list of URLs -> texts and their metadata"),
    "merge_data": ("groundup.megatron.web_pages:merge_data", "folder of texts -> JSON lines, one a page"),
    "merge_jsons": ("groundup.megatron.web_cleaning:merge_jsons", "folder of JSON lines -> one file"),
    "cleanup_dataset": ("groundup.megatron.web_cleaning:cleanup_dataset", "JSON lines -> English, not tiny"),
    "find_duplicates": ("groundup.megatron.web_duplicates:find_duplicates", "JSON lines -> pairs much alike"),
    "group_duplicate_url": ("groundup.megatron.web_duplicates:group_duplicate_url", "these pairs -> groups"),
    "remove_group_duplicates": (
        "groundup.megatron.web_duplicates:remove_group_duplicates",
        "groups and JSON lines -> one of each group",
    ),
    "filter_ngrams": ("groundup.megatron.web_ngrams:filter_ngrams", "JSON lines without items of tasks"),
    "add_id": ("groundup.megatron.web_cleaning:add_id", "JSON lines -> the same with an id each"),
    "preprocess_data": ("groundup.megatron.token_files:preprocess_data", "JSON lines -> .bin and .idx"),
    "merge_datasets": ("groundup.megatron.token_files:merge_datasets", "folder of .bin and .idx -> one"),
    "pretrain_gpt": ("groundup.cli.pretrain_gpt:pretrain_gpt", "train a model, or go on"),
    "flags": ("groundup.cli.pretrain_gpt:flags", "the flags of pretrain_gpt, and what becomes of each"),
    "checkpoint_util": ("groundup.cli.megatron_models:checkpoint_util", "a checkpoint -> another layout"),
    "eval_lambada": ("groundup.cli.megatron_models:eval_lambada", "tasks/main.py --task LAMBADA|WIKITEXT103"),
    "main": ("groundup.cli.megatron_models:eval_lambada", "the same, by the name of its file"),
    "run_text_generation_server": (
        "groundup.cli.megatron_models:run_text_generation_server",
        "serve a checkpoint: PUT /api at port 5000",
    ),
    "text_generation_cli": ("groundup.cli.megatron_models:text_generation_cli", "talk to such a server"),
}
"""Script -> "module:function", which takes its arguments as they are typed, and what it does."""

_HEAD = """Usage: groundup megatron SCRIPT ARGUMENTS...

Megatron-LM's scripts by their names, with the arguments that its users type and the files that they expect.
`groundup megatron SCRIPT --help` explains one.

For example:

    groundup megatron preprocess_data --input train_data.json --output-prefix my-gpt2 --append-eod \\
        --tokenizer-type GPT2BPETokenizer --vocab-file gpt2-vocab.json --merge-file gpt2-merges.txt

Scripts:
"""


def megatron(*words: Annotated[str, Parameter(allow_leading_hyphen=True)]) -> None:
    """Megatron-LM's scripts, with the arguments that its users type.

    Args:
        words: A script, and its arguments.
    """
    if words and words[0] not in ("--help", "-h"):
        script_named(words[0])(words[1:])
        return
    print(_HEAD)
    width = max(map(len, _SCRIPTS))
    for name, (_, about) in _SCRIPTS.items():
        print(f"  {name:<{width}}  {about}")


def script_named(name: str) -> Callable[[Sequence[str]], None]:
    """Imports a script: pretrain_gpt, also as it is typed there, tools/pretrain_gpt.py.

    Raises:
        ConfigError: There is none of that name.
    """
    known = name.rpartition("/")[2].removesuffix(".py")
    if known not in _SCRIPTS:
        raise ConfigError(
            f"there is no script {name!r}",
            where="megatron",
            fix=nearest(known, _SCRIPTS) or "See `groundup megatron --help`.",
        )
    module, function = _SCRIPTS[known][0].split(":")
    script: Callable[[Sequence[str]], None] = getattr(importlib.import_module(module), function)
    return script


MEGATRON = App(name="megatron", default_command=megatron, help_flags=[], version_flags=[])
"""The verb, whose scripts read their own arguments, ``--help`` too."""
