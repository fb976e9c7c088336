"""Fixtures shared by all tests."""

import os
import signal
from pathlib import Path

import pytest
from hypothesis import settings

# Two test processes share two cores: more threads would only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell's background jobs ignore Ctrl-C, and so would all programs that tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)

# No deadlines on shared machines; CI draws the same examples each time, a developer new ones.
settings.register_profile("developer", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "developer")

_SHARED_DATA = Path(
    os.environ.get("GROUNDUP_SHARED_DATA", Path(__file__).resolve().parents[2] / "shared" / "data")
)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data beside the project; read-only, and absent on a user's machine."""
    if not _SHARED_DATA.is_dir():
        pytest.skip(f"no real data at {_SHARED_DATA} (set GROUNDUP_SHARED_DATA to its folder)")
    return _SHARED_DATA
