"""``groundup report``: one page about one or several runs."""

import sys
from pathlib import Path
from typing import Annotated

import cyclopts

from groundup.cli.options import Switch
from groundup.core.errors import ConfigError


def report(
    *runs: Path,
    out: Annotated[Path | None, cyclopts.Parameter(name=["--out", "-o"])] = None,
    verify: Switch = False,
) -> None:
    """Write one HTML page about a run, or about several side by side.

    Loss and validation curves by steps, tokens or hours, learning rate, gradient norm, speed, memory,
    restarts and spikes, scores, samples, settings with their origins and differences, where the data came
    from, and checkpoints. The page holds all that it shows and asks nobody for anything, so it can be kept,
    mailed or printed. `groundup train` writes it at the end of a run (see `log.report`).

    For example:

        groundup report runs/gpt2

        groundup report runs/a runs/b -o compared.html

    Args:
        runs: Run folders.
        out: The file to write; report.html in the folder of a single run when left out.
        verify: Read the checkpoints and compare them with their checksums, slow for large ones.
    """
    from groundup.report.run_page import REPORT, write_run_page

    if not runs:
        raise ConfigError("names no run", where="report", fix="Give a run folder: groundup report RUN.")
    if out is None and len(runs) > 1:
        raise ConfigError("several runs need a file to write", where="report", fix="Add -o compared.html.")
    sys.stdout.write(f"{write_run_page(runs, out or runs[0] / REPORT, reads_checkpoints=verify)}\n")
