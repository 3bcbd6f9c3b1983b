"""PALS: `mpiexec` of HPE's machines, as on Aurora."""

from collections.abc import Mapping

from samestep.core.errors import UserError
from samestep.world.ranks.hosts import of_node_file
from samestep.world.ranks.place import HERE, Place, numbers


def discover(env: Mapping[str, str]) -> Place | None:
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
    return Place(
        "mpiexec (PALS)", rank, size, local_rank, local_size, address=address, job=f"pals {env.get('PALS_APID')}"
    )
