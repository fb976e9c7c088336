"""How long OpenMP's threads wait for each other by spinning: its libraries read that once, when they load."""

from collections.abc import MutableMapping

_SETTINGS = {
    "GOMP_SPINCOUNT": "10000",  # libgomp: 0.1 to 0.5 ms, by how long the processor's pause takes
    "KMP_BLOCKTIME": "1",  # LLVM's and Intel's: milliseconds
}


def limit_spinning(environment: MutableMapping[str, str]) -> None:
    """Lets threads spin for less than a millisecond, and sleep then; to be called before torch is imported.

    The few microseconds between the parallel loops of a training step are spun away, as by default. But
    where another process has taken a thread's core, the others no longer burn theirs until it is back: by
    default libgomp spins for milliseconds and the others' for 200 ms, and a step beside two busy processes
    takes ten times as long or worse (see ``docs/LOG.md``).

    Args:
        environment: Of the process, changed; nothing where the user has chosen.
    """
    if environment.keys().isdisjoint({"OMP_WAIT_POLICY", *_SETTINGS}):
        environment.update(_SETTINGS)
