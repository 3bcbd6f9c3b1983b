"""Rank discovery: which rank this process is, from the environment variables of its launcher.

One function per launcher; the first that recognises the environment is used. The order of `LAUNCHERS` matters because
launchers start each other:

1. torchrun first, since any of the others may start it: its RANK and WORLD_SIZE are then the right ones.
2. PALS, Open MPI and MPICH before srun, since their mpiexec may start its helpers by srun. PALS and Open MPI before
   MPICH, since both set PMI_RANK too.
3. srun last: inside a job, SLURM's variables are set whatever started the process.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from samestep.core import processes
from samestep.core.errors import UserError
from samestep.core.host_lists import expand_hosts
from samestep.core.store_server import LOCALHOST
from samestep.world.host_lists import job_hosts, node_file_hosts, tasks_per_node


@dataclass(frozen=True)
class RankInfo:
    """One process among its peers. `grouped` is false only for a lone process without a launcher."""

    launcher: str
    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    grouped: bool = True
    address: str = ""
    """The host of rank 0; empty where the launcher does not name it."""
    job: str = ""
    """An id that all processes of this launch have and no others; empty where the launcher sets MASTER_PORT."""

    def __post_init__(self) -> None:
        """Refuse impossible numbers instead of guessing."""
        if not 0 <= self.rank < self.size:
            raise UserError(
                f"{self.launcher} says rank {self.rank} of {self.size}, which is out of range; "
                "check the launcher's variables and start again"
            )
        if not 0 <= self.local_rank < self.local_size <= self.size:
            raise UserError(
                f"{self.launcher} says local rank {self.local_rank} of {self.local_size} among {self.size} in all, "
                "which is impossible; check the launcher's variables and start again"
            )


def int_variables(env: Mapping[str, str], launcher: str, *names: str) -> list[int]:
    """Variables of a launcher as whole numbers; a missing one is refused, never guessed."""
    missing = [name for name in names if not env.get(name)]
    if missing:
        raise UserError(
            f"{launcher} started this process, but {', '.join(missing)} is not set, so its rank is not known: "
            "start with torchrun, srun or mpiexec, or unset the launcher's variables to run a single process"
        )
    try:
        return [int(env[name]) for name in names]
    except ValueError as error:
        raise UserError(f"the variables of {launcher} must be whole numbers ({error})") from None


TORCHRUN_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


def _torchrun(env: Mapping[str, str]) -> RankInfo | None:
    """torchrun, or whatever else sets RANK and WORLD_SIZE; None when neither is set. Half-set variables are refused."""
    if "RANK" not in env and "WORLD_SIZE" not in env:
        return None
    missing = [name for name in TORCHRUN_VARIABLES if name not in env]
    if missing:
        raise UserError(
            f"RANK or WORLD_SIZE is set but {', '.join(missing)} is not: "
            "start with torchrun, or unset RANK and WORLD_SIZE to run a single process"
        )
    rank, size, local_rank = int_variables(env, "torchrun", *TORCHRUN_VARIABLES[:3])
    local_size = int_variables(env, "torchrun", "LOCAL_WORLD_SIZE")[0] if "LOCAL_WORLD_SIZE" in env else size
    return RankInfo(env.get("SAMESTEP_LAUNCHER") or "torchrun", rank, size, local_rank, local_size)


BATCH_STEP = ("4294967291", "batch")


def _srun(env: Mapping[str, str]) -> RankInfo | None:
    """srun; None outside of a job step: the batch script itself is not a rank."""
    if env.get("SLURM_STEP_ID", BATCH_STEP[0]) in BATCH_STEP:
        return None
    rank, size, local_rank = int_variables(env, "srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID")
    nodes = expand_hosts(env.get("SLURM_STEP_NODELIST", ""))
    counts = tasks_per_node(env.get("SLURM_STEP_TASKS_PER_NODE", str(size)))
    node = int(env.get("SLURM_NODEID", 0))
    job = f"slurm {env.get('SLURM_JOB_ID')}.{env['SLURM_STEP_ID']}.{env.get('SLURM_RESTART_COUNT', 0)}"
    address = nodes[0] if len(nodes) > 1 else LOCALHOST
    return RankInfo("srun", rank, size, local_rank, counts[node], address=address, job=job)


def _pals(env: Mapping[str, str]) -> RankInfo | None:
    """The mpiexec of PALS; None when it did not start this process. PALS itself sets no variable for the world size."""
    if "PALS_RANKID" not in env:
        return None
    rank, local_rank, local_size = int_variables(env, "PALS", "PALS_RANKID", "PALS_LOCAL_RANKID", "PALS_LOCAL_SIZE")
    nodes = node_file_hosts(env)
    if env.get("PMI_SIZE"):
        size = int_variables(env, "PALS", "PMI_SIZE")[0]
    elif nodes:
        size = len(nodes) * local_size
    else:
        raise UserError(
            "PALS started this process, but neither PMI_SIZE nor PBS_NODEFILE gives the world size; "
            "pass PBS_NODEFILE on with mpiexec --env, or set WORLD_SIZE, RANK, LOCAL_WORLD_SIZE, LOCAL_RANK, "
            "MASTER_ADDR and MASTER_PORT"
        )
    address = LOCALHOST if local_size == size else (nodes[0] if nodes else "")
    return RankInfo(
        "mpiexec (PALS)", rank, size, local_rank, local_size, address=address, job=f"pals {env.get('PALS_APID')}"
    )


OPENMPI_PREFIX = "OMPI_COMM_WORLD_"
OPENMPI_JOB = ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_hnp_uri")


def _openmpi(env: Mapping[str, str]) -> RankInfo | None:
    """The mpiexec of Open MPI; None when it did not start this process."""
    if OPENMPI_PREFIX + "RANK" not in env:
        return None
    names = [OPENMPI_PREFIX + name for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")]
    rank, size, local_rank, local_size = int_variables(env, "Open MPI", *names)
    nodes = job_hosts(env)
    address = LOCALHOST if local_size == size else (nodes[0] if nodes else "")
    job = next((env[name] for name in OPENMPI_JOB if name in env), "")
    return RankInfo("mpiexec (Open MPI)", rank, size, local_rank, local_size, address=address, job=f"openmpi {job}")


def _mpich(env: Mapping[str, str]) -> RankInfo | None:
    """The mpiexec of MPICH (Hydra); None when it did not start this process. `srun --mpi=pmi2` sets PMI_RANK too."""
    if "PMI_RANK" not in env or ("MPI_LOCALRANKID" not in env and "SLURM_PROCID" in env):
        return None
    names = ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")
    rank, size, local_rank, local_size = int_variables(env, "mpiexec", *names)
    nodes = job_hosts(env)
    address = LOCALHOST if local_size == size else (nodes[0] if nodes else "")
    allocation = env.get("PBS_JOBID") or env.get("SLURM_JOB_ID") or ""
    job = f"hydra {allocation} {_control_port() or (os.getppid() if local_size == size else '')}"
    return RankInfo("mpiexec (MPICH)", rank, size, local_rank, local_size, address=address, job=job)


def _control_port() -> str:
    """Where MPICH's mpiexec listens, which is its own on all hosts: one allocation may run several at once.

    Its variables do not say so, but the command line of the helper that it starts on each host does.
    """
    pid = os.getppid()
    while pid > 1:
        words = processes.command(pid)
        if "--control-port" in words:
            return words[words.index("--control-port") + 1]
        pid = processes.parent(pid)
    return ""


LAUNCHERS = (_torchrun, _pals, _openmpi, _mpich, _srun)
"""In the order in which they are tried; see above for the reasons."""


def discover(env: Mapping[str, str]) -> RankInfo:
    """The rank of this process, from the first launcher that recognises its environment; without one it is single."""
    for from_launcher in LAUNCHERS:
        info = from_launcher(env)
        if info is not None:
            return info
    return RankInfo("single", grouped=False)


def main_address(info: RankInfo, env: Mapping[str, str]) -> str:
    """The host of rank 0: as the user or the job's script says, or as the launcher does."""
    address = env.get("MASTER_ADDR") or info.address
    if not address:
        raise UserError(f"{info.launcher} does not name the host of rank 0: set MASTER_ADDR to its name on every rank")
    return address
