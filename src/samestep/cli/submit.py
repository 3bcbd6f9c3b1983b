"""`samestep submit RECIPE --on slurm|pbs|local ...`: train as a batch job of a cluster, or on this machine.

Whatever `samestep train` would refuse is refused here, before a job waits in a queue.
"""

import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

from samestep.cli.args import SubmitArgs, options_text, parse_train, read_start
from samestep.core.config import split_options
from samestep.core.errors import EXIT_DONE, UserError
from samestep.core.host_lists import expand_hosts
from samestep.core.output import print_safely, print_text
from samestep.core.rundir import RunDir
from samestep.launch.schedulers import pbs, slurm
from samestep.launch.schedulers.job import Job, JobPart, allocate, require_one_line
from samestep.launch.schedulers.script import ScriptContext, resume_command
from samestep.launch.schedulers.submit import SubmittedJob, choose_scheduler, job_commands, scripts, submit
from samestep.train.plan import global_batch
from samestep.train.recipe import Recipe
from samestep.train.run_record import RunRecord, free_name
from samestep.train.trusted_recipes import remember_recipe

HELP = """samestep submit RECIPE [--on slurm|pbs|local] [--nodes N] [--gpus-per-node G] ... [settings of the recipe]
samestep submit --resume RUN ...

Trains as a batch job. The run directory is created immediately, with the script and later its output in job/. A job
that is preempted or reaches its time limit saves, queues again and continues; a cancelled one continues with --resume.

"""


def run(args: Sequence[str]) -> int:
    """Submit, or with --dry-run print the scripts; with --on local, train. Exit code 0: the scheduler has the job."""
    if not args or args[0] in ("-h", "--help"):
        print_text(HELP + options_text())
        return EXIT_DONE
    submit_args = SubmitArgs.parse(args)
    start = read_start(submit_args.training)
    name, recipe, (config, notes) = start.name, start.recipe, start.config()
    for note in notes:
        _warn(note)
    scheduler = choose_scheduler(submit_args.job.site)
    parts = _parts(submit_args, recipe, config, scheduler)
    job = _checked(submit_args.job, scheduler, parts)
    if scheduler != "local":  # the head of a job script names both
        check = pbs.require_plain_path if scheduler == "pbs" else require_one_line
        check("the run directory", str(Path(config.out, config.name or "").absolute()))
        check("the working directory", str(Path.cwd()))
    around = ScriptContext(_run_path(name, config, create=not job.dry_run), Path.cwd(), sys.executable)
    parts = _with_args(parts, submit_args, around, name, config)
    _require_same_run(around.run, parts[0].args)
    if scheduler == "local":
        return _train_here(parts, dry=job.dry_run)
    if job.dry_run:
        print_text("\n".join(scripts(parts, job, around, scheduler).values()), end="")
        return EXIT_DONE
    remember_recipe(name)  # the home of the job's nodes may be another one
    _show(around, submit(parts, job, around, scheduler), parts)
    return EXIT_DONE


def _parts(submit_args: SubmitArgs, recipe: Recipe, config: Any, scheduler: str) -> list[JobPart]:
    """One job for all stages; or one for each group of consecutive stages with the same number of GPUs."""
    stages = [stage.name for stage in recipe.stages(config)]
    unknown = [name for name in submit_args.stage_gpus if name not in stages]
    if unknown:
        raise UserError(f"--num-gpus-{unknown[0]}: there is no such stage; this recipe has {', '.join(stages)}")
    if not submit_args.stage_gpus:
        return [JobPart("train", (), allocate(submit_args.job, scheduler))]
    rooms = [(allocate(submit_args.job, scheduler, submit_args.stage_gpus.get(stage)), stage) for stage in stages]
    groups = [(place, [stage for _, stage in group]) for place, group in groupby(rooms, key=lambda pair: pair[0])]
    return [
        JobPart(f"{number}_{'_'.join(names)}", (), place, names, unfinished=number < len(groups))
        for number, (place, names) in enumerate(groups, start=1)
    ]


def _checked(job: Job, scheduler: str, parts: Sequence[JobPart]) -> Job:
    """The job without options that have no effect here; contradictions are refused."""
    if scheduler == "local" and any(part.allocation.nodes > 1 for part in parts):
        raise UserError("--on local is this machine alone; leave out --nodes, or submit with --on slurm or --on pbs")
    if scheduler != "local":
        (pbs if scheduler == "pbs" else slurm).require_supported(job)
    if scheduler == "pbs" and not job.dry_run:
        pbs.require_pbs()
    if job.nodelist and len(expand_hosts(job.nodelist)) > max(part.allocation.nodes for part in parts) == 1:
        _warn(
            f"--nodelist {job.nodelist} is ignored: it names several nodes, but this training takes one (see --nodes)"
        )
        return replace(job, nodelist=None)
    return job


def _run_path(recipe: str, config: Any, *, create: bool) -> Path:
    """The run directory, created before the job is submitted: the job's output goes there."""
    out = Path(config.out).absolute()
    while True:
        path = out / (config.name or free_name(recipe, config))
        if not create:
            return path
        try:
            path.mkdir(parents=True, exist_ok=config.name is not None)
        except FileExistsError:
            if config.name is not None:
                raise UserError(f"{path} is a file, where a run directory is meant; set name=... or out=...") from None
            continue  # another process has just taken the number
        except OSError as error:
            raise UserError(f"the run directory {path} cannot be created ({error.strerror}); set out=...") from None
        return path


def _require_same_run(path: Path, args: Sequence[str]) -> None:
    """Refuse a directory that holds a different run now: the job would refuse it only after waiting in the queue."""
    known = RunRecord.read(RunDir(path))
    if known is None:
        return
    recipe, _, config = parse_train(args)
    differing = known.differing(recipe, config)
    if differing:
        raise UserError(
            f"{path} holds a different run ({', '.join(differing[:5])} differ); choose another name with name=..., or "
            f"continue that one as it is: samestep submit --resume {path}"
        )


def _with_args(
    parts: Sequence[JobPart], submit_args: SubmitArgs, around: ScriptContext, recipe: str, config: Any
) -> list[JobPart]:
    """The parts with their args of `samestep train`."""
    args = _common_args(submit_args, around, recipe)
    if len(parts) > 1 and config.global_batch_size is None and "--resume" not in args:
        # Parts have different numbers of ranks, but the run has one batch size: that of its last part.
        args.append(f"global_batch_size={global_batch(config, parts[-1].allocation.ranks)}")
        args += ["accumulation=1"] if config.accumulation > 1 else []  # it is part of that number
    ends = [[f"until={part.stages[-1]}"] for part in parts[:-1]]
    ends.append(["until=null"] if len(parts) > 1 and config.until else [])
    return [replace(part, args=[*args, *end]) for part, end in zip(parts, ends)]


def _common_args(submit_args: SubmitArgs, around: ScriptContext, recipe: str) -> list[str]:
    """The args of all parts: the run has a fixed name, so that the same command continues it. A resumed run's recipe is
    named, since a node may not know that it was started before."""
    options, rest = split_options(submit_args.training, ["resume", "recipe", "name", "out"])
    args = [arg for arg in rest if not arg.startswith(("name=", "out="))]
    source = options.get("resume")
    if source is not None and not Path(source).is_file():
        return ["--resume", str(around.run), "--recipe", recipe, *args]
    if source is not None:
        args.append(f"--resume={source}")
    return [*args, f"name={around.run.name}", f"out={around.run.parent}"]


def _train_here(parts: Sequence[JobPart], *, dry: bool) -> int:
    """Train on this machine without a scheduler, one part after the other."""
    from samestep.cli.train import run as train

    for part in parts:
        args = ["--nproc", str(part.allocation.ranks), *part.args]
        if dry:
            print_text(shlex.join(["samestep", "train", *args]))
        elif code := train(args):
            return code
    return EXIT_DONE


def _show(around: ScriptContext, jobs: Sequence[SubmittedJob], parts: Sequence[JobPart]) -> None:
    """Print what was submitted, and the next commands."""
    print_text(f"{'run':8}{around.run}")
    for submitted, part in zip(jobs, parts):
        stages = f", stage {', '.join(part.stages)}" if part.stages else ""
        print_text(f"{'job':8}{submitted.job}: {part.allocation.nodes} x {part.allocation.tasks} ranks{stages}")
        for purpose, command in job_commands(submitted).items():
            print_text(f"{purpose:8}{command}")
    for part in parts[len(jobs) :]:
        size = f"{part.allocation.nodes} x {part.allocation.tasks} ranks"
        print_text(f"{'then':8}{around.script(part)}: {size}, {', '.join(part.stages)}")
    print_text(f"{'resume':8}{resume_command(around)}")


def _warn(sentence: str) -> None:
    print_safely(f"samestep: {sentence}", sys.stderr)
