"""What the environment says of this process's rank, as torchrun, Slurm or our own launcher set it."""

import dataclasses
import os
import re
from collections.abc import Mapping
from pathlib import Path

from groundup.core.errors import MachineError

FAILURES_DIR = "GROUNDUP_FAILURES"
"""Names the folder in which ranks leave heartbeats and failures; unset where nobody reads them."""

LAUNCHER_PIPE = "GROUNDUP_LAUNCHER"
"""Set by our own launcher: the file descriptor through which a rank's warnings reach its terminal."""

_TORCHRUN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_FIRST_PORT, _NUM_PORTS = 15_000, 15_000  # below the ports that Linux hands out itself (from 32,768)


@dataclasses.dataclass(frozen=True, slots=True)
class RankInfo:
    """One process of several that train together.

    Attributes:
        rank: Its number among all, from 0.
        local_rank: Its number among those of its machine, from 0.
        world_size: How many there are.
        local_world_size: How many there are on its machine.
        master_address: Machine of rank 0, where the ranks meet.
        master_port: Port on it.
    """

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    master_address: str = "127.0.0.1"
    master_port: int = 29_500

    def environment(self) -> dict[str, str]:
        """The variables from which ``torch.distributed`` reads all this."""
        fields = dataclasses.astuple(self)
        return {name: str(value) for name, value in zip(_TORCHRUN, fields, strict=True)}


def rank_from_env(environment: Mapping[str, str] = os.environ) -> RankInfo | None:
    """Returns the rank of this process; None where it is not one of several.

    torchrun's variables come first (also within a Slurm job), then those of a step of Slurm's srun. The
    shell of a batch job is no step, whatever number of tasks the job asked for.

    Args:
        environment: Variables of the process.

    Raises:
        MachineError: The variables are incomplete, contradict each other or are no numbers.
    """
    own = [name for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE") if name in environment]
    slurm = None if {"RANK", "LOCAL_RANK"} & environment.keys() else _of_slurm(environment)
    if slurm:
        # Batch scripts often export WORLD_SIZE, MASTER_ADDR and MASTER_PORT before they call srun.
        if _number(environment, "WORLD_SIZE", slurm.world_size) != slurm.world_size:
            raise MachineError(
                f"WORLD_SIZE is {environment['WORLD_SIZE']}, but srun started {slurm.world_size} tasks",
                where="environment",
                fix="Unset WORLD_SIZE, or give srun --ntasks of as many.",
            )
        return slurm if slurm.world_size > 1 else None
    if not own:
        return None
    missing = [name for name in _TORCHRUN if not environment.get(name)]
    if missing:
        raise MachineError(
            f"{', '.join(own)} set as by torchrun, but {', '.join(missing)} missing",
            where="environment",
            fix=f"Start with torchrun or srun, or unset {', '.join(own)} to start the ranks from here.",
        )
    rank, local_rank, world_size, local_world_size = (_number(environment, name) for name in _TORCHRUN[:4])
    if not (0 <= rank < world_size and 0 <= local_rank < local_world_size <= world_size):
        raise MachineError(
            f"RANK={rank} of WORLD_SIZE={world_size} and LOCAL_RANK={local_rank}"
            f" of LOCAL_WORLD_SIZE={local_world_size} cannot be",
            where="environment",
            fix="Ranks count from 0 to one less than the size, and a machine has no more than all.",
        )
    if world_size == 1:
        return None
    address, port = environment["MASTER_ADDR"], _number(environment, "MASTER_PORT")
    return RankInfo(rank, local_rank, world_size, local_world_size, address, port)


def own_rank() -> int:
    """Returns the number of this process among the ranks; 0 where it is alone."""
    rank = rank_from_env()
    return rank.rank if rank else 0


def failures_dir() -> Path | None:
    """Returns the folder in which ranks leave heartbeats and failures; None where nobody reads them."""
    folder = os.environ.get(FAILURES_DIR)
    return Path(folder) if folder else None


def launcher_pipe() -> int | None:
    """Returns the file descriptor of our own launcher's pipe; None under another launcher or none."""
    descriptor = os.environ.get(LAUNCHER_PIPE)
    return int(descriptor) if descriptor else None


def adopt(rank: RankInfo | None, failures: Path) -> None:
    """Sets the variables of a rank that another launcher started, for ``torch.distributed`` and ours.

    Args:
        rank: Of this process; None for torchrun's only one.
        failures: Folder for its heartbeat and failure.
    """
    os.environ[FAILURES_DIR] = str(failures)
    os.environ.update(rank.environment() if rank else {})


def launch_id(environment: Mapping[str, str] = os.environ) -> str:
    """Returns what tells this launch of a job from an earlier one in the same folder; equal on all ranks."""
    if "TORCHELASTIC_RUN_ID" in environment:
        meeting = ("WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
        names = ["TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", *meeting]
    elif "SLURM_STEP_ID" in environment:
        names = ["SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"]
    else:
        names = []
    return " ".join(environment.get(name, "") for name in names)


def is_torchrun_worker(environment: Mapping[str, str] = os.environ) -> bool:
    """Tells whether torchrun started this process, be it the only one."""
    return "TORCHELASTIC_RUN_ID" in environment


def slurm_num_nodes(environment: Mapping[str, str] = os.environ) -> int:
    """Returns the number of machines of the Slurm job whose shell this is; 1 elsewhere."""
    return _number(environment, "SLURM_JOB_NUM_NODES", 1)


def _of_slurm(environment: Mapping[str, str]) -> RankInfo | None:
    """The rank that srun gave this process; None outside a step."""
    # A batch script has SLURM_PROCID=0 and the job's SLURM_NTASKS too; only srun numbers a step.
    if "SLURM_PROCID" not in environment:
        return None
    if "SLURM_STEP_NUM_TASKS" not in environment and "SLURM_STEP_ID" not in environment:
        return None
    size_name = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in environment else "SLURM_NTASKS"
    missing = [name for name in (size_name, "SLURM_LOCALID") if name not in environment]
    if missing:
        raise MachineError(
            f"SLURM_PROCID is set as by srun, but {', '.join(missing)} missing",
            where="environment",
            fix="Start with srun --export=ALL, or unset SLURM_PROCID to start the ranks from here.",
        )
    world_size = _number(environment, size_name)
    if world_size == 1:
        return RankInfo(0, 0, 1, 1)
    return RankInfo(
        _number(environment, "SLURM_PROCID"),
        _number(environment, "SLURM_LOCALID"),
        world_size,
        _tasks_of_node(environment),
        environment.get("MASTER_ADDR") or _first_host(environment),
        _number(environment, "MASTER_PORT", _port_of_step(environment)),
    )


def _tasks_of_node(environment: Mapping[str, str]) -> int:
    """From ``4(x2),3``: four tasks on each of the first two machines, three on the third."""
    for name in ("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"):
        counts: list[int] = []
        for count, repeat in re.findall(r"(\d+)(?:\(x(\d+)\))?", environment.get(name, "")):
            counts += [int(count)] * int(repeat or 1)
        node = _number(environment, "SLURM_NODEID", 0)
        if node < len(counts):
            return counts[node]
    raise MachineError(
        "srun's SLURM_STEP_TASKS_PER_NODE is missing or too short, so the ranks of this machine are unknown",
        where="environment",
        fix="Start with srun --export=ALL.",
    )


def _first_host(environment: Mapping[str, str]) -> str:
    """The machine of task 0: ``node003`` of ``node[003-010,12],other``."""
    for name in ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"):
        found = re.match(r"([^\[,]+)(?:\[(\d+)[^\]]*\]([^,]*))?", environment.get(name, ""))
        if found:
            return "".join(part or "" for part in found.groups())
    if "SLURM_LAUNCH_NODE_IPADDR" in environment:
        return environment["SLURM_LAUNCH_NODE_IPADDR"]
    raise MachineError(
        "srun's SLURM_STEP_NODELIST, SLURM_JOB_NODELIST and SLURM_LAUNCH_NODE_IPADDR are all missing, so the"
        " machine of rank 0 is unknown",
        where="environment",
        fix="Set MASTER_ADDR to its name.",
    )


def _port_of_step(environment: Mapping[str, str]) -> int:
    """A port that all tasks of a step agree on and that its neighbours do not share."""
    job, step = (_number(environment, name, 0) for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
    return _FIRST_PORT + (31 * job + step) % _NUM_PORTS


def _number(environment: Mapping[str, str], name: str, absent: int | None = None) -> int:
    text = environment.get(name, "")
    if not text and absent is not None:
        return absent
    try:
        return int(text)
    except ValueError:
        raise MachineError(
            f"{name} is {text!r}, which is no whole number", where="environment", fix=f"Set or unset {name}."
        ) from None
