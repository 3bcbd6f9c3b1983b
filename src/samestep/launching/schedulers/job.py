"""What a job asks of a cluster, and what the cluster is like: settings from a site's file and the command line.

A site's file is YAML with the fields of `Site`: one that ships (`--site aurora`) or one of your own
(`--site ours.yaml`, or for good with the variable SAMESTEP_SITE).
"""

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, Literal

from samestep.core.config import listed
from samestep.core.durations import parse_duration
from samestep.core.errors import UserError
from samestep.core.launch_env import SECRET

SITE_VARIABLE = "SAMESTEP_SITE"
"""The environment variable that names the site when the command line does not."""


@dataclass(frozen=True)
class Layout:
    """What ranks of a node need when there are so many of them."""

    devices: str = ""
    """What each rank computes on, in words."""
    cpu_bind: str | None = None
    """PBS: which cores each rank has."""
    env: dict[str, str] = field(default_factory=dict)
    """Variables of every rank."""


@dataclass(frozen=True)
class Site:
    """A cluster: what its nodes are like, and what every job on it has to set."""

    scheduler: Literal["auto", "slurm", "pbs", "local"] = "auto"
    """Who runs jobs: slurm, pbs, or local for this machine, at once; auto takes the first whose command is found."""
    gpus_per_node: int = 8
    """GPUs that a node has, or tiles where those are the devices; a job with all of them has the node for itself."""
    cpus_per_node: int | None = None
    """Cores that a node has; without --cpus-per-task, each GPU comes with its share of them."""
    account: str | None = None
    """Account or project to charge."""
    project: str | None = None
    """PBS: project, where that is another thing than the account."""
    partition: str | None = None
    """SLURM: partition."""
    qos: str | None = None
    """SLURM: quality of service."""
    constraint: str | None = None
    """SLURM: features that nodes must have."""
    queue: str | None = None
    """PBS: queue."""
    select: str | None = None
    """PBS: what each chunk of `select` asks for beside its number, such as ncpus=64:ngpus=4; empty: whole nodes."""
    place: str | None = "scatter"
    """PBS: how chunks are placed."""
    filesystems: str | None = None
    """PBS: file systems that the job needs, such as home:flare."""
    directives: tuple[str, ...] = ()
    """Further lines for the head of the script, without their #SBATCH or #PBS."""
    modules: tuple[str, ...] = ()
    """Modules to load."""
    setup: tuple[str, ...] = ()
    """Shell lines before training starts, after the modules. If they put another python first on the PATH, as the
    `activate` of a virtual environment does, the job runs with that one."""
    python: str | None = None
    """The interpreter of the job; by default the one that --setup activates, or else the one that submits."""
    env: dict[str, str] = field(default_factory=dict)
    """Variables of every rank."""
    srun: tuple[str, ...] = ()
    """SLURM: further options of srun."""
    mpiexec: str = "mpiexec"
    """PBS: the command that starts ranks: mpiexec of PALS, MPICH or Open MPI."""
    cpu_bind: str | None = None
    """PBS: which cores each rank of a node has, as PALS's mpiexec understands it."""
    layouts: dict[str, Layout] = field(default_factory=dict)
    """What ranks need, by the number of them that a node may have; if there are any, other numbers are refused."""


@dataclass(frozen=True)
class Job:
    """What one submission asks for."""

    nodes: int | None = None
    """Nodes; one, unless more GPUs are asked for than a node has."""
    gpus_per_node: int | None = None
    """GPUs of each node, with a rank each; 0: ranks on CPUs. By default one; of several nodes, and under PBS, all."""
    tasks_per_node: int | None = None
    """Ranks of each node where there are no GPUs."""
    num_gpus: int | None = None
    """GPUs in all, in place of gpus_per_node; `--num-gpus-STAGE N` is for one stage, which is then a job of its own."""
    cpus_per_task: int | None = None
    """Cores of each rank; by default its GPU's share of cpus_per_node, or one and one more for each data worker."""
    mem: str | None = None
    """Memory of each node, such as 64G."""
    time: str | None = None
    """Time limit: 30m, 2h, 1d, HH:MM:SS or D-HH:MM:SS."""
    grace: int | None = None
    """Seconds before the time limit at which the run stops and saves (slurm 60, pbs 300)."""
    exclusive: bool | None = None
    """Nodes for this job alone; by default when all GPUs of a node are asked for."""
    nodelist: str | None = None
    """Nodes to run on, such as node1,node2 or node[1-2]."""
    requeue: bool = True
    """Queue again after a stop before the end, and go on from there."""
    max_requeues: int = 100
    """How often, at most."""
    dry_run: bool = False
    """Print what would be submitted, and do nothing."""
    site: Site = field(default_factory=Site)
    """The cluster."""


SITE_ALIASES = {
    "on": "site.scheduler",
    **{name: f"site.{name}" for name in ("account", "partition", "qos", "constraint")},
    **{name: f"site.{name}" for name in ("project", "queue", "select", "filesystems", "mpiexec", "cpu_bind", "python")},
}
"""Settings of the site that may be written without `site.`."""


@dataclass(frozen=True)
class Allocation:
    """The nodes, GPUs and ranks of one job."""

    nodes: int
    gpus: int
    """Of each node."""
    tasks: int
    """Of each node."""
    cores: int = 1
    """Of each rank."""

    @property
    def ranks(self) -> int:
        return self.nodes * self.tasks


def allocate(job: Job, scheduler: str, num_gpus: int | None = None, workers: int = 0) -> Allocation:
    """Nodes, GPUs, ranks and cores that a job gets; `num_gpus` in all, where one stage has a number of its own, and
    `workers` are the processes of each rank that load data."""
    _check(job)
    total = job.num_gpus if num_gpus is None else num_gpus
    nodes, gpus = _spread(job, total) if total is not None else (job.nodes or 1, _gpus_per_node(job, scheduler))
    if gpus > job.site.gpus_per_node:
        raise UserError(
            f"a node of this site has {job.site.gpus_per_node} GPUs, so a job cannot have {gpus} of each; ask for more "
            "--nodes, or set how many a node has with --site.gpus-per-node"
        )
    if gpus and job.tasks_per_node not in (None, gpus):
        raise UserError(
            f"--tasks-per-node {job.tasks_per_node} does not go with {gpus} GPUs of each node, since every GPU has one "
            "rank; leave it out, or write --gpus-per-node 0 for ranks on CPUs"
        )
    if gpus and job.site.layouts and str(gpus) not in job.site.layouts:
        choices = [f"{number} ({layout.devices})" for number, layout in job.site.layouts.items()]
        raise UserError(
            f"this site has no place for {gpus} ranks with a GPU on a node; ask for {listed(choices, 'or')} with "
            "--gpus-per-node"
        )
    return Allocation(nodes, gpus, gpus or job.tasks_per_node or 1, _cores(job, gpus, workers))


def laid_out(job: Job, allocation: Allocation) -> Job:
    """The job with what its site has for this number of ranks; what was given otherwise stays."""
    layout = job.site.layouts.get(str(allocation.gpus), Layout())
    env, cpu_bind = {**layout.env, **job.site.env}, job.site.cpu_bind or layout.cpu_bind
    return replace(job, site=replace(job.site, env=env, cpu_bind=cpu_bind))


def _cores(job: Job, gpus: int, workers: int) -> int:
    """The cores of each rank: as given, its GPU's share of the node, or one for itself and for each of its workers."""
    of_node = job.site.cpus_per_node if gpus else None
    share = of_node // max(1, job.site.gpus_per_node) if of_node else 0
    return job.cpus_per_task or share or 1 + workers


def _gpus_per_node(job: Job, scheduler: str) -> int:
    if job.gpus_per_node is not None:
        return job.gpus_per_node
    if job.tasks_per_node is not None:
        return 0
    takes_all = (job.nodes or 1) > 1 or scheduler == "pbs"
    return job.site.gpus_per_node if takes_all else min(1, job.site.gpus_per_node)


def _spread(job: Job, total: int) -> tuple[int, int]:
    """Nodes, and GPUs of each, for `total` GPUs: all on one node where they fit."""
    if job.gpus_per_node is not None:
        raise UserError("--num-gpus and --gpus-per-node set the same thing twice; leave out one of them")
    has = job.site.gpus_per_node
    nodes = job.nodes or max(1, -(-total // max(1, has)))
    if total % nodes:
        raise UserError(
            f"{total} GPUs cannot be spread evenly over {nodes} nodes of {has}; ask for another number, or set how "
            "many a node has with --site.gpus-per-node"
        )
    return nodes, total // nodes


def _check(job: Job) -> None:
    least = {"nodes": 1, "gpus_per_node": 0, "tasks_per_node": 1, "num_gpus": 1, "cpus_per_task": 1, "grace": 0}
    for name, bound in least.items():
        value = getattr(job, name)
        if value is not None and value < bound:
            raise UserError(f"--{name.replace('_', '-')} must be at least {bound}, not {value}")
    if job.time is not None:
        parse_duration(job.time, time_limit=True)  # only to refuse anything else
    for option, text in _texts(job):
        require_one_line(option, text)
    layouts = job.site.layouts.values()
    for layout in layouts:
        require_one_line("--site.layouts", layout.cpu_bind or "")
    for name, value in (item for env in (job.site.env, *(each.env for each in layouts)) for item in env.items()):
        if not re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name):
            raise UserError(
                f"--env {name!r} is not a name of a variable; use letters, digits and _, such as NCCL_DEBUG"
            )
        if name == SECRET:
            raise UserError(
                f"--env {name} would stand in the job's script: set it in the shell profile of the nodes, or share the "
                "home directory between them"
            )
        if "\0" in value:
            raise UserError(f"--env {name} holds a zero byte, which no variable can; remove it")
    try:
        shlex.split(job.site.mpiexec)
    except ValueError as error:
        raise UserError(f"--mpiexec {job.site.mpiexec!r} is not a command ({error}); fix its quotes") from None


def _texts(settings: Any, above: str = "") -> Iterator[tuple[str, str]]:
    """Every text that becomes part of a line of the script, with its option; shell lines and values are not."""
    for field_ in fields(settings):
        name, value = field_.name, getattr(settings, field_.name)
        if is_dataclass(value):
            yield from _texts(value, f"{above}{name}.")
        elif name not in ("env", "setup"):
            texts = value if isinstance(value, tuple) else [value]
            yield from ((f"--{above}{name}".replace("_", "-"), text) for text in texts if isinstance(text, str))


def require_one_line(what: str, text: str) -> None:
    """Refuse text that would end a line of the script: what follows would be a line of its own."""
    if not text.isprintable():
        raise UserError(
            f"{what} is {text!r}, which holds a line break or another character that cannot be seen; remove it"
        )


@dataclass(frozen=True)
class JobPart:
    """One job of a run: what it runs, and on how many nodes and GPUs."""

    label: str
    """The name of its script: train, or a number and its stages."""
    args: Sequence[str]
    """What comes after `samestep train`."""
    allocation: Allocation
    stages: Sequence[str] = ()
    """The stages that it runs; empty: all."""
    unfinished: bool = False
    """Whether other stages follow in other jobs."""
