"""Submitting: the scripts of a run are written into its directory and submitted, and the jobs are recorded there.

Nobody else can look into the folder of the scripts and their output: there may be secrets, such as `--env TOKEN=...`.
A submission that is refused leaves nothing behind.
"""

import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from shutil import which

from samestep.core.errors import UserError
from samestep.core.json_files import expected_content, read_object, write_atomically, write_json
from samestep.core.rundir import RunDir
from samestep.core.safe_files import make_private_folder
from samestep.core.typed_json import from_json
from samestep.launching.schedulers import pbs, slurm
from samestep.launching.schedulers.job import Job, JobPart, Site
from samestep.launching.schedulers.requeue import begin_counting
from samestep.launching.schedulers.script import ScriptContext

COMMANDS = {"slurm": "sbatch", "pbs": "qsub"}
_TIMEOUT = 60.0
_LAST_JOBS = 8
"""Jobs of a run about which the scheduler is asked, the last ones: those before have ended."""


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


def submit(
    parts: Sequence[JobPart],
    job: Job,
    context: ScriptContext,
    scheduler: str,
    config_files: Mapping[Path, str] | None = None,
) -> list[SubmittedJob]:
    """Write the scripts and submit them; under SLURM each waits for the one before, PBS gets the first alone.

    `config_files` are the files that the scripts name, by their path in the job's folder. If the scheduler refuses a
    job, those before it are cancelled, and the folder is as it was.
    """
    written, run = scripts(parts, job, context, scheduler), RunDir(context.run)
    done: list[SubmittedJob] = []
    with _as_before_if_refused(run), _cancelled_if_refused(done):
        make_private_folder(context.job)
        for path, content in {**(config_files or {}), **written}.items():
            write_atomically(path, content, private=True)
        begin_counting(run)
        for part, path in list(zip(parts, written))[: len(parts) if scheduler == "slurm" else 1]:
            after = [earlier.job for earlier in done[-1:]]
            command = slurm.submission(str(path), after) if scheduler == "slurm" else pbs.submission(str(path))
            printed = _run_command(command)
            job_id = slurm.job_id(printed) if scheduler == "slurm" else pbs.job_id(printed)
            output = str(context.job / f"{job_id}.out")
            done.append(SubmittedJob(job_id, scheduler, str(path), output, list(part.stages), time.time()))
            record(run, done[-1])
    return done


@contextmanager
def _as_before_if_refused(run: RunDir) -> Iterator[None]:
    """Where an error comes out, what was written into the job's folder is removed; what was replaced comes back."""
    folder = run.job
    before = {path: path.read_bytes() for path in _written_files(folder)}
    existed = folder.exists()
    try:
        yield
    except BaseException:
        for path in set(_written_files(folder)) - before.keys():
            path.unlink(missing_ok=True)
        for path, content in before.items():
            write_atomically(path, content.decode(), private=True)
        if not existed:
            shutil.rmtree(folder, ignore_errors=True)
        raise


def _written_files(folder: Path) -> list[Path]:
    """The files of a job's folder that a submission writes: not what jobs have printed."""
    kinds = (".sh", ".json", ".yaml")
    return [path for path in folder.rglob("*") if path.suffix in kinds and path.is_file()]


@contextmanager
def _cancelled_if_refused(done: Sequence[SubmittedJob]) -> Iterator[None]:
    """Where the scheduler refuses a job, those that it took before are cancelled."""
    try:
        yield
    except UserError as error:
        left = [job for job in done if not _is_cancelled(job)]
        commands = ", ".join(job_commands(job)["cancel"] for job in left)
        raise UserError(f"{error}; cancel the jobs before it with: {commands}" if left else str(error)) from None


def _is_cancelled(job: SubmittedJob) -> bool:
    try:
        done = subprocess.run(shlex.split(job_commands(job)["cancel"]), capture_output=True, timeout=_TIMEOUT)
    except (OSError, subprocess.SubprocessError):
        return False
    return done.returncode == 0


def active_job(run: RunDir) -> SubmittedJob | None:
    """A job of the run that waits or runs, as far as the scheduler says so."""
    return next((job for job in reversed(recorded(run)[-_LAST_JOBS:]) if _is_active(job)), None)


def _is_active(job: SubmittedJob) -> bool:
    command, pattern = (slurm if job.scheduler == "slurm" else pbs).state_query(job.job)
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT)
    except (OSError, subprocess.SubprocessError):
        return False
    return done.returncode == 0 and re.search(pattern, done.stdout) is not None


def job_commands(submitted: SubmittedJob) -> Mapping[str, str]:
    """The commands to follow, watch and cancel a job, by purpose."""
    follow = {"follow": shlex.join(["tail", "-F", submitted.output])}
    return follow | (slurm if submitted.scheduler == "slurm" else pbs).job_commands(submitted.job)


def _run_command(command: Sequence[str]) -> str:
    """What a scheduler's command prints; if it fails, its message is raised."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise UserError(
            f"{command[0]} cannot be called here ({error.strerror}): submit where the scheduler is installed, "
            "or train on this machine with --on local"
        ) from None
    if done.returncode != 0 or not done.stdout.strip():
        message = " ".join((done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}").split())
        advice = pbs.hint(message) or "; fix that and submit again"
        raise UserError(f"{command[0]} did not accept the job: {message}{advice}")
    return done.stdout


def recorded(run: RunDir) -> list[SubmittedJob]:
    """All jobs of a run, in the order in which they were submitted."""
    path = run.job / "job.json"
    with expected_content(path):
        return [from_json(SubmittedJob, job) for job in read_object(path).get("jobs", ())]


def record(run: RunDir, submitted: SubmittedJob) -> None:
    """Add a job to `job.json`, which keeps those before it."""
    write_json(run.job / "job.json", {"jobs": [asdict(job) for job in (*recorded(run), submitted)]}, private=True)
