"""`samestep submit RECIPE --on slurm|pbs|local ...`: train as a job of a cluster, or, without one, right here.

Whatever `samestep train` would refuse is refused here, before anything waits in a queue.
"""

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

from samestep.cli.train_words import chosen
from samestep.core import compose_files as files
from samestep.core.compose import amend
from samestep.core.config_fields import fields_of, paths_of
from samestep.core.config_types import is_flag
from samestep.core.errors import EXIT_DONE, UserError
from samestep.core.overrides import take
from samestep.core.terminal import put
from samestep.launch import pbs
from samestep.launch.script import Surroundings, training
from samestep.launch.site import SHORT, VARIABLE, Job, Part, Room, room
from samestep.launch.submit import Submitted, care, scheduler_of, scripts, submit
from samestep.train.opening import free_name
from samestep.train.plan import global_batch, seconds
from samestep.train.recipe import Recipe
from samestep.world.ranks.hosts import expand

HELP = """samestep submit RECIPE [--on slurm|pbs|local] [--nodes N] [--gpus-per-node G] ... [settings of the recipe]
samestep submit --resume RUN ...

Trains as a job. The run directory is there at once, with the script and, later, its output in job/. A job that is
preempted or comes to its time limit saves, queues again and goes on from there; a cancelled one can be submitted
again by the same command with name=NAME, or with --resume NAME.

"""
LISTS = {"directive": "directives", "module": "modules", "setup": "setup", "srun": "srun"}
"""Options that may be given several times, and what they add to in the site."""
_STAGE = "num_gpus_"


def run(words: Sequence[str]) -> int:
    """Submit, or print what would be; with --on local, train. Exit code 0: the scheduler has the job."""
    if not words or words[0] in ("-h", "--help"):
        print(HELP + _options())
        return EXIT_DONE
    asked = Asked.read(words)
    name, recipe, config = chosen(asked.training)
    job, scheduler = asked.job, scheduler_of(asked.job.site)
    parts = _parts(asked, name, recipe, config, scheduler)
    if job.nodelist and parts[-1].room.nodes == 1 and len(expand(job.nodelist)) > 1:
        _warn(
            f"--nodelist {job.nodelist} names several nodes, but this training takes one, so it is ignored; "
            "ask for more with --nodes"
        )
        job = replace(job, nodelist=None)
    around = Surroundings(_run_path(name, config, create=not job.dry_run), Path.cwd(), sys.executable)
    parts = [_settled(part, around, job, config, scheduler) for part in parts]
    if scheduler == "local":
        return _here(parts, around, job)
    if job.dry_run:
        print("\n".join(scripts(parts, job, around, scheduler).values()), end="")
        return EXIT_DONE
    _show(around, submit(parts, job, around, scheduler), parts)
    return EXIT_DONE
