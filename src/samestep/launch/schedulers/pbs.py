"""PBS Pro: the batch script, and the commands around it. Ranks are started by the `mpiexec` of PALS, as on Aurora.

PBS sends no signal before the time limit, so the run stops itself: `max_time` is the limit less the grace time, counted
from the start of the job, and the ranks agree on the clock. Then the script submits itself once more, where a compute
node may do that, and says how where it may not. A script that got SIGTERM was deleted, or PBS runs it again by itself.
"""

import re
import shlex
from collections.abc import Sequence

from samestep.core.durations import format_clock, parse_duration
from samestep.core.errors import EXIT_PREEMPTED
from samestep.core.launch_env import BEGAN
from samestep.launch.schedulers.job import Job, JobPart
from samestep.launch.schedulers.script import Surroundings, head, preparation, text, training, verdict

GRACE = 300
TURN = "SAMESTEP_TURN"
"""How often the script has submitted itself."""


def script(part: JobPart, job: Job, around: Surroundings, following: JobPart | None = None) -> str:
    """The batch script of one job; `following` is submitted when it has ended well."""
    room = part.room
    start = [*shlex.split(job.site.mpiexec), "-n", str(room.ranks), "-ppn", str(room.tasks)]
    start += ["--cpu-bind", job.site.cpu_bind] if job.site.cpu_bind else []
    return text(
        [
            *head("PBS", _directives(part, job, around), login=True),
            f"export {BEGAN}=$(date +%s)  # max_time counts from here",
            f'exec >> {shlex.quote(str(around.job))}/"$PBS_JOBID".out 2>&1',
            f"cd {shlex.quote(str(around.workdir))} || exit 1",
            *preparation(job),
            "",
            "asked=",
            "trap 'asked=yes' TERM  # it was deleted, or PBS takes it back to the queue",
            f'{shlex.join(start)} --hostfile "$PBS_NODEFILE" {training(part, around)}',
            "code=$?",
            *verdict(part, around),
            *(_again(part, job, around) if job.requeue else []),
            *(_next(following, around) if following else []),
            'exit "$code"',
        ]
    )


def _directives(part: JobPart, job: Job, around: Surroundings) -> list[str]:
    site = job.site
    cores = f"ncpus={part.room.tasks * job.cpus_per_task}" if job.cpus_per_task else None
    resources = {
        "select": ":".join(filter(None, [str(part.room.nodes), site.select or cores])),
        "place": site.place,
        "walltime": format_clock(parse_duration(job.time, time_limit=True)) if job.time else None,
        "filesystems": site.filesystems,
    }
    options = {"N": _name(around.run.name), "A": site.account, "q": site.queue}
    lines = [f"-{letter} {value}" for letter, value in options.items() if value is not None]
    lines += [f"-l {name}={value}" for name, value in resources.items() if value is not None]
    return [*lines, "-j oe", f"-o {log(around)}", f"-r {'y' if job.requeue else 'n'}", *site.directives]


def log(around: Surroundings) -> str:
    """What PBS itself has to say of a job; the job's own output is written while it runs."""
    return str(around.job / "pbs.log")


def _name(run: str) -> str:
    """A job name that every PBS takes: it begins with a letter and has no odd letters."""
    plain = re.sub(r"[^A-Za-z0-9_.-]", "_", run)
    return plain if plain[:1].isalpha() else f"run-{plain}"


def max_time(job: Job) -> int | None:
    """Seconds after which the run stops itself; None: there is no limit."""
    if job.time is None:
        return None
    limit, grace = int(parse_duration(job.time, time_limit=True)), GRACE if job.grace is None else job.grace
    return max(1, limit - grace, limit // 2)


def _again(part: JobPart, job: Job, around: Surroundings) -> list[str]:
    path = shlex.quote(str(around.script(part)))
    turn = f"-v {TURN}=$(( ${{{TURN}:-0}} + 1 ))"
    return [
        f'if [ "$code" = {EXIT_PREEMPTED} ] && [ -z "$asked" ]; then',
        f'    if [ "${{{TURN}:-0}}" -lt {job.max_requeues} ] && new=$({_qsub(path, around, turn)}); then',
        '        echo "samestep: stopped and saved; job $new goes on from there"',
        "    else",
        f'        echo "samestep: stopped and saved, but not submitted again; go on with: qsub "{path}',
        "    fi",
        "fi",
    ]


def _next(following: JobPart, around: Surroundings) -> list[str]:
    path = shlex.quote(str(around.script(following)))
    return [
        "# Not by a dependency: a job that stopped and went on under another number would not count as ended well.",
        'if [ "$code" = 0 ]; then',
        f"    if new=$({_qsub(path, around)}); then",
        f'        echo "samestep: job $new goes on with the next stage, {following.stages[0]}"',
        "    else",
        f'        echo "samestep: go on with the next stage, {following.stages[0]}: qsub "{path}',
        "    fi",
        "fi",
    ]


def _qsub(path: str, around: Surroundings, *more: str) -> str:
    return " ".join(["qsub", *more, "-j oe", f"-o {shlex.quote(log(around))}", path])


def submission(path: str, around: Surroundings) -> list[str]:
    """The command that submits a script."""
    return ["qsub", "-j", "oe", "-o", log(around), path]


def job_id(printed: str) -> str:
    """The name of the job, which is all that qsub prints."""
    return printed.strip().splitlines()[-1].strip()


def care(job: str) -> dict[str, str]:
    """How to look after a job."""
    return {"queue": f"qstat {job}", "cancel": f"qdel {job}"}


def unused(job: Job) -> Sequence[str]:
    """Settings that mean nothing to PBS."""
    return [name for name in ("nodelist", "mem", "exclusive") if getattr(job, name) is not None]
