"""``groundup eval fetch``, and ``groundup eval`` as the group that it belongs to."""

from pathlib import Path

from cyclopts import App

from groundup.cli.evaluate import evaluate
from groundup.core.errors import ConfigError


def fetch(*tasks: str, data: Path) -> None:
    """Download the official files of evaluation tasks.

    Each file comes from where its authors put it, is verified by its sha256 and by the number of its items,
    and appears whole or not at all; of archives only what the task reads is kept. What is there is left
    alone, so the same command continues. `wikitext` is WikiText-103, `wikitext2` the other; the files of
    `storycloze` are given out only by a form. Needs the extra [remote].

    For example:

        groundup eval fetch lambada hellaswag --data evaluation

        groundup eval run --tasks lambada,hellaswag --data evaluation

    Args:
        tasks: Whose files to download, e.g. lambada hellaswag piqa.
        data: The folder to put them into, for --data of groundup eval.
    """
    from groundup.core.files import require_writable
    from groundup.eval.official_files import fetch_official_files, official_files

    known = official_files()
    names = list(dict.fromkeys(name for word in tasks for name in word.split(",")))
    if not names:
        sizes = ", ".join(f"{name} ({row.size / 1e6:,.0f} MB)" for name, row in known.items())
        raise ConfigError(
            f"names no task; there are {sizes}", where="groundup eval fetch", fix="Name some of them."
        )
    require_writable(data, where="--data")
    for name, paths in fetch_official_files(names, data, known).items():
        what = f"{len(paths)} files" if len(paths) > 1 else ", ".join(map(str, paths)) or "there already"
        row = known[name]
        print(f"{name}: {what}; {row.items:,} items, sha256 {row.sha256[:12]}...")


EVAL = App(name="eval", default_command=evaluate)
"""The verb ``eval`` with those below it."""
EVAL.command(fetch)
