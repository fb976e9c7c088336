"""Pages of every verb of the command line, made from what ``--help`` shows."""

import contextlib
import io
from collections.abc import Iterator

from cyclopts import App
from cyclopts.docs.markdown import generate_markdown_docs

from groundup.cli.app import build_app
from groundup.cli.megatron import megatron

FOLDER = "reference/commands"


def verbs() -> list[list[str]]:
    """Every verb as words, such as ["tokens", "build"]; groups that are no verbs themselves are left out."""
    app = build_app()
    found = []
    for name in _names(app):
        if app[name].default_command:
            found.append([name])
        found += [[name, inner] for inner in _names(app[name])]
    return found


def pages() -> dict[str, str]:
    """Path below docs -> Markdown of each page: one for a verb with its own verbs."""
    app = build_app()
    return {f"{FOLDER}/{name}.md": _page(app[name], name) for name in _names(app)}


def listed() -> str:
    """A table of all verbs, each with a link to its help and the first line of that."""
    app = build_app()
    lines = ["| command | |", "| --- | --- |"]
    for words in sorted(verbs()):
        verb = app[words[0]][words[1]] if words[1:] else app[words[0]]
        anchor = f"#groundup-{'-'.join(words)}" if words[1:] else ""
        first = (verb.help or megatron.__doc__ or "").strip().partition("\n")[0]
        lines.append(f"| [{' '.join(words)}](commands/{words[0]}.md{anchor}) | {first} |")
    return "\n".join(lines)


def _page(verb: App, name: str) -> str:
    parts = [_described(verb, [name], level=1)]
    parts += [_described(verb[inner], [name, inner], level=2) for inner in _names(verb)]
    return "\n".join(parts)


def _described(verb: App, words: list[str], level: int) -> str:
    """The help of one verb, under a heading that says what is typed."""
    title = f"{'#' * level} groundup {' '.join(words)}\n"
    if words == ["megatron"]:  # which reads its arguments itself, and tells of them itself
        with contextlib.redirect_stdout(io.StringIO()) as told:
            megatron("--help")
        return f"{title}\n```text\n{told.getvalue()}```\n"
    _, _, text = generate_markdown_docs(
        verb,
        recursive=False,
        heading_level=level,
        command_chain=["groundup", *words],
        generate_toc=False,
        exclude_commands=list(_names(verb)),
    ).partition("\n")
    return f"{title}{text}"


def _names(app: App) -> Iterator[str]:
    return (name for name in app if not name.startswith("-"))
