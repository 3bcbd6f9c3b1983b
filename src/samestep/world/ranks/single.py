"""No launcher: one process, no process group."""

from collections.abc import Mapping

from samestep.world.ranks.place import Place


def discover(env: Mapping[str, str]) -> Place:
    """Always one process alone."""
    return Place("single", grouped=False)
