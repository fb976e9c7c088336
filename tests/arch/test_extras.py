"""The package's metadata: extras that messages and documents name, Pythons and systems that it claims."""

import re
import tomllib
from pathlib import Path

import pytest

from groundup.__main__ import _EXTRAS

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
READ_BY_USERS = sorted(
    [
        ROOT / "README.md",
        *(ROOT / "src").rglob("*.py"),
        *(path for folder in ("docs", "examples", "deploy") for path in (ROOT / folder).rglob("*.*")),
    ]
)
OF_DEVELOPERS = {"dev", "docs", "bench"}
INSTALL = (ROOT / "docs/install.md").read_text()


def packages(extra: str) -> set[str]:
    """Names of the packages of an extra, those of extras within it too."""
    found = set()
    for requirement in EXTRAS[extra]:
        name, inner = re.match(r"([\w.-]+)(?:\[(.*?)\])?", requirement).groups()
        found |= set().union(*map(packages, inner.split(","))) if inner else {name}
    return found


def test_every_extra_that_is_named_exists():
    named = {}
    for path in READ_BY_USERS:
        if path.suffix in (".png", ".jpg", ".svg"):
            continue
        for names in re.findall(r"(?:groundup|\.whl)\[([a-z][a-z,-]*)\]", path.read_text()):
            named.update((name, path) for name in names.split(","))
    assert {"train", "serve", "parquet", "crawl"} <= set(named)
    assert {name: path for name, path in named.items() if name not in EXTRAS} == {}


@pytest.mark.parametrize("module", _EXTRAS)
def test_the_extra_that_is_proposed_brings_the_module(module):
    name = module.replace("_", "-")
    assert {name, f"{name}-skinny"} & {one.replace("_", "-") for one in packages(_EXTRAS[module])}


def test_the_pythons_that_are_claimed_are_those_that_were_tried():
    claimed = {
        version
        for one in PROJECT["classifiers"]
        if (version := one.removeprefix("Programming Language :: Python :: ")) != one
    }
    _, tried = INSTALL.split("By hand the same was done with")
    assert claimed == set(re.findall(r"\b3\.\d+(?=\.\d)", tried))
    oldest = min(claimed, key=lambda version: int(version.split(".")[1]))
    assert PROJECT["requires-python"] == f">={oldest}"


def test_all_brings_what_each_extra_of_users_brings():
    wanted = set().union(*(packages(extra) for extra in EXTRAS if extra not in {"all", *OF_DEVELOPERS}))
    assert packages("all") == wanted


def test_the_page_of_installing_lists_every_extra():
    assert set(re.findall(r"^\| `([a-z0-9]+)` \|", INSTALL, re.MULTILINE)) == set(EXTRAS)
