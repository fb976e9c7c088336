"""The frame of a report: one HTML file that asks nobody for anything, in light and dark, wide and narrow."""

import base64
import dataclasses
import hashlib
import html
import re
from collections.abc import Sequence
from importlib.resources import files

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; form-action 'none'; base-uri 'none'"
_NO_CODE = str.maketrans(
    {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
)


@dataclasses.dataclass(frozen=True, slots=True)
class Section:
    """A part of a page.

    Attributes:
        title: Its heading.
        body: HTML.
        note: A sentence below the heading, as text.
    """

    title: str
    body: str
    note: str = ""

    @property
    def anchor(self) -> str:
        """What links name it by."""
        return re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-")


@dataclasses.dataclass(frozen=True, slots=True)
class Drawing:
    """What draws on a page.

    Attributes:
        style: CSS, after that of every page.
        scripts: JavaScript, run in this order; the page runs no other.
        figures: JSON that the scripts find in the element ``figures``.
    """

    style: str
    scripts: Sequence[str]
    figures: str


def page(
    title: str, subtitle: str, opening: str, sections: Sequence[Section], drawing: Drawing | None = None
) -> str:
    """A whole page.

    Args:
        title: Its name, as text.
        subtitle: What it is of, as text.
        opening: HTML before the first section.
        sections: In order; the page links to each at its head.
        drawing: Scripts, for a page that has some.
    """
    style = packaged("page.css") + (drawing.style if drawing else "")
    policy = _POLICY + _allowed(drawing.scripts) if drawing else _POLICY
    links = "".join(f'<li><a href="#{each.anchor}">{text(each.title)}</a></li>' for each in sections)
    body = "".join(
        f'<section id="{each.anchor}" aria-labelledby="{each.anchor}-title">'
        f'<h2 id="{each.anchor}-title">{text(each.title)}</h2>'
        f"{f'<p class=note>{text(each.note)}</p>' if each.note else ''}{each.body}</section>\n"
        for each in sections
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        f"<title>{text(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n"
        '<a class="skip" href="#main">Skip to the content</a>\n'
        f'<header><p class="kicker">{text(subtitle)}</p><h1>{text(title)}</h1>'
        f'<nav aria-label="Sections"><ul>{links}</ul></nav></header>\n'
        f'<main id="main" tabindex="-1">\n{opening}\n{body}</main>\n'
        f"{_scripts(drawing) if drawing else ''}</body>\n</html>\n"
    )


def packaged(name: str) -> str:
    """The text of a file beside this one."""
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _allowed(scripts: Sequence[str]) -> str:
    """Names the scripts that a browser may run by their hashes, so that it runs no other."""
    hashes = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    return "; script-src " + " ".join(f"'sha256-{each}'" for each in hashes)


def _scripts(drawing: Drawing) -> str:
    figures = drawing.figures.translate(_NO_CODE)
    scripts = "".join(f"<script>{script}</script>\n" for script in drawing.scripts)
    return f'<script type="application/json" id="figures">{figures}</script>\n{scripts}'


def text(value: object) -> str:
    """Any text as HTML; characters that are not to be seen, or that turn the line around, are marked."""
    return html.escape(_CONTROL.sub("\N{REPLACEMENT CHARACTER}", str(value)))


def link(url: str, shown: str = "") -> str:
    """A link where the URL is one of the web, else its text."""
    if not url.startswith(("http://", "https://")):
        return text(shown or url)
    return f'<a href="{text(url)}" rel="noreferrer noopener nofollow">{text(shown or url)}</a>'


def table(caption: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table whose first column names its rows and whose others are figures; cells are HTML.

    It scrolls by itself where it is wider than the screen.
    """
    first, *others = head
    names = f'<th scope="col">{text(first)}</th>' + "".join(
        f'<th scope="col" class="n">{text(name)}</th>' for name in others
    )
    lines = "".join(
        f'<tr><th scope="row">{row[0]}</th>{"".join(f"<td>{cell}</td>" for cell in row[1:])}</tr>'
        for row in rows
    )
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{text(caption)}"><table>'
        f"<caption>{text(caption)}</caption><thead><tr>{names}</tr></thead><tbody>{lines}</tbody></table></div>"
    )


def details(summary: str, body: str) -> str:
    """HTML that is shown on request."""
    return f"<details><summary>{text(summary)}</summary>{body}</details>"


def tiles(figures: Sequence[tuple[str, str, str]]) -> str:
    """The figures that matter most: name, value, and what it means, as text."""
    cells = "".join(
        f"<div><dt>{text(name)}</dt><dd>{text(value)}<small>{text(note)}</small></dd></div>"
        for name, value, note in figures
    )
    return f'<dl class="tiles">{cells}</dl>'
