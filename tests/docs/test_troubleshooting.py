"""Each message that docs/troubleshooting.md quotes is one of the code."""

import ast
import re

import pytest

from tests.guides import ROOT

PAGE = ROOT / "docs/troubleshooting.md"


def templates():
    """All texts of the source code, with … in place of what is filled in."""
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                yield "".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


def quoted():
    """The messages: the first cells of the tables that are code."""
    return re.findall(r"^\| `([^`]+)` \|", PAGE.read_text(), re.MULTILINE)


@pytest.fixture(scope="module")
def texts():
    return list(templates())


def test_messages_are_quoted(texts):
    assert len(quoted()) > 40
    assert not [message for message in quoted() if not any(message in text for text in texts)]
