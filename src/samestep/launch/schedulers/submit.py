"""Submitting: the scripts of a run go into its directory, then to the scheduler, and what came of it is noted there."""

import shlex
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from shutil import which

from samestep.core.errors import UserError
from samestep.core.records import read_json, write_atomically, write_json
from samestep.core.rundir import RunDir
from samestep.launch.schedulers import pbs, slurm
from samestep.launch.schedulers.job import Job, JobPart, Site
from samestep.launch.schedulers.script import Surroundings

COMMANDS = {"slurm": "sbatch", "pbs": "qsub"}


@dataclass(frozen=True)
class Submitted:
    """A job that a scheduler has taken."""

    job: str
    """Its number, as the scheduler says it."""
    scheduler: str
    script: str
    output: str
    stages: Sequence[str]
    time: float
    """When, in seconds since 1970."""


def scheduler_of(site: Site) -> str:
    """Who is to run the job."""
    if site.scheduler != "auto":
        return site.scheduler
    return next((name for name, command in COMMANDS.items() if which(command)), "local")


def scripts(parts: Sequence[JobPart], job: Job, around: Surroundings, scheduler: str) -> dict[Path, str]:
    """The script of every part, in their order, by the path it is to have."""
    if scheduler == "slurm":
        return {around.script(part): slurm.script(part, job, around) for part in parts}
    after = [*parts[1:], None]
    return {around.script(part): pbs.script(part, job, around, last) for part, last in zip(parts, after)}


def submit(parts: Sequence[JobPart], job: Job, around: Surroundings, scheduler: str) -> list[Submitted]:
    """Write the scripts and submit them; under SLURM each waits for the one before, PBS gets the first alone."""
    written = scripts(parts, job, around, scheduler)
    for path, content in written.items():
        write_atomically(path, content)
    done: list[Submitted] = []
    for part, path in list(zip(parts, written))[: len(parts) if scheduler == "slurm" else 1]:
        after = [earlier.job for earlier in done[-1:]]
        words = slurm.submission(str(path), after) if scheduler == "slurm" else pbs.submission(str(path), around)
        printed = _call(words, done)
        number = slurm.job_id(printed) if scheduler == "slurm" else pbs.job_id(printed)
        output = str(around.job / f"{number}.out")
        done.append(Submitted(number, scheduler, str(path), output, list(part.stages), time.time()))
        _note(RunDir(around.run), done[-1])
    return done


def care(submitted: Submitted) -> Mapping[str, str]:
    """How to look after a job: what to type for what."""
    follow = {"follow": shlex.join(["tail", "-F", submitted.output])}
    return follow | (slurm if submitted.scheduler == "slurm" else pbs).care(submitted.job)


def _call(words: Sequence[str], before: Sequence[Submitted]) -> str:
    """What a scheduler's command prints; its refusal is ours, in its own words."""
    queued = f"; already queued: {', '.join(job.job for job in before)}, to be cancelled by hand" if before else ""
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    except OSError as error:
        raise UserError(
            f"{words[0]} cannot be called here ({error.strerror}): submit where the scheduler is installed, "
            f"or train on this machine with --on local{queued}"
        ) from None
    if done.returncode != 0 or not done.stdout.strip():
        told = " ".join((done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}").split())
        raise UserError(f"{words[0]} did not take the job: {told}; mend that and submit again{queued}")
    return done.stdout


def _note(run: RunDir, submitted: Submitted) -> None:
    """Jobs of earlier submissions stay noted."""
    path = run.job / "job.json"
    known = read_json(path) or {"jobs": []}
    write_json(path, {"jobs": [*known["jobs"], asdict(submitted)]})
