"""What `samestep submit` refuses of a run that exists already, before a job waits in a queue only to find it out."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from samestep.cli.args import parse_train
from samestep.core.config import split_options
from samestep.core.errors import UserError
from samestep.core.records import read_object_if_readable
from samestep.core.rundir import RunDir
from samestep.core.status import is_done
from samestep.launching.schedulers.submit import active_job, job_commands
from samestep.train.api.recipe import Recipe
from samestep.train.record.extension import read_done, stays_stopped
from samestep.train.record.run_record import RunRecord, is_failed_submission


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
