"""PBS Pro and OpenPBS: the batch script, and the commands around it. Ranks are started by mpiexec, as on Aurora.

PBS sends no signal before the time limit, so the run stops itself: SAMESTEP_TIME_LIMIT is the limit that the job really
has less the grace time, counted from the start of the job, and the ranks agree on the clock. Then the script submits
itself again, where a compute node may do that, and prints the command where it may not. A script that got SIGTERM was
deleted, or PBS itself runs it again; but not if the run says that it stopped by the clock: then the limit came while it
saved. What a script does with the job's records is in pbs_job.py.
"""

import re
import shlex
import subprocess
from pathlib import Path
from shutil import which

from samestep.core.durations import format_clock, parse_duration
from samestep.core.errors import EXIT_PREEMPTED, EXIT_USER, UserError
from samestep.core.host_lists import expand_hosts
from samestep.core.launch_env import BEGAN, SECRET, TIME_LIMIT
from samestep.launching.schedulers.job import Job, JobPart, laid_out, require_one_line
from samestep.launching.schedulers.script import (
    ScriptContext,
    exit_code_lines,
    header,
    job_name,
    join_lines,
    setup_lines,
    train_command,
)

GRACE = 300
ENDED = "samestep: job {} ended with exit code {}"
"""The last line of a job's output: PBS may not keep how a job ended."""
_OPEN_MPI = '*"Open MPI"*|*OpenRTE*'
"""What the `mpiexec --version` of Open MPI holds: its options differ from those of MPICH and PALS."""
_PASSED_ON = (
    *("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "OMP_NUM_THREADS", "MASTER_ADDR", "PBS_JOBID", "PBS_NODEFILE"),
    *(BEGAN, TIME_LIMIT, SECRET),
)
"""Variables that Open MPI does not pass to other nodes by itself."""
_UNLIKE_PBS = {
    "exclusive": "--site.place scatter:excl",
    "partition": "--queue",
    "qos": "--queue",
    "constraint": "--select ncpus=C:ngpus=G:NAME=VALUE, which is all that a node is asked for",
    "srun": "--mpiexec",
}
"""Options of SLURM, and what to write under PBS."""


def script(part: JobPart, job: Job, context: ScriptContext, following: JobPart | None = None) -> str:
    """The batch script of one job; `following` is submitted when it has ended well."""
    job = laid_out(job, part.allocation)
    return join_lines(
        [
            *header("PBS", _directives(part, job, context), login=True),
            f"export {BEGAN}=$(date +%s)  # the time limit counts from here",
            f'exec >> {shlex.quote(str(context.job))}/"$PBS_JOBID".out 2>&1',
            f"cd {shlex.quote(str(context.workdir))} || exit 1",
            "unset OMP_NUM_THREADS  # PBS sets it to the cores of all ranks of a node",
            *setup_lines(job, context, _cores_per_rank(part, job) or part.allocation.cores),
            f'export {TIME_LIMIT}="$({_helper("begin", part, job, context)})"',
            *_address_lines(part),
            *_mpiexec_lines(part, job),
            "",
            f"{_helper('watch', part, job, context)} &",
            "watch=$!",
            'disown "$watch"  # or the shell would report that it was ended',
            "asked=",
            "trap 'asked=yes' TERM  # deleted, over its time limit, or PBS takes it back to the queue",
            f'"${{mpiexec[@]}}" --hostfile "$PBS_NODEFILE" {train_command(part, context)}',
            "code=$?",
            'kill "$watch" 2> /dev/null',
            *exit_code_lines(part, context),
            *(_resubmit_lines(part, job, context) if job.requeue else []),
            *(_next_stage_lines(following, job, context) if following else []),
            f'echo "{ENDED.format("$PBS_JOBID", "$code")}"',
            'exit "$code"',
        ]
    )


def _cores_per_rank(part: JobPart, job: Job) -> int | None:
    asked = re.search(r"(?:^|:)ncpus=(\d+)", _chunk(part, job))
    return max(1, int(asked[1]) // part.allocation.tasks) if asked else None


def _address_lines(part: JobPart) -> list[str]:
    """Lines that tell all ranks where rank 0 is: on one node they know, and the file may lie on the first node only."""
    if part.allocation.nodes == 1:
        return []
    return ['export MASTER_ADDR="${MASTER_ADDR:-$(head -n 1 "$PBS_NODEFILE")}"']


def _mpiexec_lines(part: JobPart, job: Job) -> list[str]:
    """Lines that choose the words of the mpiexec that this machine has."""
    command, allocation = shlex.split(job.site.mpiexec), part.allocation
    start = [*command, "-n", str(allocation.ranks)]
    other = [*start, "-ppn", str(allocation.tasks), *(["--cpu-bind", job.site.cpu_bind] if job.site.cpu_bind else [])]
    names = dict.fromkeys([*_PASSED_ON, *job.site.env])
    passed = " ".join(f"${{{name}+-x {name}}}" for name in names)
    refusal = "samestep: --cpu-bind is for the mpiexec of PALS, and this one is Open MPI; leave it out"
    open_mpi = f"mpiexec=({shlex.join(start)} --map-by ppr:{allocation.tasks}:node --bind-to none {passed})"
    return [
        f"""case "$({shlex.join([*command, "--version"])} 2>&1)" in""",
        f"    {_OPEN_MPI}) {f'echo {shlex.quote(refusal)}; exit {EXIT_USER}' if job.site.cpu_bind else open_mpi} ;;",
        f"    *) mpiexec=({shlex.join(other)}) ;;",
        "esac",
    ]


def _directives(part: JobPart, job: Job, context: ScriptContext) -> list[str]:
    site = job.site
    resources = {
        "select": _select(part, job),
        "place": site.place,
        "walltime": format_clock(parse_duration(job.time, time_limit=True)) if job.time else None,
        "filesystems": site.filesystems,
    }
    options = {"N": _name(job_name(context.run)), "A": site.account, "P": site.project, "q": site.queue}
    lines = [f"-{option} {shlex.quote(value)}" for option, value in options.items() if value is not None]
    lines += [f"-l {shlex.quote(f'{name}={value}')}" for name, value in resources.items() if value is not None]
    return [
        *lines,
        "-j oe",
        f"-o {shlex.quote(_log_folder(context.job))}",
        f"-r {'y' if job.requeue else 'n'}",
        *site.directives,
    ]


def _select(part: JobPart, job: Job) -> str:
    """What all nodes are asked for: those of --nodelist by their names, and as many others as are missing."""
    nodes, named, chunk = part.allocation.nodes, expand_hosts(job.nodelist or ""), _chunk(part, job)
    if len(named) > nodes:
        raise UserError(
            f"--nodelist {job.nodelist} names {len(named)} nodes, but a job takes {nodes}: name no more, or set --nodes"
        )
    chunks = [["1", chunk, f"host={host}"] for host in named]
    chunks += [[str(nodes - len(named)), chunk]] if len(named) < nodes else []
    return "+".join(":".join(filter(None, words)) for words in chunks)


def _chunk(part: JobPart, job: Job) -> str:
    """What one node is asked for, with the memory of --mem."""
    memory = _memory(job.mem) if job.mem is not None else None
    if memory and re.search(r"(^|:)mem=", job.site.select or ""):
        raise UserError("--mem and the mem of --select set the same thing twice; leave out one of them")
    return ":".join(filter(None, [_devices(part, job), memory and f"mem={memory}"]))


def _memory(text: str) -> str:
    """An amount of memory as PBS writes it; in SLURM's way, one without a unit is in megabytes."""
    found = re.fullmatch(r"([1-9]\d*)([kmgt]?)b?", text.lower())
    if found is None:
        raise UserError(
            f"--mem {text} is not an amount of memory under PBS; write it like 64G, or leave it out and have whole "
            "nodes with --site.place scatter:excl"
        )
    return f"{found[1]}{found[2] or 'm'}b"


def _devices(part: JobPart, job: Job) -> str:
    """The cores, GPUs and ranks of a node. A `select` of the site is kept; with an empty one nothing is asked for."""
    site, allocation = job.site, part.allocation
    cores = f"ncpus={allocation.tasks * job.cpus_per_task}" if job.cpus_per_task else None
    if site.select is not None:
        if cores and re.search(r"(^|:)ncpus=", site.select):
            raise UserError("--cpus-per-task and the ncpus of --select set the same thing twice; leave out one of them")
        ranks = f"mpiprocs={allocation.tasks}" if site.select and "mpiprocs=" not in site.select else None
        return ":".join(filter(None, [site.select, cores, ranks]))
    cores = cores or f"ncpus={allocation.tasks * allocation.cores}"
    gpus = f"ngpus={allocation.gpus}" if allocation.gpus else None
    return ":".join(filter(None, [cores, gpus, f"mpiprocs={allocation.tasks}"]))


def _log_folder(job: Path) -> str:
    """Where PBS puts a file with its own messages, named by the job's number; the job writes its output by itself."""
    return f"{job}/"


def logs(folder: Path, job: str) -> list[Path]:
    """The files that PBS may have put there: named by the number, or in its default way by name and number."""
    return sorted({*folder.glob(f"{job}.OU"), *folder.glob(f"*.o{job.partition('.')[0]}")})


def _name(run: str) -> str:
    """A job name that every PBS accepts: it begins with a letter and has no special characters."""
    plain = re.sub(r"[^A-Za-z0-9_.-]", "_", run)
    return plain if plain[:1].isalpha() else f"run-{plain}"


def _helper(verb: str, part: JobPart, job: Job, context: ScriptContext) -> str:
    """The command of pbs_job.py that a script calls."""
    command = ["-m", "samestep.launching.schedulers.pbs_job", verb, str(context.script(part))]
    if verb == "begin":
        command += [str(GRACE if job.grace is None else job.grace)]
        command += [str(int(parse_duration(job.time, time_limit=True)))] if job.time else []
    elif verb == "ended":
        command += [str(job.max_requeues)]
    return context.python_command(*command)


def _resubmit_lines(part: JobPart, job: Job, context: ScriptContext) -> list[str]:
    by_hand = shlex.quote(f"qsub {shlex.quote(str(context.script(part)))}")
    return [
        f'if [ "$code" = {EXIT_PREEMPTED} ] || [ -n "$asked" ]; then',
        f'    {_helper("ended", part, job, context)} "$code" "$asked" ||',
        f'        echo "samestep: not submitted again; go on with:" {by_hand}',
        "fi",
    ]


def _next_stage_lines(following: JobPart, job: Job, context: ScriptContext) -> list[str]:
    stage, by_hand = following.stages[0], f"qsub {shlex.quote(str(context.script(following)))}"
    return [
        "# Not by a dependency: a job that stopped and went on under another number would not count as ended well.",
        'if [ "$code" = 0 ]; then',
        f"    {_helper('next', following, job, context)} ||",
        f'        echo "samestep: go on with the next stage," {shlex.quote(f"{stage}: {by_hand}")}',
        "fi",
    ]


def submission(path: str) -> list[str]:
    """The command that submits a script."""
    return ["qsub", "-j", "oe", "-o", _log_folder(Path(path).parent), path]


def require_pbs() -> None:
    """Refuse a qsub of another scheduler: SLURM, Grid Engine and Torque have commands of this name too."""
    path = which("qsub")
    if path is None:
        return  # submitting says so
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, errors="replace", timeout=60)
        said = done.stdout + done.stderr
    except (OSError, subprocess.SubprocessError) as error:
        said = str(error)
    if "pbs_version" not in said:
        raise UserError(
            f"{path} is not the qsub of OpenPBS or PBS Pro (--version says {_first_line(said)!r}); put that one first "
            "on the PATH, or submit with --on slurm or --on local"
        )


def _first_line(text: str) -> str:
    """The first line that says something."""
    return next((line.strip()[:80] for line in text.splitlines() if line.strip()), "")


def require_plain_path(what: str, path: str) -> None:
    """Refuse a path that PBS would refuse or read in another way."""
    require_one_line(what, path)
    if odd := re.search(r"[^A-Za-z0-9_./+@%=~#-]", path):
        raise UserError(
            f"{what} {path} holds {odd[0]!r}, which PBS does not take in a path; use letters without accents, digits "
            "and ._+-"
        )


def job_id(printed: str) -> str:
    """The id of the job, which is all that qsub prints."""
    return printed.strip().splitlines()[-1].strip()


def job_commands(job: str) -> dict[str, str]:
    """The commands to watch and cancel a job."""
    return {"queue": f"qstat {job}", "cancel": f"qdel {job}"}


def state_query(job: str) -> tuple[list[str], str]:
    """The command that shows a job, and a pattern in what it prints if the job waits or runs."""
    return ["qstat", "-f", job], r"job_state = [QHWTRBSUE]\b"


def hint(refusal: str) -> str:
    """What to do about a message of qsub, where it does not say so itself."""
    if "ngpus" not in refusal or "nknown resource" not in refusal:
        return ""
    return (
        "; this PBS has no resource ngpus: write --gpus-per-node 0 for ranks on CPUs, name what a node is asked for "
        "with --select ncpus=C:NAME=G, or ask an administrator to define ngpus"
    )


def require_supported(job: Job) -> None:
    """Refuse options of SLURM, with those of PBS."""
    for name, equivalent in _UNLIKE_PBS.items():
        if getattr(job, name, None) is not None or getattr(job.site, name, None):
            raise UserError(f"--{name} is for SLURM; under PBS write {equivalent}")
