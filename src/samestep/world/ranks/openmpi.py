"""Open MPI's `mpiexec`."""

from collections.abc import Mapping

from samestep.world.ranks.hosts import of_job
from samestep.world.ranks.place import HERE, Place, numbers

PREFIX = "OMPI_COMM_WORLD_"
JOB = ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_hnp_uri")


def discover(env: Mapping[str, str]) -> Place | None:
    """This process's place, or None when Open MPI did not start it."""
    if PREFIX + "RANK" not in env:
        return None
    names = [PREFIX + name for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")]
    rank, size, local_rank, local_size = numbers(env, "Open MPI", *names)
    nodes = of_job(env)
    address = HERE if local_size == size else (nodes[0] if nodes else "")
    job = next((env[name] for name in JOB if name in env), "")
    return Place("mpiexec (Open MPI)", rank, size, local_rank, local_size, address=address, job=f"openmpi {job}")
