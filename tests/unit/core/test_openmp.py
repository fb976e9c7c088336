"""How long threads spin: our setting, the user's, and what the library makes of it."""

import os
import subprocess
import sys

import pytest

from groundup.core.openmp import limit_spinning


def test_what_the_user_says_of_waiting_stays():
    for given in ({"OMP_WAIT_POLICY": "active"}, {"GOMP_SPINCOUNT": "7"}, {"KMP_BLOCKTIME": "200"}):
        environment = dict(given)
        limit_spinning(environment)
        assert environment == given


def test_the_library_reads_our_setting():
    """OpenMP's own account of its settings, from a process that began as ours do."""
    code = (
        "import contextlib, sys; from groundup.__main__ import main; sys.argv = ['groundup', '--help']\n"
        "with contextlib.suppress(SystemExit):\n    main()\n"
        "assert 'torch' not in sys.modules; import torch"
    )
    names = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    environment["OMP_DISPLAY_ENV"] = "VERBOSE"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    if "GOMP_" not in done.stderr:
        pytest.skip("PyTorch's OpenMP here is not libgomp")
    assert "GOMP_SPINCOUNT = '10000'" in done.stderr
