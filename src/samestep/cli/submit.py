"""`samestep submit RECIPE --on slurm|pbs|local ...`: train as a batch job of a cluster, or on this machine.

Whatever `samestep train` would refuse is refused here, before a job waits in a queue.
"""

import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from samestep.cli.args import CONFIG_OPTIONS, SubmitArgs, named_config_file, options_text, parse_train, read_start
from samestep.cli.help import asks_for_help
from samestep.core.config import split_options
from samestep.core.config.files import ConfigFile, copies_of
from samestep.core.config.limits import recorded_reads
from samestep.core.errors import EXIT_DONE, UserError
from samestep.core.host_lists import expand_hosts
from samestep.core.json_files import read_object_if_readable
from samestep.core.output import print_safely, print_text
from samestep.core.rundir import RunDir
from samestep.core.status import is_done
from samestep.launching.schedulers import pbs, slurm
from samestep.launching.schedulers.job import Job, JobPart, allocate, require_one_line
from samestep.launching.schedulers.script import ScriptContext, resume_command
from samestep.launching.schedulers.submit import (
    SubmittedJob,
    active_job,
    choose_scheduler,
    job_commands,
    scripts,
    submit,
)
from samestep.train.api.recipe import Recipe, Stage
from samestep.train.api.trusted_recipes import remember_recipe
from samestep.train.record.extension import read_done, stays_stopped
from samestep.train.record.plan import global_batch
from samestep.train.record.run_record import RunRecord, free_name, is_failed_submission

HELP = """samestep submit RECIPE [--on slurm|pbs|local] [--nodes N] [--gpus-per-node G] ... [settings of the recipe]
samestep submit --resume RUN ...

Trains as a batch job. The run directory is created immediately, with the script and later its output in job/. A job
that is preempted or reaches its time limit saves, queues again and continues; a cancelled one continues with --resume.

"""


def run(args: Sequence[str]) -> int:
    """Submit, or with --dry-run print the scripts; with --on local, train. Exit code 0: the scheduler has the job."""
    if not args or asks_for_help(args):
        print_text(HELP + options_text())
        return EXIT_DONE
    submit_args = SubmitArgs.parse(args)
    require_begun(submit_args.training)
    with recorded_reads() as reads:
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
    with _run_folder(name, config, create=not job.dry_run) as path:
        around = ScriptContext(path, Path.cwd(), sys.executable)
        batch = _batch(path, recipe, config, parts)
        here = _with_args(parts, submit_args.training, around, name, config, batch)
        require_can_go_on(path, here[0].args)
        if scheduler == "local":
            return _train_here(here, dry=job.dry_run)
        training, copies = _with_copies(submit_args.training, reads, around)
        parts = _with_args(parts, training, around, name, config, batch)
        if job.dry_run:
            print_text("\n".join(scripts(parts, job, around, scheduler).values()), end="")
            return EXIT_DONE
        submitted = submit(parts, job, around, scheduler, copies)
    remember_recipe(name)  # the home of the job's nodes may be another one
    _show(around, submitted, parts, batch)
    return EXIT_DONE


def _parts(submit_args: SubmitArgs, recipe: Recipe, config: Any, scheduler: str) -> list[JobPart]:
    """One job for all stages; or one for each group of consecutive stages with the same number of GPUs."""
    stages = recipe.stages(config)
    names, own = [stage.name for stage in stages], submit_args.stage_gpus
    unknown = [name for name in own if name not in names]
    if unknown:
        raise UserError(f"--num-gpus-{unknown[0]}: there is no such stage; this recipe has {', '.join(names)}")
    workers = config.num_workers
    if not own:
        return [JobPart("train", (), allocate(submit_args.job, scheduler, workers=workers))]
    numbers = [own.get(stage.name, own.get(stage.gpus_of or "")) for stage in stages]
    rooms = [(allocate(submit_args.job, scheduler, number, workers), name) for number, name in zip(numbers, names)]
    groups = [(place, [name for _, name in group]) for place, group in groupby(rooms, key=lambda pair: pair[0])]
    return [
        JobPart(f"{number}_{'_'.join(stages_of)}", (), place, stages_of, unfinished=number < len(groups))
        for number, (place, stages_of) in enumerate(groups, start=1)
    ]


@dataclass(frozen=True)
class _Batch:
    """The run's batch, and the job from which it follows."""

    rows: int
    ranks: int
    stage: str
    """The stage that trains."""

    def __str__(self) -> str:
        each, rest = divmod(self.rows, self.ranks)
        share = f"on {self.ranks} ranks" if rest else f"{each} on each of {self.ranks} ranks"
        return f"{self.rows} rows a step, {share}, stage {self.stage}"


def _batch(path: Path, recipe: Recipe, config: Any, parts: Sequence[JobPart]) -> _Batch:
    """The run has one batch, although its jobs may have different numbers of ranks: that of the job that trains."""
    stage = _training_stage(recipe.stages(config), config)
    ranks = next(part.allocation.ranks for part in parts if not part.stages or stage in part.stages)
    known = RunRecord.read(RunDir(path))
    rows = known.global_batch if known is not None and RunDir(path).first_launch.exists() else 0
    return _Batch(rows or global_batch(config, ranks), ranks, stage)


def _training_stage(stages: Sequence[Stage], config: Any) -> str:
    """The last stage that trains with the run's batch; what goes with its GPUs follows it, and does not decide."""
    run = replace(config, global_batch_size=global_batch(config, 1))
    own = {stage.name: stage.config(run) if stage.config else run for stage in stages}
    training = [stage for stage in stages if stage.trains and stage.gpus_of is None]
    with_batch = [stage for stage in training if own[stage.name].global_batch_size == run.global_batch_size]
    return (with_batch or training or stages)[-1].name


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


@contextmanager
def _run_folder(recipe: str, config: Any, *, create: bool) -> Iterator[Path]:
    """The run directory, created before the job is submitted, since its output goes there; if an error comes out, what
    was created is removed again."""
    path = _run_path(recipe, config)
    if not create:
        yield path
        return
    made = [folder for folder in (path, *path.parents) if not folder.exists()]
    path = _make_run_folder(recipe, config)
    try:
        yield path
    except BaseException:
        for folder in made:
            with suppress(OSError):  # something else is in there
                (path if folder == made[0] else folder).rmdir()
        raise


def _run_path(recipe: str, config: Any) -> Path:
    return Path(config.out).absolute() / (config.name or free_name(recipe, config))


def _make_run_folder(recipe: str, config: Any) -> Path:
    while True:
        path = _run_path(recipe, config)
        try:
            path.mkdir(parents=True, exist_ok=config.name is not None)
        except FileExistsError:
            if config.name is not None:
                raise UserError(f"{path} is a file, where a run directory is meant; set name=... or out=...") from None
            continue  # another process has just taken the number
        except OSError as error:
            raise UserError(f"the run directory {path} cannot be created ({error.strerror}); set out=...") from None
        return path


def _with_copies(
    training: Sequence[str], reads: Mapping[Path, str], around: ScriptContext
) -> tuple[list[str], dict[Path, str]]:
    """The args with copies of the config files in the job's folder, and those: what the user edits while the job waits
    changes nothing."""
    options, rest = split_options(training, CONFIG_OPTIONS)
    source = named_config_file(options)
    if source is None:
        return list(training), {}
    copy = ConfigFile(around.job / "config", source.name)
    allowed = [f"--allow-env={options['allow-env']}"] if "allow-env" in options else []
    args = [*rest, f"--config-path={copy.folder}", f"--config-name={copy.name}", *allowed]
    return args, copies_of(source, reads, copy.folder)


def _with_args(
    parts: Sequence[JobPart], training: Sequence[str], around: ScriptContext, recipe: str, config: Any, batch: _Batch
) -> list[JobPart]:
    """The parts with their args of `samestep train`."""
    args = _common_args(training, around, recipe)
    if len(parts) > 1 and config.global_batch_size is None and "--resume" not in args:
        args.append(f"global_batch_size={batch.rows}")
        args += ["accumulation=1"] if config.accumulation > 1 else []  # it is part of that number
    ends = [[f"until={part.stages[-1]}"] for part in parts[:-1]]
    ends.append(["until=null"] if len(parts) > 1 and config.until else [])
    return [replace(part, args=[*args, *end]) for part, end in zip(parts, ends)]


def _common_args(training: Sequence[str], around: ScriptContext, recipe: str) -> list[str]:
    """The args of all parts: the run has a fixed name, so that the same command continues it. A resumed run's recipe is
    named, since a node may not know that it was started before."""
    options, rest = split_options(training, ["resume", "recipe", "name", "out"])
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


def _show(around: ScriptContext, jobs: Sequence[SubmittedJob], parts: Sequence[JobPart], batch: _Batch) -> None:
    """Print what was submitted, and the next commands."""
    print_text(f"{'run':8}{around.run}")
    print_text(f"{'batch':8}{batch}")
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


def require_begun(args: Sequence[str]) -> None:
    """Refuse to resume a run that was submitted and never began: it has no settings yet."""
    source = split_options(args, ["resume"])[0].get("resume")
    for path in (Path(source), Path("runs") / source) if source else ():
        if RunDir(path).job.is_dir() and RunRecord.read(RunDir(path)) is None:
            raise UserError(
                f"{path} has not begun to train, so there is nothing to resume; submit it as the first time, with "
                f"name={path.name}"
            )


def require_can_go_on(path: Path, args: Sequence[str]) -> None:
    """Refuse a directory whose run is another one, is finished, or is queued or running."""
    rundir = RunDir(path)
    if (job := active_job(rundir)) is not None:
        raise UserError(
            f"{path} has a job that waits or runs already, {job.job}; wait for its end, or cancel it first with: "
            f"{job_commands(job)['cancel']}"
        )
    known = RunRecord.read(rundir)
    if known is None:
        return
    rundir.lock().release()  # refuses a run that is in use
    name, recipe, config = parse_train(args)
    differing = known.differing(name, config)
    if differing and not is_failed_submission(rundir):
        raise UserError(
            f"{path} holds a different run ({', '.join(differing[:5])} differ); choose another name with name=..., or "
            f"continue that one as it is: samestep submit --resume {path}"
        )
    if not differing and _is_finished(rundir, recipe, config):
        raise UserError(
            f"{path} is finished, so there is nothing to go on with; to train longer, submit it with --resume {path} "
            "and more epochs or max_steps, or choose another name with name=..."
        )


def _is_finished(rundir: RunDir, recipe: Recipe, config: Any) -> bool:
    """Whether a launch with these settings would find nothing to do."""
    if not is_done(read_object_if_readable(rundir.status)) or config.extend:
        return False
    last, settings = list(recipe.stage_configs(config).items())[-1]
    done = read_done(rundir, last)
    return done is not None and stays_stopped(done, settings)
