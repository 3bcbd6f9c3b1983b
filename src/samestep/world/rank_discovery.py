"""Rank discovery: one function per launcher, each a function of the environment, asked in turn."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from samestep.core.errors import UserError
from samestep.world.host_lists import expand, of_job, of_node_file, per_node

HERE = "127.0.0.1"


@dataclass(frozen=True)
class RankInfo:
    """One process among its peers. `grouped` is false only for a lone process that nobody launched."""

    launcher: str
    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    grouped: bool = True
    address: str = ""
    """The host of rank 0, as far as the launcher tells; empty where it does not."""
    job: str = ""
    """What all processes of this launch know and those of no other; empty where ranks are told a port."""

    def __post_init__(self) -> None:
        """Refuse what cannot be, instead of guessing around it."""
        if not 0 <= self.rank < self.size:
            raise UserError(f"{self.launcher} says rank {self.rank} of {self.size}, which lies outside; start anew")
        if not 0 <= self.local_rank < self.local_size <= self.size:
            raise UserError(
                f"{self.launcher} says local rank {self.local_rank} of {self.local_size} among {self.size} in all, "
                "which cannot be; start anew"
            )


def numbers(env: Mapping[str, str], launcher: str, *names: str) -> list[int]:
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


NEEDED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


def _by_torchrun(env: Mapping[str, str]) -> RankInfo | None:
    """This process's place, or None when no rank is set. Half-set variables are refused, never guessed around."""
    if "RANK" not in env and "WORLD_SIZE" not in env:
        return None
    missing = [name for name in NEEDED if name not in env]
    if missing:
        raise UserError(
            f"RANK or WORLD_SIZE is set but {', '.join(missing)} is not: "
            "start with torchrun, or unset RANK and WORLD_SIZE to run a single process"
        )
    rank, size, local_rank = numbers(env, "torchrun", *NEEDED[:3])
    local_size = numbers(env, "torchrun", "LOCAL_WORLD_SIZE")[0] if "LOCAL_WORLD_SIZE" in env else size
    return RankInfo(env.get("SAMESTEP_LAUNCHER") or "torchrun", rank, size, local_rank, local_size)


BATCH = ("4294967291", "batch")


def _by_slurm(env: Mapping[str, str]) -> RankInfo | None:
    """This process's place in its job step, or None outside of one: the batch script itself is no rank."""
    if env.get("SLURM_STEP_ID", BATCH[0]) in BATCH:
        return None
    rank, size, local_rank = numbers(env, "srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID")
    nodes = expand(env.get("SLURM_STEP_NODELIST", ""))
    counts = per_node(env.get("SLURM_STEP_TASKS_PER_NODE", str(size)))
    node = int(env.get("SLURM_NODEID", 0))
    job = f"slurm {env.get('SLURM_JOB_ID')}.{env['SLURM_STEP_ID']}.{env.get('SLURM_RESTART_COUNT', 0)}"
    address = nodes[0] if len(nodes) > 1 else HERE
    return RankInfo("srun", rank, size, local_rank, counts[node], address=address, job=job)


def _by_pals(env: Mapping[str, str]) -> RankInfo | None:
    """This process's place, or None when PALS did not start it. PALS itself does not tell how many there are."""
    if "PALS_RANKID" not in env:
        return None
    rank, local_rank, local_size = numbers(env, "PALS", "PALS_RANKID", "PALS_LOCAL_RANKID", "PALS_LOCAL_SIZE")
    nodes = of_node_file(env)
    if env.get("PMI_SIZE"):
        size = numbers(env, "PALS", "PMI_SIZE")[0]
    elif nodes:
        size = len(nodes) * local_size
    else:
        raise UserError(
            "PALS started this process, but neither PMI_SIZE nor PBS_NODEFILE tells how many there are; "
            "pass PBS_NODEFILE on with mpiexec --env, or set WORLD_SIZE, RANK, LOCAL_RANK, MASTER_ADDR and MASTER_PORT"
        )
    address = HERE if local_size == size else (nodes[0] if nodes else "")
    return RankInfo(
        "mpiexec (PALS)", rank, size, local_rank, local_size, address=address, job=f"pals {env.get('PALS_APID')}"
    )


PREFIX = "OMPI_COMM_WORLD_"
JOB = ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_hnp_uri")


def _by_openmpi(env: Mapping[str, str]) -> RankInfo | None:
    """This process's place, or None when Open MPI did not start it."""
    if PREFIX + "RANK" not in env:
        return None
    names = [PREFIX + name for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")]
    rank, size, local_rank, local_size = numbers(env, "Open MPI", *names)
    nodes = of_job(env)
    address = HERE if local_size == size else (nodes[0] if nodes else "")
    job = next((env[name] for name in JOB if name in env), "")
    return RankInfo("mpiexec (Open MPI)", rank, size, local_rank, local_size, address=address, job=f"openmpi {job}")


def _by_mpich(env: Mapping[str, str]) -> RankInfo | None:
    """This process's place, or None when Hydra did not start it; `srun --mpi=pmi2` sets PMI_RANK too, but is srun."""
    if "PMI_RANK" not in env or ("MPI_LOCALRANKID" not in env and "SLURM_PROCID" in env):
        return None
    names = ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")
    rank, size, local_rank, local_size = numbers(env, "mpiexec", *names)
    if local_size == size:
        return RankInfo("mpiexec (MPICH)", rank, size, local_rank, size, address=HERE, job=f"hydra {os.getppid()}")
    nodes = of_job(env)
    job = env.get("PBS_JOBID") or env.get("SLURM_JOB_ID") or ""
    address = nodes[0] if nodes else ""
    return RankInfo("mpiexec (MPICH)", rank, size, local_rank, local_size, address=address, job=f"hydra {job}")


# torchrun may itself be started by any of the others, and an mpiexec by srun.
LAUNCHERS = (_by_torchrun, _by_pals, _by_openmpi, _by_mpich, _by_slurm)


def discover(env: Mapping[str, str]) -> RankInfo:
    """Where this process stands, as told by the first launcher that recognises its environment."""
    for launcher in LAUNCHERS:
        place = launcher(env)
        if place is not None:
            return place
    return RankInfo("single", grouped=False)
