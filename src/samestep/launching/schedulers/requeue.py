"""Whether a job that stopped before the end queues again: not for ever, where its launches save nothing. It is done in
slurm_requeue.py and pbs_job.py.

What was saved at the last stop is kept in `job/progress.json`, with the number of launches since then that saved
nothing new. The checkpoints themselves are counted, since a launch that ends while Python still imports leaves no
other trace.
"""

from dataclasses import dataclass
from pathlib import Path

from samestep.core.json_files import read_object_if_readable, write_json
from samestep.core.rundir import DONE, RunDir

MOST_IDLE = 2
"""Launches in a row without a step after which a job does not queue again."""


@dataclass(frozen=True)
class StoppedLaunch:
    """A launch of a job that has stopped before the end."""

    saved: str
    """Where the run goes on; empty: this launch has saved nothing."""
    idle: int
    """Launches in a row that reached their time limit without a step, with this one."""

    def __str__(self) -> str:
        return f"stopped and saved ({self.saved})" if self.saved else "stopped before a new step was saved"

    @property
    def needs_time(self) -> bool:
        """Whether the time limit is too short for the job to get anywhere."""
        return self.idle >= MOST_IDLE

    def why_not_again(self, requeues: int, most: int) -> str:
        """Why the job does not queue again after `requeues` times; empty: it may."""
        if self.needs_time:
            return f"{self.idle} launches in a row made no step, so the time limit is too short for start-up"
        if requeues >= most:
            return f"it was queued again as often as --max-requeues allows, {most} times"
        return ""


def begin_counting(run: RunDir) -> None:
    """At submission: launches have to get beyond what is there now."""
    _write(run, _saved(run), 0)


def count_launch(run: RunDir, *, reached_limit: bool = True) -> StoppedLaunch:
    """At the end of a launch that stopped; one that was stopped before its time limit is not counted as idle."""
    before, now = read_object_if_readable(_file(run)), _saved(run)
    is_new = now != before.get("saved", {})
    idle = 0 if is_new else int(before.get("idle", 0)) + reached_limit
    _write(run, now, idle)
    return StoppedLaunch(", ".join(_described(now, before.get("saved", {}))), idle)


def _described(now: dict[str, str], before: dict[str, str]) -> list[str]:
    return [f"stage {stage} {at}" for stage, at in now.items() if before.get(stage) != at]


def _saved(run: RunDir) -> dict[str, str]:
    """How far each stage has come, by its checkpoints."""
    found = {}
    for stage in sorted(_folders(run.checkpoints("x").parent) | _folders(run.artifacts("x").parent)):
        steps = [path.name.removeprefix("step_") for path in run.checkpoints(stage).glob("step_*")]
        newest = max((int(step) for step in steps if step.isdigit()), default=None)
        if (run.artifacts(stage) / DONE).exists():
            found[stage] = "done"
        elif newest is not None:
            found[stage] = f"at step {newest}"
    return found


def _folders(path: Path) -> set[str]:
    return {folder.name for folder in path.glob("*") if folder.is_dir()}


def _file(run: RunDir) -> Path:
    return run.job / "progress.json"


def _write(run: RunDir, saved: dict[str, str], idle: int) -> None:
    write_json(_file(run), {"saved": saved, "idle": idle}, private=True)
