"""torchrun, and every launcher that sets the same variables."""

from collections.abc import Mapping

from samestep.core.errors import UserError
from samestep.world.ranks.place import Place, numbers

NEEDED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


def discover(env: Mapping[str, str]) -> Place | None:
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
    return Place(env.get("SAMESTEP_LAUNCHER") or "torchrun", rank, size, local_rank, local_size)
