"""The launcher: starts the ranks of a run on this machine, reports the root cause, restarts on request.

docs/decisions/005-own-launcher.md says why it does not stand on PyTorch's elastic multiprocessing.
"""

import contextlib
import importlib
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType

from groundup.core.log import logger
from groundup.launch import errors
from groundup.launch.env import slurm_num_nodes
from groundup.launch.forked_rank import is_safe_to_fork
from groundup.launch.rank_processes import RankProcesses
from groundup.launch.restart_policy import RestartPolicy


def run_ranks(
    world_size: int,
    arguments: Sequence[str],
    *,
    command: Sequence[str] = (),
    modules: Sequence[str] = (),
    folder: Path | None = None,
    max_restarts: int = 0,
    newest_step: Callable[[], int] = lambda: 0,
    with_stdin: bool = False,
) -> int:
    """Runs ``groundup arguments`` as several ranks on this machine, until all have ended.

    They are forks of this process where that is safe, else new ones; see ``forked_rank``.
    Rank 0 writes to this terminal, the others to ``rank-N.log``, but for their warnings. When one fails, the
    others end within 10 seconds, and the last lines on stderr are the root cause; then all start again where
    that may help. SIGINT, SIGTERM and SIGHUP are passed on once, so that the ranks save and end, and nothing
    starts again; the second kills them. On Linux no rank outlives this process. Call it from the main thread.

    Args:
        world_size: Number of ranks.
        arguments: Of each.
        command: What is run instead of groundup, in new processes.
        modules: What the ranks would import, each for itself.
        folder: For the ranks' output and failures, kept after a failure; a temporary one by default.
        max_restarts: How often the ranks are started again after failures.
        newest_step: Returns the step that they would continue from; 0 for the beginning.
        with_stdin: Whether rank 0 reads our standard input.

    Returns:
        0 where all ranks ended well; the exit code of the last attempt's root cause (128 + number of a
        signal); or 128 + number of the signal that stopped them.
    """
    if slurm_num_nodes() > 1:
        logger.warning(
            "this Slurm job has %d nodes, and all %d ranks start on this one: `srun %s` would use all",
            slurm_num_nodes(),
            world_size,
            " ".join(("groundup", *arguments)),
        )
    with contextlib.ExitStack() as stack:
        if folder is None:
            folder = Path(tempfile.mkdtemp(prefix="groundup-ranks-"))
        folder.mkdir(parents=True, exist_ok=True)
        stack.callback(_remove_if_empty, folder)
        errors.clear(folder, attempts=True)
        policy = RestartPolicy(max_restarts, newest_step)
        received: list[int] = []  # the signals that we were sent
        ranks = RankProcesses(folder, received)

        def stop(number: int) -> None:
            received.append(number)
            ranks.stop()  # those of the present attempt

        if not command and is_safe_to_fork():
            for module in modules:
                importlib.import_module(module)
        stack.enter_context(_signals_go_to(stop))
        stack.callback(lambda: ranks.kill())  # whatever goes wrong here
        while True:
            ranks.start(world_size, arguments, command=command, with_stdin=with_stdin)
            ranks.wait()
            code, cause = ranks.outcome()
            if cause is None:
                errors.clear(folder)
                return code
            decision = policy.decide(cause, oom_kills=ranks.oom_kills)
            restart = decision.restart and not received
            if decision.message and not decision.restart:
                logger.warning("%s", decision.message)
            ranks.report(cause)
            if not restart:
                return code
            logger.warning("%s", decision.message)
            errors.archive(folder, policy.num_restarts)
            ranks = RankProcesses(folder, received)


@contextlib.contextmanager
def _signals_go_to(stop: Callable[[int], None]) -> Iterator[None]:
    """Gives SIGINT, SIGTERM and SIGHUP to ``stop`` while entered."""

    def handle(number: int, frame: FrameType | None) -> None:
        stop(number)

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    if before[signal.SIGHUP] == signal.SIG_IGN:  # nohup
        del before[signal.SIGHUP]
    for number in before:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _remove_if_empty(folder: Path) -> None:
    if not any(folder.iterdir()):
        folder.rmdir()
