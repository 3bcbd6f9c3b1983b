"""What the scheduler that ran the job and the kernel know about a run's end, where their commands exist."""

import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from shutil import which

from samestep.core.records import Json
from samestep.why.records import SchedulerJob

_TIMEOUT = 10.0
_TAIL = 20
"""Lines at the end of a job's output in which the scheduler may have written how it ended."""
_PHRASES = {  # what SLURM writes into a job's output, and the state that it means; the first match counts
    "oom_kill": "OUT_OF_MEMORY",
    "oom-kill": "OUT_OF_MEMORY",
    "Out Of Memory": "OUT_OF_MEMORY",
    "DUE TO TIME LIMIT": "TIMEOUT",
    "DUE TO PREEMPTION": "PREEMPTED",
    "DUE TO NODE FAILURE": "NODE_FAIL",
    "DUE TO JOB REQUEUE": "REQUEUED",
    "CANCELLED AT": "CANCELLED",
}


def last_job(jobs: Sequence[Mapping[str, Json]]) -> SchedulerJob | None:
    """The job that ran the last launch: the last one that has started."""
    found = None
    for noted in reversed(jobs):
        job = _query(noted)
        found = found or job
        if not job.is_queued:
            return job
    return found


def _query(noted: Mapping[str, Json]) -> SchedulerJob:
    number, output = str(noted["job"]), str(noted.get("output", ""))
    job = SchedulerJob(number, str(noted.get("scheduler", "")), script=str(noted.get("script", "")), output=output)
    if job.scheduler != "slurm":
        return job
    state, source = _slurm(number)
    if not state:
        state, source = state_in_output(output), output
    return SchedulerJob(number, job.scheduler, state, source if state else "", job.script, output)


def _slurm(number: str) -> tuple[str, str]:
    """The state of a job, and the command that gave it. The controller forgets jobs after minutes, sacct does not."""
    shown = _output_of("scontrol", "show", "job", "--oneliner", number)
    match = re.search(r"\bJobState=([A-Z_]+)", shown)
    if match:
        return match[1], f"scontrol show job {number}"
    accounted = _output_of("sacct", "-X", "-n", "-P", "-o", "State", "-j", number)
    match = re.match(r"[A-Z_]+", accounted)
    return (match[0], f"sacct -j {number}") if match else ("", "")


def state_in_output(output: str) -> str:
    """How a job ended, by what SLURM wrote into its output; empty when it wrote nothing about that."""
    try:
        lines = Path(output).read_text(errors="replace").splitlines()[-_TAIL:]
    except OSError:
        return ""
    written = [line for line in lines if line.startswith(("slurmstepd", "srun: error:"))]
    return next((state for phrase, state in _PHRASES.items() if any(phrase in line for line in written)), "")


def kernel_kill(processes: Sequence[int]) -> str:
    """The kernel's message that it killed one of these processes of this host for lack of memory; often unreadable."""
    kills = [f"Killed process {process} " for process in processes if process]
    return next((line for line in _output_of("dmesg").splitlines() if any(name in line for name in kills)), "")


def _output_of(*args: str) -> str:
    if which(args[0]) is None:
        return ""
    try:
        done = subprocess.run(args, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT, check=False)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout if done.returncode == 0 else ""
