"""SLURM: processes that `srun` started. The batch script itself, which srun did not start, is no rank."""

from collections.abc import Mapping

from samestep.world.ranks.hosts import expand, per_node
from samestep.world.ranks.place import HERE, Place, numbers

BATCH = ("4294967291", "batch")


def discover(env: Mapping[str, str]) -> Place | None:
    """This process's place in its job step, or None outside of one."""
    if env.get("SLURM_STEP_ID", BATCH[0]) in BATCH:
        return None
    rank, size, local_rank = numbers(env, "srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID")
    nodes = expand(env.get("SLURM_STEP_NODELIST", ""))
    counts = per_node(env.get("SLURM_STEP_TASKS_PER_NODE", str(size)))
    node = int(env.get("SLURM_NODEID", 0))
    job = f"slurm {env.get('SLURM_JOB_ID')}.{env['SLURM_STEP_ID']}.{env.get('SLURM_RESTART_COUNT', 0)}"
    address = nodes[0] if len(nodes) > 1 else HERE
    return Place("srun", rank, size, local_rank, counts[node], address=address, job=job)
