"""A page in another language says what the original does: same headings, links and commands.

Commands of the originals are run by tests/e2e; equal ones need not be run again.
"""

import posixpath
import re

import languages
import pytest

from tests.guides import ROOT, blocks

DOCS = ROOT / "docs"
OTHERS = [code for code in languages.LANGUAGES if code != languages.FIRST]
TRANSLATIONS = sorted(str(path.relative_to(DOCS)) for code in OTHERS for path in DOCS.rglob(f"*.{code}.md"))

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def fences(text):
    """Language and lines of each block of code; without the comments, which may be translated."""
    without = re.compile(r"(^|\s+)# .*")
    return [
        (language, [without.sub("", line) for line in code.splitlines()])
        for language, code in _FENCE.findall(text)
    ]


def headings(text):
    return [len(marks) for marks in re.findall(r"^(#+) ", _FENCE.sub("", text), re.MULTILINE)]


def links(text, page):
    """What links and pictures lead to, from docs/: the original of a translation."""
    found = []
    for target in re.findall(r"\]\(([^)\s]+)\)", _FENCE.sub("", text)):
        path, _, _ = target.partition("#")
        if "://" in target or not path:
            found.append(target if path else "#")
        else:
            there = posixpath.normpath(posixpath.join(posixpath.dirname(page), path))
            found.append(languages.original(there))
    return found


def commands_in_text(text):
    """Commands that stand in sentences and tables, in any order."""
    found = re.findall(r"`((?:groundup|make|pip|python|torchrun|srun)\s[^`]+)`", _FENCE.sub("", text))
    return sorted(" ".join(command.split()) for command in found)  # lines may be broken elsewhere


def differences(original, translation, page):
    """What a translation has otherwise, in words."""
    told = []
    for what, of in (
        ("blocks of code", fences),
        ("levels of headings", headings),
        ("commands in the text", commands_in_text),
        ("links", lambda text: links(text, page)),
    ):
        ours, theirs = of(original), of(translation)
        if ours != theirs:
            told.append(f"{what}: {ours} became {theirs}")
    rows = [len(re.findall(r"^\|", text, re.MULTILINE)) for text in (original, translation)]
    if rows[0] != rows[1]:
        told.append(f"rows of tables: {rows[0]} became {rows[1]}")
    return told


@pytest.mark.parametrize("page", TRANSLATIONS)
def test_a_translation_has_the_structure_and_the_commands_of_the_original(page):
    original = DOCS / languages.original(page)
    assert not differences(original.read_text(), (DOCS / page).read_text(), page)


def test_the_home_page_and_the_quickstart_are_there_in_every_language():
    for page in ("index.md", "quickstart.md"):
        assert {languages.translated(page, code) for code in OTHERS} <= set(TRANSLATIONS)


ORIGINAL = "# A\n\nSee [b](b.md#c), `make z`.\n\n```bash\nmake x  # one\n```\n\n| a |\n| --- |\n| b |\n"


@pytest.mark.parametrize(
    ("translation", "told"),
    [
        (ORIGINAL.replace("# A", "# 甲").replace("# one", "# 一").replace("b.md", "b.zh.md"), 0),
        (ORIGINAL.replace("make x", "make y"), 1),
        (ORIGINAL.replace("make z", "make\nz"), 0),
        (ORIGINAL.replace("make z", "make y"), 1),
        (ORIGINAL.replace("# A", "## A"), 1),
        (ORIGINAL.replace("b.md#c", "c.md"), 1),
        (ORIGINAL.replace("| b |\n", ""), 1),
        (ORIGINAL.replace("```bash\nmake x  # one\n```\n", ""), 1),
    ],
)
def test_what_counts_as_a_difference(translation, told):
    assert len(differences(ORIGINAL, translation, "a.zh.md")) == told


def test_the_quickstarts_commands_are_those_of_the_readme():
    """Which tests/e2e/test_readme.py runs."""
    readme = [line for block in blocks("README.md", "bash") for line in block.splitlines()]
    lines = [line for block in blocks("docs/quickstart.md", "bash") for line in block.splitlines()]
    assert len(lines) == 9
    assert [line for line in lines if line not in readme] == [
        "groundup quickstart"
    ]  # tests/e2e/test_quickstart.py
    assert blocks("docs/quickstart.md", "python") == blocks("README.md", "python")
