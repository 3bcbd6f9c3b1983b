"""PBS Pro: the batch script, and the commands around it. Ranks are started by the `mpiexec` of PALS, as on Aurora.

PBS sends no signal before the time limit, so the run stops itself: `max_time` is the limit less the grace time, counted
from the start of the job, and the ranks agree on the clock. Then the script submits itself again, where a compute
node may do that, and prints the command where it may not. A script that got SIGTERM was deleted, or PBS itself runs it
again.
"""

import re
import shlex
from collections.abc import Sequence

from samestep.core.durations import format_clock, parse_duration
from samestep.core.errors import EXIT_PREEMPTED
from samestep.core.launch_env import BEGAN
from samestep.launch.schedulers.job import Job, JobPart
from samestep.launch.schedulers.script import (
    ScriptContext,
    exit_code_lines,
    header,
    join_lines,
    setup_lines,
    train_command,
)

GRACE = 300
RESUBMISSIONS = "SAMESTEP_TURN"
"""The variable that counts how often the script has submitted itself."""


def script(part: JobPart, job: Job, context: ScriptContext, following: JobPart | None = None) -> str:
    """The batch script of one job; `following` is submitted when it has ended well."""
    allocation = part.allocation
    start = [*shlex.split(job.site.mpiexec), "-n", str(allocation.ranks), "-ppn", str(allocation.tasks)]
    start += ["--cpu-bind", job.site.cpu_bind] if job.site.cpu_bind else []
    return join_lines(
        [
            *header("PBS", _directives(part, job, context), login=True),
            f"export {BEGAN}=$(date +%s)  # max_time counts from here",
            f'exec >> {shlex.quote(str(context.job))}/"$PBS_JOBID".out 2>&1',
            f"cd {shlex.quote(str(context.workdir))} || exit 1",
            *setup_lines(job),
            "",
            "asked=",
            "trap 'asked=yes' TERM  # it was deleted, or PBS takes it back to the queue",
            f'{shlex.join(start)} --hostfile "$PBS_NODEFILE" {train_command(part, context)}',
            "code=$?",
            *exit_code_lines(part, context),
            *(_resubmit_lines(part, job, context) if job.requeue else []),
            *(_next_stage_lines(following, context) if following else []),
            'exit "$code"',
        ]
    )


def _directives(part: JobPart, job: Job, context: ScriptContext) -> list[str]:
    site = job.site
    cores = f"ncpus={part.allocation.tasks * job.cpus_per_task}" if job.cpus_per_task else None
    resources = {
        "select": ":".join(filter(None, [str(part.allocation.nodes), site.select or cores])),
        "place": site.place,
        "walltime": format_clock(parse_duration(job.time, time_limit=True)) if job.time else None,
        "filesystems": site.filesystems,
    }
    options = {"N": _name(context.run.name), "A": site.account, "q": site.queue}
    lines = [f"-{option} {shlex.quote(value)}" for option, value in options.items() if value is not None]
    lines += [f"-l {shlex.quote(f'{name}={value}')}" for name, value in resources.items() if value is not None]
    return [*lines, "-j oe", f"-o {shlex.quote(log(context))}", f"-r {'y' if job.requeue else 'n'}", *site.directives]


def log(context: ScriptContext) -> str:
    """The file for PBS's own messages about a job; the job's own output is written while it runs."""
    return str(context.job / "pbs.log")


def _name(run: str) -> str:
    """A job name that every PBS accepts: it begins with a letter and has no special characters."""
    plain = re.sub(r"[^A-Za-z0-9_.-]", "_", run)
    return plain if plain[:1].isalpha() else f"run-{plain}"


def max_time(job: Job) -> int | None:
    """Seconds after which the run stops itself; None: there is no limit."""
    if job.time is None:
        return None
    limit, grace = int(parse_duration(job.time, time_limit=True)), GRACE if job.grace is None else job.grace
    return max(1, limit - grace, limit // 2)


def _resubmit_lines(part: JobPart, job: Job, context: ScriptContext) -> list[str]:
    path = shlex.quote(str(context.script(part)))
    count = f"-v {RESUBMISSIONS}=$(( ${{{RESUBMISSIONS}:-0}} + 1 ))"
    return [
        f'if [ "$code" = {EXIT_PREEMPTED} ] && [ -z "$asked" ]; then',
        f'    if [ "${{{RESUBMISSIONS}:-0}}" -lt {job.max_requeues} ] && new=$({_qsub(path, context, count)}); then',
        '        echo "samestep: stopped and saved; job $new goes on from there"',
        "    else",
        f'        echo "samestep: stopped and saved, but not submitted again; go on with: qsub "{path}',
        "    fi",
        "fi",
    ]


def _next_stage_lines(following: JobPart, context: ScriptContext) -> list[str]:
    path, stage = shlex.quote(str(context.script(following))), shlex.quote(following.stages[0])
    return [
        "# Not by a dependency: a job that stopped and went on under another number would not count as ended well.",
        'if [ "$code" = 0 ]; then',
        f"    if new=$({_qsub(path, context)}); then",
        f'        echo "samestep: job $new goes on with the next stage:" {stage}',
        "    else",
        f'        echo "samestep: go on with the next stage," {stage}": qsub "{path}',
        "    fi",
        "fi",
    ]


def _qsub(path: str, context: ScriptContext, *more: str) -> str:
    return " ".join(["qsub", *more, "-j oe", f"-o {shlex.quote(log(context))}", path])


def submission(path: str, context: ScriptContext) -> list[str]:
    """The command that submits a script."""
    return ["qsub", "-j", "oe", "-o", log(context), path]


def job_id(printed: str) -> str:
    """The id of the job, which is all that qsub prints."""
    return printed.strip().splitlines()[-1].strip()


def job_commands(job: str) -> dict[str, str]:
    """The commands to watch and cancel a job."""
    return {"queue": f"qstat {job}", "cancel": f"qdel {job}"}


def unsupported(job: Job) -> Sequence[str]:
    """Settings that PBS does not have."""
    return [name for name in ("nodelist", "mem", "exclusive") if getattr(job, name) is not None]
