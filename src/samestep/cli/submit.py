"""`samestep submit RECIPE --on slurm|pbs|local ...`: train as a job of a cluster, or, without one, right here.

Whatever `samestep train` would refuse is refused here, before anything waits in a queue.
"""

import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

from samestep.cli.args import SubmitArgs, chosen, options_text
from samestep.core.config.command_line import take
from samestep.core.durations import parse_duration
from samestep.core.errors import EXIT_DONE, UserError
from samestep.core.output import put
from samestep.core.rundir import RunDir
from samestep.launch.schedulers import pbs
from samestep.launch.schedulers.job import Job, JobPart, room
from samestep.launch.schedulers.script import Surroundings, resume
from samestep.launch.schedulers.submit import Submitted, care, scheduler_of, scripts, submit
from samestep.train.plan import global_batch
from samestep.train.recipe import Recipe
from samestep.train.run_record import RunRecord, free_name
from samestep.world.host_lists import expand

HELP = """samestep submit RECIPE [--on slurm|pbs|local] [--nodes N] [--gpus-per-node G] ... [settings of the recipe]
samestep submit --resume RUN ...

Trains as a job. The run directory is there at once, with the script and later its output in job/. A job that is
preempted or comes to its time limit saves, queues again and goes on from there; a cancelled one goes on with --resume.

"""


def run(words: Sequence[str]) -> int:
    """Submit, or print what would be; with --on local, train. Exit code 0: the scheduler has the job."""
    if not words or words[0] in ("-h", "--help"):
        print(HELP + options_text())
        return EXIT_DONE
    asked = SubmitArgs.read(words)
    name, recipe, config = chosen(asked.training)
    scheduler = scheduler_of(asked.job.site)
    parts = _parts(asked, recipe, config, scheduler)
    job = _checked(asked.job, scheduler, parts)
    around = Surroundings(_run_path(name, config, create=not job.dry_run), Path.cwd(), sys.executable)
    parts = _complete(parts, asked, around, config, scheduler)
    _require_same_run(around.run, parts[0].words)
    if scheduler == "local":
        return _train_here(parts, dry=job.dry_run)
    if job.dry_run:
        print("\n".join(scripts(parts, job, around, scheduler).values()), end="")
        return EXIT_DONE
    _show(around, submit(parts, job, around, scheduler), parts)
    return EXIT_DONE


def _parts(asked: SubmitArgs, recipe: Recipe, config: Any, scheduler: str) -> list[JobPart]:
    """One job for all stages; or one for each run of stages that have the same number of GPUs."""
    stages = [stage.name for stage in recipe.stages(config)]
    strange = [name for name in asked.stage_gpus if name not in stages]
    if strange:
        raise UserError(f"--num-gpus-{strange[0]}: there is no such stage; this recipe has {', '.join(stages)}")
    if not asked.stage_gpus:
        return [JobPart("train", (), room(asked.job, scheduler))]
    rooms = [(room(asked.job, scheduler, asked.stage_gpus.get(stage)), stage) for stage in stages]
    groups = [(place, [stage for _, stage in group]) for place, group in groupby(rooms, key=lambda pair: pair[0])]
    return [
        JobPart(f"{number}_{'_'.join(names)}", (), place, names, unfinished=number < len(groups))
        for number, (place, names) in enumerate(groups, start=1)
    ]


def _checked(job: Job, scheduler: str, parts: Sequence[JobPart]) -> Job:
    """The job without what cannot be; what nobody can mean is refused."""
    if scheduler == "local" and any(part.room.nodes > 1 for part in parts):
        raise UserError("--on local is this machine alone; leave out --nodes, or submit with --on slurm or --on pbs")
    for name in pbs.unused(job) if scheduler == "pbs" else ():
        raise UserError(f"--{name} is for SLURM; under PBS write --select or --directive")
    if scheduler == "pbs" and job.time is None:
        _warn("without --time the run cannot stop and save before PBS ends it; it goes on from its last checkpoint")
    if job.nodelist and len(expand(job.nodelist)) > max(part.room.nodes for part in parts) == 1:
        _warn(
            f"--nodelist {job.nodelist} is ignored: it names several nodes, but this training takes one (see --nodes)"
        )
        return replace(job, nodelist=None)
    return job


def _run_path(recipe: str, config: Any, *, create: bool) -> Path:
    """The run directory, made before anything is submitted: the job's output goes there."""
    out = Path(config.out).absolute()
    while True:
        path = out / (config.name or free_name(recipe, config))
        if not create:
            return path
        try:
            path.mkdir(parents=True, exist_ok=config.name is not None)
        except FileExistsError:  # somebody else took the number just now
            continue
        except OSError as error:
            raise UserError(f"the run directory {path} cannot be made ({error.strerror}); set out=...") from None
        return path


def _require_same_run(path: Path, words: Sequence[str]) -> None:
    """A directory that holds something else would be refused by the job; better now than after a night in the queue."""
    known = RunRecord.read(RunDir(path))
    if known is None:
        return
    recipe, _, config = chosen(words)
    differing = known.differing(recipe, config)
    if differing:
        raise UserError(
            f"{path} holds a different run ({', '.join(differing[:5])} differ); choose another name with name=..., or "
            f"go on with that one as it is: samestep submit --resume {path}"
        )


def _complete(
    parts: Sequence[JobPart], asked: SubmitArgs, around: Surroundings, config: Any, scheduler: str
) -> list[JobPart]:
    """The parts with their words of `samestep train`."""
    words = _words(asked, around)
    if len(parts) > 1 and config.global_batch_size is None and "--resume" not in words:
        # Parts have different numbers of ranks, but it is one run with one batch: that of its last part.
        words.append(f"global_batch_size={global_batch(config, parts[-1].room.ranks)}")
    limit = pbs.max_time(asked.job) if scheduler == "pbs" else None
    if limit is not None and (config.max_time is None or limit < parse_duration(config.max_time)):
        words.append(f"max_time={limit}s")
    ends = [[f"until={part.stages[-1]}"] for part in parts[:-1]]
    ends.append(["until=null"] if len(parts) > 1 and config.until else [])
    return [replace(part, words=[*words, *end]) for part, end in zip(parts, ends)]


def _words(asked: SubmitArgs, around: Surroundings) -> list[str]:
    """What is the same in all parts: the run has a fixed name, so that the same command goes on with it."""
    options, rest = take(asked.training, ["resume", "name", "out"])
    words = [word for word in rest if not word.startswith(("name=", "out="))]
    if "resume" in options:
        return ["--resume", str(around.run), *words]
    return [*words, f"name={around.run.name}", f"out={around.run.parent}"]


def _train_here(parts: Sequence[JobPart], *, dry: bool) -> int:
    """The same without a scheduler, one part after the other."""
    from samestep.cli.train import run as train

    for part in parts:
        words = ["--nproc", str(part.room.ranks), *part.words]
        if dry:
            print(shlex.join(["samestep", "train", *words]))
        elif code := train(words):
            return code
    return EXIT_DONE


def _show(around: Surroundings, jobs: Sequence[Submitted], parts: Sequence[JobPart]) -> None:
    """What was submitted, and what to type next."""
    print(f"{'run':8}{around.run}")
    for submitted, part in zip(jobs, parts):
        stages = f", stage {', '.join(part.stages)}" if part.stages else ""
        print(f"{'job':8}{submitted.job}: {part.room.nodes} x {part.room.tasks} ranks{stages}")
        for purpose, command in care(submitted).items():
            print(f"{purpose:8}{command}")
    for part in parts[len(jobs) :]:
        print(f"{'then':8}{around.script(part)}: {part.room.nodes} x {part.room.tasks} ranks, {', '.join(part.stages)}")
    print(f"{'resume':8}{resume(around)}")


def _warn(sentence: str) -> None:
    put(f"samestep: {sentence}", sys.stderr)
