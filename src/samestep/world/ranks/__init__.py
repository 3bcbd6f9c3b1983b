"""Rank discovery: one small file per launcher, each a function of the environment, asked in turn."""

from collections.abc import Mapping

from samestep.world.ranks import hydra, openmpi, pals, single, slurm, torchrun
from samestep.world.ranks.place import Place

# torchrun may itself be started by any of the others, and an mpiexec by srun; the last one always answers.
LAUNCHERS = (torchrun, pals, openmpi, hydra, slurm, single)


def discover(env: Mapping[str, str]) -> Place:
    """Where this process stands, as told by the first launcher that recognises its environment."""
    for launcher in LAUNCHERS:
        place = launcher.discover(env)
        if place is not None:
            return place
    raise AssertionError("single always answers")
