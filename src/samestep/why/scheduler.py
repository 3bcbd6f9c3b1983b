"""What others know of a run's end: the scheduler that ran its job, and the kernel. Asked only if they are there."""

import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from shutil import which

from samestep.core.records import Json
from samestep.why.records import SchedulerJob

_PATIENCE = 10.0
_TAIL = 20
"""Lines at the end of a job's output in which the scheduler may have said how it ended."""
_PHRASES = {  # what SLURM writes into a job's output, and the state that it stands for; the first that fits counts
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
    """The job that ran the last launch: of those that have begun, the last."""
    found = None
    for noted in reversed(jobs):
        job = _ask(noted)
        found = found or job
        if not job.waits:
            return job
    return found


def _ask(noted: Mapping[str, Json]) -> SchedulerJob:
    number, output = str(noted["job"]), str(noted.get("output", ""))
    job = SchedulerJob(number, str(noted.get("scheduler", "")), script=str(noted.get("script", "")), output=output)
    if job.scheduler != "slurm":
        return job
    state, source = _slurm(number)
    if not state:
        state, source = said_in(output), output
    return SchedulerJob(number, job.scheduler, state, source if state else "", job.script, output)


def _slurm(number: str) -> tuple[str, str]:
    """The state of a job and who said so. The controller forgets jobs after minutes; the accounting does not."""
    shown = _answer("scontrol", "show", "job", "--oneliner", number)
    match = re.search(r"\bJobState=([A-Z_]+)", shown)
    if match:
        return match[1], f"scontrol show job {number}"
    told = _answer("sacct", "-X", "-n", "-P", "-o", "State", "-j", number)
    match = re.match(r"[A-Z_]+", told)
    return (match[0], f"sacct -j {number}") if match else ("", "")


def said_in(output: str) -> str:
    """How a job ended by what SLURM wrote into its output; empty: nothing of it."""
    try:
        lines = Path(output).read_text(errors="replace").splitlines()[-_TAIL:]
    except OSError:
        return ""
    said = [line for line in lines if line.startswith(("slurmstepd", "srun: error:"))]
    return next((state for phrase, state in _PHRASES.items() if any(phrase in line for line in said)), "")


def kernel_kill(processes: Sequence[int]) -> str:
    """The kernel's own word that it killed one of these processes of this host for lack of memory; often not shown."""
    named = [f"Killed process {process} " for process in processes if process]
    return next((line for line in _answer("dmesg").splitlines() if any(name in line for name in named)), "")


def _answer(*words: str) -> str:
    if which(words[0]) is None:
        return ""
    try:
        done = subprocess.run(words, capture_output=True, text=True, errors="replace", timeout=_PATIENCE, check=False)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout if done.returncode == 0 else ""
