"""MPICH's `mpiexec` (Hydra), and others that speak PMI."""

import os
from collections.abc import Mapping

from samestep.world.ranks.hosts import of_job
from samestep.world.ranks.place import HERE, Place, numbers


def discover(env: Mapping[str, str]) -> Place | None:
    """This process's place, or None when Hydra did not start it; `srun --mpi=pmi2` sets PMI_RANK too, but is srun."""
    if "PMI_RANK" not in env or ("MPI_LOCALRANKID" not in env and "SLURM_PROCID" in env):
        return None
    names = ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")
    rank, size, local_rank, local_size = numbers(env, "mpiexec", *names)
    if local_size == size:
        return Place("mpiexec (MPICH)", rank, size, local_rank, size, address=HERE, job=f"hydra {os.getppid()}")
    nodes = of_job(env)
    job = env.get("PBS_JOBID") or env.get("SLURM_JOB_ID") or ""
    address = nodes[0] if nodes else ""
    return Place("mpiexec (MPICH)", rank, size, local_rank, local_size, address=address, job=f"hydra {job}")
