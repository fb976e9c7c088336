"""Services that the tests of a module share."""

from collections.abc import Iterator

import pytest

from tests.served import Served
from tests.tiny import tiny_model


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """A tiny GPT-2, idle again when all tests are through."""
    with Served(tiny_model("gpt2")) as one:
        yield one
        one.wait_until(one.is_idle)
