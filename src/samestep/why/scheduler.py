"""What the scheduler that ran the job and the kernel know about a run's end, where their commands exist."""

import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from shutil import which

from samestep.core.errors import EXIT_DONE, EXIT_PREEMPTED
from samestep.core.json_files import Json
from samestep.launching.schedulers import pbs
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

_PBS_STATES = {"Q": "PENDING", "H": "PENDING", "W": "PENDING", "T": "PENDING", "R": "RUNNING", "E": "RUNNING"}
_PBS_STATES |= {"B": "RUNNING", "S": "SUSPENDED", "U": "SUSPENDED"}
_PBS_ENDS = {-29: "TIMEOUT", -27: "OUT_OF_MEMORY", -26: "OUT_OF_MEMORY", -20: "NODE_FAIL"}
"""Exit codes that PBS sets itself, when it ends a job."""
_PBS_DELETED = "91"
"""The substate of a job that qdel ended."""
_PBS_GONE = ("Unknown Job Id", "has finished")
"""What qstat says of a job that has ended, where PBS keeps no history of jobs."""
_PBS_WRITTEN = {  # what PBS writes into a job's file when it ends it, and the state that it means; the first counts
    r"=>> PBS: job killed: (walltime|cput|pcput) .* exceeded limit": "TIMEOUT",
    r"=>> PBS: job killed: p?v?mem .* exceeded limit|Cgroup mem\w* limit exceeded": "OUT_OF_MEMORY",
    r"=>> PBS: job killed: node \d+ .* requested job": "NODE_FAIL",
    r"=>> PBS: job killed: ": "FAILED",
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
    if job.scheduler == "local":
        return job
    if job.scheduler == "pbs":
        return _pbs(job)
    state, source = _slurm(number)
    if not state:
        state, source = state_in_output(output), output
    return replace(job, state=state, source=source if state else "")


def _slurm(number: str) -> tuple[str, str]:
    """The state of a job, and the command that gave it. The controller forgets jobs after minutes, sacct does not."""
    shown = _output_of("scontrol", "show", "job", "--oneliner", number)
    match = re.search(r"\bJobState=([A-Z_]+)", shown)
    if match:
        return match[1], f"scontrol show job {number}"
    accounted = _output_of("sacct", "-X", "-n", "-P", "-o", "State", "-j", number)
    match = re.match(r"[A-Z_]+", accounted)
    return (match[0], f"sacct -j {number}") if match else ("", "")


def _pbs(job: SchedulerJob) -> SchedulerJob:
    """The job with its state in SLURM's words, and the command or file that gave it; -x is for jobs that have ended."""
    folder = Path(job.output).parent
    logs = [str(path) for path in pbs.logs(folder, job.number)] if job.output else []
    job = replace(job, log=next(iter(logs), ""))
    said = ""
    for option in ("-xf", "-f"):
        shown, said = _answer_of("qstat", option, job.number)
        if state := pbs_state(shown):
            comment = _pbs_fields(shown).get("comment", "")
            return replace(job, state=state, source=f"qstat {option} {job.number}", comment=comment)
    for file in [*logs, job.output]:
        if state := pbs_state_in_file(file):
            return replace(job, state=state, source=file)
    ended = any(phrase in said for phrase in _PBS_GONE)
    return replace(job, state="ENDED", source=f"qstat -f {job.number}") if ended else job


def pbs_state_in_file(file: str) -> str:
    """How a job ended, by what PBS or the job's script wrote; empty when they wrote nothing about that."""
    lines = _last_lines(file)
    for pattern, state in _PBS_WRITTEN.items():
        if any(re.search(pattern, line) for line in lines):
            return state
    ended = re.compile(re.escape(pbs.ENDED).replace(r"\{\}", r"(\S+)") + "$")
    codes = [found[2] for line in lines if (found := ended.search(line)) and found[2].isdigit()]
    return _state_of_code(int(codes[-1])) if codes else ""


def _state_of_code(code: int | None) -> str:
    if code == EXIT_PREEMPTED:
        return "STOPPED"
    return "COMPLETED" if code == EXIT_DONE else "FAILED"


def _pbs_fields(shown: str) -> dict[str, str]:
    return dict(re.findall(r"^\s+([\w.]+) = (.*)$", shown.replace("\n\t", ""), re.MULTILINE))


def pbs_state(shown: str) -> str:
    """The state of a job in SLURM's words, from what `qstat -xf` printed; empty when that says nothing."""
    values = _pbs_fields(shown)
    state = values.get("job_state", "")
    if state not in ("F", "X"):
        return _PBS_STATES.get(state, "")
    code = int(values["Exit_status"]) if re.fullmatch(r"-?\d+", values.get("Exit_status", "")) else None
    if code in _PBS_ENDS:
        return _PBS_ENDS[code]
    used, limit = (_clock(values.get(f"{name}.walltime", "")) for name in ("resources_used", "Resource_List"))
    if code != 0 and used is not None and limit is not None and used >= limit:
        return "TIMEOUT"
    if values.get("substate") == _PBS_DELETED or "terminated" in values.get("comment", ""):
        return "CANCELLED"
    return _state_of_code(code)


def _clock(text: str) -> int | None:
    numbers = re.fullmatch(r"(\d+):(\d+):(\d+)", text.strip())
    return int(numbers[1]) * 3600 + int(numbers[2]) * 60 + int(numbers[3]) if numbers else None


def state_in_output(output: str) -> str:
    """How a job ended, by what SLURM wrote into its output; empty when it wrote nothing about that."""
    written = [line for line in _last_lines(output) if line.startswith(("slurmstepd", "srun: error:"))]
    return next((state for phrase, state in _PHRASES.items() if any(phrase in line for line in written)), "")


def _last_lines(file: str) -> list[str]:
    try:
        return Path(file).read_text(errors="replace").splitlines()[-_TAIL:]
    except OSError:
        return []


def kernel_kill(processes: Sequence[int]) -> str:
    """The kernel's message that it killed one of these processes of this host for lack of memory; often unreadable."""
    kills = [f"Killed process {process} " for process in processes if process]
    return next((line for line in _output_of("dmesg").splitlines() if any(name in line for name in kills)), "")


def _output_of(*args: str) -> str:
    return _answer_of(*args)[0]


def _answer_of(*args: str) -> tuple[str, str]:
    """What a command prints if it succeeds, and its errors."""
    if which(args[0]) is None:
        return "", ""
    try:
        done = subprocess.run(args, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT, check=False)
    except (OSError, subprocess.SubprocessError):
        return "", ""
    return done.stdout if done.returncode == 0 else "", done.stderr
