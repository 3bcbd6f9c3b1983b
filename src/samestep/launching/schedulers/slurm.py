"""SLURM: the batch script, and the commands around it.

`srun` starts one task a GPU, and every rank reads its rank from srun's variables. Signals go to the ranks: before the
time limit (`--signal` without `B:`), and with `scancel`, `scontrol requeue` or a preemption. They save and end with
75. If the job still counts as running then, it was not cancelled: its time is up, or it is preempted within a grace
time, and it queues itself again (slurm_requeue.py). A job that SLURM is ending is requeued by SLURM, or was cancelled
and stays so.
"""

import shlex
from collections.abc import Sequence

from samestep.core.durations import format_clock, parse_duration
from samestep.core.errors import EXIT_PREEMPTED, UserError
from samestep.launching.schedulers.job import Job, JobPart, Site, laid_out
from samestep.launching.schedulers.script import (
    ScriptContext,
    exit_code_lines,
    header,
    job_name,
    join_lines,
    setup_lines,
    train_command,
)

GRACE = 60
_UNLIKE_SLURM = {
    "project": "--account",
    "queue": "--partition",
    "select": "--gpus-per-node, --cpus-per-task or --constraint",
    "filesystems": "--directive=--licenses=...",
    "mpiexec": "--srun",
    "cpu_bind": "--srun=--cpu-bind=...",
    "place": "--exclusive",
}
"""Options of PBS, and what to write under SLURM."""


def script(part: JobPart, job: Job, context: ScriptContext) -> str:
    job = laid_out(job, part.allocation)
    srun = shlex.join(["srun", "--kill-on-bad-exit=1", *_cores(part, job), *job.site.srun])
    return join_lines(
        [
            *header("SBATCH", _directives(part, job, context), login=bool(job.site.modules)),
            *setup_lines(job, context, part.allocation.cores),
            "",
            "# The ranks get these signals too: they save and end, and this script goes on after them.",
            "trap : TERM USR1",
            f"{srun} {train_command(part, context)}",
            "code=$?",
            *exit_code_lines(part, context),
            *(_requeue_lines(part, job, context) if job.requeue else []),
            'exit "$code"',
        ]
    )


def _cores(part: JobPart, job: Job) -> list[str]:
    """srun's options for the cores of a rank, which it does not inherit. Where nobody has said how many a rank may
    have, all ranks of a node share what the job has there: an exclusive node gives all of its cores."""
    known = job.cpus_per_task or job.site.cpus_per_node
    return [f"--cpus-per-task={part.allocation.cores}"] if known else ["--cpu-bind=none"]


def _directives(part: JobPart, job: Job, context: ScriptContext) -> list[str]:
    allocation, site = part.allocation, job.site
    exclusive = (
        job.exclusive if job.exclusive is not None else allocation.gpus > 0 and allocation.gpus == site.gpus_per_node
    )
    given = {
        "job-name": job_name(context.run),
        "chdir": str(context.workdir),
        "output": f"{str(context.job).replace('%', '%%')}/%j.out",
        "open-mode": "append",
        "nodes": allocation.nodes,
        "ntasks-per-node": allocation.tasks,
        "gpus-per-node": allocation.gpus or None,
        "cpus-per-task": job.cpus_per_task or (allocation.cores if allocation.cores > 1 else None),
        "mem": job.mem,
        "account": site.account,
        "partition": site.partition,
        "qos": site.qos,
        "constraint": site.constraint,
        "nodelist": job.nodelist,
        "time": format_clock(parse_duration(job.time, time_limit=True)) if job.time else None,
        "signal": f"USR1@{_grace(job)}",
    }
    lines = [f"--{name}={shlex.quote(str(value))}" for name, value in given.items() if value is not None]
    lines += ["--exclusive"] if exclusive else []
    lines += ["--requeue" if job.requeue else "--no-requeue"]
    return [*lines, *site.directives]


def _requeue_lines(part: JobPart, job: Job, context: ScriptContext) -> list[str]:
    script = str(context.script(part))
    helper = ["-m", "samestep.launching.schedulers.slurm_requeue", script, str(job.max_requeues), str(_grace(job))]
    by_hand = shlex.quote(shlex.join(["sbatch", script]))
    return [
        "# It queues again, unless it was cancelled, or that does not help.",
        f'if [ "$code" = {EXIT_PREEMPTED} ]; then',
        f"    {context.python_command(*helper)} ||",
        f'        echo "samestep: unless squeue --job $SLURM_JOB_ID shows the job, go on with:" {by_hand}',
        "fi",
    ]


def _grace(job: Job) -> int:
    return GRACE if job.grace is None else job.grace


def submission(path: str, after: Sequence[str]) -> list[str]:
    """The command that submits a script, to begin when the jobs `after` have ended well."""
    dependency = [f"--dependency=afterok:{':'.join(after)}", "--kill-on-invalid-dep=yes"] if after else []
    return ["sbatch", "--parsable", *dependency, path]


def job_id(printed: str) -> str:
    """The id of the job, from what sbatch printed: that may name the cluster too, and have other lines before."""
    return printed.strip().splitlines()[-1].partition(";")[0].strip()


def job_commands(job: str) -> dict[str, str]:
    """The commands to watch and cancel a job."""
    return {"queue": f"squeue --job {job}", "cancel": f"scancel {job}"}


def state_query(job: str) -> tuple[list[str], str]:
    """The command that shows a job, and a pattern in what it prints if the job waits or runs."""
    return ["scontrol", "show", "job", "--oneliner", job], "JobState=(PENDING|CONFIGURING|RUNNING|SUSPENDED|REQUEUED)"


def require_supported(job: Job) -> None:
    """Refuse options of PBS, with those of SLURM."""
    for name, equivalent in _UNLIKE_SLURM.items():
        if getattr(job.site, name) != getattr(Site(), name):
            raise UserError(f"--{name.replace('_', '-')} is for PBS; under SLURM write {equivalent}")
