"""Submitting: the scripts of a run are written into its directory and submitted, and the jobs are recorded there.

Nobody else can look into the folder of the scripts and their output: there may be secrets, such as `--env TOKEN=...`.
"""

import shlex
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from shutil import which

from samestep.core.errors import UserError
from samestep.core.records import expected_content, read_object, write_atomically, write_json
from samestep.core.rundir import RunDir
from samestep.core.safe_files import make_private_folder
from samestep.core.typed_json import from_json
from samestep.launch.schedulers import pbs, slurm
from samestep.launch.schedulers.job import Job, JobPart, Site
from samestep.launch.schedulers.script import ScriptContext

COMMANDS = {"slurm": "sbatch", "pbs": "qsub"}


@dataclass(frozen=True)
class SubmittedJob:
    """A job that a scheduler has accepted; as `job.json` has it."""

    job: str
    """Its id, as the scheduler prints it."""
    scheduler: str
    script: str
    output: str
    stages: Sequence[str]
    time: float
    """When, in seconds since 1970."""
    requeues: int = 0
    """How often the job has submitted itself again before."""


def choose_scheduler(site: Site) -> str:
    """The scheduler of a site; with auto the first whose command is found, or local."""
    if site.scheduler != "auto":
        return site.scheduler
    return next((name for name, command in COMMANDS.items() if which(command)), "local")


def scripts(parts: Sequence[JobPart], job: Job, context: ScriptContext, scheduler: str) -> dict[Path, str]:
    """The script of every part, in order, by its path."""
    if scheduler == "slurm":
        return {context.script(part): slurm.script(part, job, context) for part in parts}
    following = [*parts[1:], None]
    return {context.script(part): pbs.script(part, job, context, then) for part, then in zip(parts, following)}


def submit(parts: Sequence[JobPart], job: Job, context: ScriptContext, scheduler: str) -> list[SubmittedJob]:
    """Write the scripts and submit them; under SLURM each waits for the one before, PBS gets the first alone."""
    written = scripts(parts, job, context, scheduler)
    make_private_folder(context.job)
    for path, content in written.items():
        write_atomically(path, content, private=True)
    done: list[SubmittedJob] = []
    for part, path in list(zip(parts, written))[: len(parts) if scheduler == "slurm" else 1]:
        after = [earlier.job for earlier in done[-1:]]
        command = slurm.submission(str(path), after) if scheduler == "slurm" else pbs.submission(str(path))
        printed = _run_command(command, done)
        job_id = slurm.job_id(printed) if scheduler == "slurm" else pbs.job_id(printed)
        output = str(context.job / f"{job_id}.out")
        done.append(SubmittedJob(job_id, scheduler, str(path), output, list(part.stages), time.time()))
        record(RunDir(context.run), done[-1])
    return done


def job_commands(submitted: SubmittedJob) -> Mapping[str, str]:
    """The commands to follow, watch and cancel a job, by purpose."""
    follow = {"follow": shlex.join(["tail", "-F", submitted.output])}
    return follow | (slurm if submitted.scheduler == "slurm" else pbs).job_commands(submitted.job)


def _run_command(command: Sequence[str], before: Sequence[SubmittedJob]) -> str:
    """What a scheduler's command prints; if it fails, its message is raised."""
    queued = f"; already queued: {', '.join(job.job for job in before)}, to be cancelled by hand" if before else ""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise UserError(
            f"{command[0]} cannot be called here ({error.strerror}): submit where the scheduler is installed, "
            f"or train on this machine with --on local{queued}"
        ) from None
    if done.returncode != 0 or not done.stdout.strip():
        message = " ".join((done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}").split())
        advice = pbs.hint(message) or "; fix that and submit again"
        raise UserError(f"{command[0]} did not accept the job: {message}{advice}{queued}")
    return done.stdout


def recorded(run: RunDir) -> list[SubmittedJob]:
    """All jobs of a run, in the order in which they were submitted."""
    path = run.job / "job.json"
    with expected_content(path):
        return [from_json(SubmittedJob, job) for job in read_object(path).get("jobs", ())]


def record(run: RunDir, submitted: SubmittedJob) -> None:
    """Add a job to `job.json`, which keeps those before it."""
    write_json(run.job / "job.json", {"jobs": [asdict(job) for job in (*recorded(run), submitted)]}, private=True)
