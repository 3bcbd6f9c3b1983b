"""Scripts are pure text, compared with `golden/`; what they do at the end of a job is tested with a stub srun."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from samestep.core.errors import UserError
from samestep.core.rundir import RunDir
from samestep.launching.schedulers import pbs, slurm
from samestep.launching.schedulers.job import Allocation, Job, JobPart, Site, allocate
from samestep.launching.schedulers.requeue import begin_counting
from samestep.launching.schedulers.script import ScriptContext, job_name
from samestep.launching.schedulers.submit import choose_scheduler, scripts, submit

GOLDEN = Path(__file__).parents[1] / "golden"
CONTEXT = ScriptContext(Path("/home/me/runs/sine-default-1"), Path("/home/me"), "/home/me/venv/bin/python")
ARGS = ("sine.py", "prompt=Hello, world", "name=sine-default-1", "out=/home/me/runs")
PLAIN = JobPart("train", ARGS, Allocation(1, 1, 1))
DUMP = JobPart("1_dump", (*ARGS, "until=dump"), Allocation(1, 1, 1), ["dump"], unfinished=True)
TRAIN = JobPart("2_train", ARGS, Allocation(1, 4, 4), ["train"])
AURORA = Site(
    scheduler="pbs",
    gpus_per_node=12,
    account="Deployment",
    project="climate",
    queue="prod",
    select="",
    filesystems="home:flare",
    modules=("frameworks",),
    env={"ZE_FLAT_DEVICE_HIERARCHY": "FLAT"},
    cpu_bind="list:1-8:9-16",
)
FULL = Site(
    account="physics",
    partition="gpu",
    qos="long",
    constraint="a100|h100",
    directives=("--mail-type=END",),
    modules=("cuda/12.8",),
    setup=("source /etc/profile.d/proxy.sh",),
    env={"NCCL_DEBUG": "WARN", "GREETING": "it's me"},
    srun=("--cpu-bind=cores",),
)
CASES = {
    "slurm_one_gpu.sh": lambda: slurm.script(PLAIN, Job(), CONTEXT),
    "slurm_two_nodes.sh": lambda: slurm.script(
        replace(PLAIN, allocation=Allocation(2, 8, 8, cores=16)),
        Job(site=FULL, cpus_per_task=16, mem="0", time="1-12:00:00", grace=120, nodelist="gpu[3-4]"),
        CONTEXT,
    ),
    "slurm_cpu.sh": lambda: slurm.script(
        replace(PLAIN, allocation=Allocation(1, 0, 4)),
        Job(time="30m", requeue=False),
        ScriptContext(Path("/a b/50%"), *_PLACE),
    ),
    "slurm_stage.sh": lambda: slurm.script(DUMP, Job(exclusive=True), CONTEXT),
    "pbs_aurora.sh": lambda: pbs.script(
        replace(PLAIN, allocation=Allocation(2, 12, 12)), Job(site=AURORA, time="2h"), CONTEXT
    ),
    "pbs_stage.sh": lambda: pbs.script(DUMP, Job(requeue=False, site=Site(select="ncpus=8:ngpus=1")), CONTEXT, TRAIN),
}
_PLACE = (Path("/a b"), "python")


@pytest.mark.parametrize("name", CASES)
def test_scripts(name: str) -> None:
    """After a change on purpose: check the new text, and write it to the file."""
    text = CASES[name]()
    assert text == (GOLDEN / name).read_text()
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)


def pbs_text(allocation: Allocation, **asked: Any) -> str:
    return pbs.script(replace(PLAIN, allocation=allocation), Job(**asked), CONTEXT)


def test_what_a_chunk_asks_for_under_pbs() -> None:
    def selected(gpus: int, **asked: Any) -> str:
        cores = allocate(Job(nodes=2, gpus_per_node=gpus, **asked), "pbs").cores
        text = pbs_text(Allocation(2, gpus, 4, cores), **asked)
        return next(line for line in text.splitlines() if "select" in line).removeprefix("#PBS -l select=")

    assert selected(0) == "2:ncpus=4:mpiprocs=4"
    assert selected(4) == "2:ncpus=4:ngpus=4:mpiprocs=4"
    assert selected(4, cpus_per_task=8) == "2:ncpus=32:ngpus=4:mpiprocs=4"
    assert selected(4, site=Site(cpus_per_node=64)) == "2:ncpus=32:ngpus=4:mpiprocs=4", "its share: half of 8 GPUs"
    assert selected(4, site=Site(select="ncpus=64:ngpus=4")) == "2:ncpus=64:ngpus=4:mpiprocs=4"
    assert selected(4, site=Site(select="ncpus=64:mpiprocs=2")) == "2:ncpus=64:mpiprocs=2"
    assert selected(4, cpus_per_task=8, site=Site(select="ngpus=4")) == "2:ngpus=4:ncpus=32:mpiprocs=4"
    assert selected(4, site=Site(select="")) == "2", "whole nodes"
    chunk = "ncpus=4:ngpus=4:mpiprocs=4"
    assert selected(4, mem="64G") == f"2:{chunk}:mem=64gb", "with cores, GPUs and ranks"
    assert selected(4, mem="64000", site=Site(select="")) == "2:mem=64000mb"
    assert selected(4, nodelist="n[1-2]") == f"1:{chunk}:host=n1+1:{chunk}:host=n2"
    assert selected(4, nodelist="n2", mem="1tb") == f"1:{chunk}:mem=1tb:host=n2+1:{chunk}:mem=1tb"
    with pytest.raises(UserError, match=r"--nodelist n\[1-3\] names 3 nodes, but a job takes 2"):
        selected(4, nodelist="n[1-3]")
    with pytest.raises(UserError, match="--mem 0 is not an amount of memory under PBS; write it like 64G"):
        selected(4, mem="0")
    with pytest.raises(UserError, match="--mem and the mem of --select set the same thing twice"):
        selected(4, mem="64G", site=Site(select="ncpus=4:mem=32gb"))
    with pytest.raises(UserError, match="--cpus-per-task and the ncpus of --select set the same thing twice"):
        selected(4, cpus_per_task=8, site=Site(select="ngpus=4:ncpus=64"))


@pytest.mark.parametrize(
    ("asked", "threads"),
    [
        ({"cpus_per_task": 8}, "8"),
        ({"site": Site(select="ncpus=64")}, "16"),
        ({"site": Site(select="")}, "1"),
        ({"site": Site(env={"OMP_NUM_THREADS": "3"})}, "3"),
    ],
)
def test_threads_of_a_rank_under_pbs(tmp_path: Path, asked: dict[str, Any], threads: str) -> None:
    """PBS sets the variable to the cores of all ranks of a node."""
    context = ScriptContext(tmp_path, tmp_path, "false")
    context.job.mkdir()
    text = pbs.script(replace(PLAIN, allocation=Allocation(1, 0, 4)), Job(**asked), context)
    variables = {"PBS_JOBID": "11", "PBS_NODEFILE": "nodes", "OMP_NUM_THREADS": "64"}
    trial(tmp_path, text, {"mpiexec": 'echo "threads $OMP_NUM_THREADS"'}, variables)
    assert f"threads {threads}\n" in (context.job / "11.out").read_text()


@pytest.mark.parametrize(
    ("version", "words"),
    [
        ("HYDRA build details:", "-n 8 -ppn 4 --hostfile nodes"),
        ("PALS version 1.2.12", "-n 8 -ppn 4 --hostfile nodes"),
        (
            "mpiexec (OpenRTE) 4.1.4",
            "-n 8 --map-by ppr:4:node --bind-to none -x PATH -x OMP_NUM_THREADS -x MASTER_ADDR",
        ),
        (
            "mpiexec (Open MPI) 5.0.3",
            "-n 8 --map-by ppr:4:node --bind-to none -x PATH -x OMP_NUM_THREADS -x MASTER_ADDR",
        ),
    ],
)
def test_the_words_of_each_mpiexec(tmp_path: Path, version: str, words: str) -> None:
    context = ScriptContext(tmp_path, tmp_path, "false")
    context.job.mkdir()
    part = replace(PLAIN, allocation=Allocation(2, 0, 4))
    stubs = {"mpiexec": f'[ "$1" = --version ] && echo "{version}" || echo "started $@"'}
    variables = {"PBS_JOBID": "11", "PBS_NODEFILE": "nodes"}
    trial(tmp_path, pbs.script(part, Job(), context), stubs, variables)
    assert f"started {words}" in (context.job / "11.out").read_text()
    bound = Job(site=Site(cpu_bind="list:1:2"))
    code, _ = trial(tmp_path, pbs.script(part, bound, context), stubs, variables)
    assert (code == 2) == ("Open" in version), "it has no --cpu-bind"


@pytest.mark.parametrize("scheduler", ["slurm", "pbs"])
def test_no_line_of_a_head_is_lost(scheduler: str) -> None:
    """A scheduler reads its lines up to the first command."""
    lines = next(iter(scripts([PLAIN], Job(), CONTEXT, scheduler).values())).splitlines()
    first_command = next(at for at, line in enumerate(lines) if line and not line.startswith("#"))
    marks = [at for at, line in enumerate(lines) if line.startswith(("#SBATCH", "#PBS"))]
    assert marks
    assert max(marks) < first_command


def trial(tmp_path: Path, text: str, commands: dict[str, str], variables: dict[str, str]) -> tuple[int, str]:
    """Run a script with stubs in place of a scheduler's commands; its exit code and what it printed."""
    for name, body in commands.items():
        stub = tmp_path / name
        stub.write_text(f"#!/bin/bash\n{body}\n")
        stub.chmod(0o755)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", **variables}
    done = subprocess.run(
        ["bash"], input=text, env=env, cwd=tmp_path, text=True, capture_output=True, timeout=20, check=False
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("code", "status", "state", "restarts", "ends_with", "requeued"),
    [
        (0, "done", "RUNNING", 0, 0, False),
        (75, "preempted", "RUNNING", 0, 75, True),
        (75, "preempted", "RUNNING", 100, 75, False),  # too often already
        (75, "preempted", "COMPLETING", 0, 75, False),  # cancelled, or requeued by SLURM itself
        (0, "", "RUNNING", 0, 75, True),  # stopped before training began
        (0, "waiting", "RUNNING", 0, 75, True),  # as it was when the stage before had ended
        (75, "failed", "RUNNING", 0, 1, False),  # the larger of 75 and the code of a rank that failed
        (2, "preempted", "RUNNING", 1, 2, False),
        (1, "running", "RUNNING", 0, 1, False),
        (143, "running", "RUNNING", 0, 143, False),
    ],
)
def test_who_is_requeued(
    tmp_path: Path, code: int, status: str, state: str, restarts: int, ends_with: int, requeued: bool
) -> None:
    if status:
        (tmp_path / "status.json").write_text(json.dumps({"status": status, "step": 3}, indent=2))
    context = ScriptContext(tmp_path, tmp_path, sys.executable)
    begin_counting(RunDir(tmp_path))
    stubs = {
        "srun": f"exit {code}",
        "scontrol": f'[ "$1" = show ] && echo "JobId=7 JobState={state} Reason=None" || echo "$@" > asked',
    }
    variables = {"SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": str(restarts)}
    exit_code, printed = trial(tmp_path, slurm.script(PLAIN, Job(), context), stubs, variables)
    assert exit_code == ends_with, printed
    asked = (tmp_path / "asked").read_text() if (tmp_path / "asked").exists() else ""
    assert asked == ("requeue 7\n" if requeued else "")
    assert ("--max-requeues allows, 100 times" in printed) == (restarts == 100)


def test_a_stage_before_the_last_ends_well_when_others_wait(tmp_path: Path) -> None:
    (tmp_path / "status.json").write_text('{\n  "status": "waiting",\n  "after": "dump"\n}\n')
    text = slurm.script(DUMP, Job(), ScriptContext(tmp_path, tmp_path, "python"))
    assert trial(tmp_path, text, {"srun": "exit 0", "scontrol": "exit 1"}, {"SLURM_JOB_ID": "7"})[0] == 0


@pytest.mark.parametrize(
    ("job", "scheduler", "num_gpus", "wanted"),
    [
        (Job(), "slurm", None, Allocation(1, 1, 1)),
        (Job(gpus_per_node=4), "slurm", None, Allocation(1, 4, 4)),
        (Job(nodes=2), "slurm", None, Allocation(2, 8, 8)),
        (Job(nodes=2, site=Site(gpus_per_node=12)), "pbs", None, Allocation(2, 12, 12)),
        (Job(site=Site(gpus_per_node=12)), "pbs", None, Allocation(1, 12, 12)),
        (Job(nodes=2, tasks_per_node=3), "slurm", None, Allocation(2, 0, 3)),
        (Job(gpus_per_node=0), "slurm", None, Allocation(1, 0, 1)),
        (Job(num_gpus=4), "slurm", None, Allocation(1, 4, 4)),
        (Job(num_gpus=4), "slurm", 16, Allocation(2, 8, 8)),
        (Job(num_gpus=4, nodes=2), "slurm", None, Allocation(2, 2, 2)),
    ],
)
def test_allocation(job: Job, scheduler: str, num_gpus: int | None, wanted: Allocation) -> None:
    assert allocate(job, scheduler, num_gpus) == wanted


@pytest.mark.parametrize(
    ("job", "sentence"),
    [
        (Job(gpus_per_node=9), "a node of this site has 8 GPUs"),
        (Job(gpus_per_node=4, num_gpus=4), "twice"),
        (Job(num_gpus=9), "cannot be spread evenly over 2 nodes"),
        (Job(gpus_per_node=4, tasks_per_node=2), "every GPU has one rank"),
        (Job(nodes=0), "--nodes must be at least 1, not 0"),
        (Job(tasks_per_node=0), "--tasks-per-node must be at least 1"),
    ],
)
def test_impossible_allocations_are_refused(job: Job, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        allocate(job, "slurm")


def test_refusals_of_a_scheduler_are_shown_with_its_message_and_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    context = ScriptContext(tmp_path / "run", tmp_path, "python")
    stub, cancel = tmp_path / "sbatch", tmp_path / "scancel"
    stub.write_text("#!/bin/sh\necho 'sbatch: error: invalid partition specified: gold' >&2\nexit 1\n")
    cancel.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/cancelled\n')
    stub.chmod(0o755), cancel.chmod(0o755)
    with pytest.raises(
        UserError, match="sbatch did not accept the job: sbatch: error: invalid partition specified: gold"
    ):
        submit([PLAIN], Job(), context, "slurm")
    assert not context.job.exists()
    context.job.mkdir(parents=True)
    context.script(DUMP).write_text("of an earlier job")
    stub.write_text('#!/bin/sh\nfor arg in "$@"; do [ "$arg" = --dependency=afterok:41 ] && exit 3; done\necho 41\n')
    with pytest.raises(UserError, match=r"sbatch did not accept the job: exit code 3; fix that and submit again$"):
        submit([DUMP, TRAIN], Job(), context, "slurm")
    assert (tmp_path / "cancelled").read_text() == "41\n", "the job before the one that was refused"
    assert [path.name for path in context.job.iterdir()] == ["1_dump.sh"]
    assert context.script(DUMP).read_text() == "of an earlier job"
    cancel.write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(UserError, match="cancel the jobs before it with: scancel 41"):
        submit([DUMP, TRAIN], Job(), context, "slurm")
    stub.unlink()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="submit where the scheduler is installed"):
        submit([PLAIN], Job(), context, "slurm")


@pytest.mark.parametrize(
    ("site", "wanted"),
    [
        (Site(), "submitted"),
        (Site(setup=("export PROXY=here",)), "submitted"),
        (Site(setup=("export PATH=$PWD/venv/bin:$PATH",)), "activated"),
        (Site(setup=("export PATH=$PWD/venv/bin:$PATH",), python="./named"), "named"),
        (Site(python="./bare"), "has no samestep or no torch: install them there, or name another one with --python"),
    ],
)
@pytest.mark.parametrize("scheduler", ["slurm", "pbs"])
def test_the_interpreter_of_a_job(tmp_path: Path, scheduler: str, site: Site, wanted: str) -> None:
    """That which --setup activates, and --python before it; where it has no samestep, the job says so and ends."""
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    stubs = {"srun": '[[ "$*" = *" -m samestep train "* ]] && "${@:3}"', "scontrol": "exit 1", "bare": "exit 1"}
    stubs["mpiexec"] = '[ "$1" = --version ] || "${@:7}"'
    for name, path in {"submitted": "submitted", "activated": "venv/bin/python", "named": "named"}.items():
        stubs[path] = f'[[ "$*" != *" train "* ]] || echo "started with {name}"'
    context = ScriptContext(tmp_path, tmp_path, str(tmp_path / "submitted"))
    context.job.mkdir()
    text = next(iter(scripts([PLAIN], Job(site=site, requeue=False), context, scheduler).values()))
    variables = {"PBS_JOBID": "11", "PBS_NODEFILE": "nodes", "SLURM_JOB_ID": "7"}
    code, printed = trial(tmp_path, text, stubs, variables)
    printed += (context.job / "11.out").read_text() if scheduler == "pbs" else ""
    if site.python == "./bare":
        assert code == 2 and wanted in printed and "started" not in printed
    else:
        assert f"started with {wanted}\n" in printed


def test_cores_of_a_rank() -> None:
    """As asked for; the share of a GPU; or one, and one for each data worker. Else the cluster's own default."""
    known = Site(cpus_per_node=64)
    assert allocate(Job(cpus_per_task=3, site=known), "slurm", workers=4).cores == 3
    assert allocate(Job(num_gpus=2, site=known), "slurm", workers=4).cores == 8
    assert allocate(Job(num_gpus=2), "slurm", workers=4).cores == 5
    assert allocate(Job(tasks_per_node=2, site=known), "slurm").cores == 1

    def text(job: Job, workers: int = 0) -> str:
        return slurm.script(replace(PLAIN, allocation=allocate(job, "slurm", workers=workers)), job, CONTEXT)

    assert "#SBATCH --cpus-per-task=8\n" in text(Job(site=known)) and "--cpus-per-task=8 " in text(Job(site=known))
    assert "#SBATCH --cpus-per-task=5\n" in text(Job(), 4)
    assert "--cpu-bind=none " in text(Job(), 4), "an exclusive node has more"
    assert "cpus-per-task" not in text(Job())


def test_long_names_of_runs_are_shortened_for_the_scheduler() -> None:
    long = Path("/home/me/runs") / f"{'a' * 200}-experiment-17"
    assert len(job_name(long)) == 60 and job_name(long).endswith("-experiment-17")
    assert job_name(CONTEXT.run) == "sine-default-1"
    for scheduler, mark in (("slurm", "--job-name="), ("pbs", "-N ")):
        text = next(iter(scripts([PLAIN], Job(), replace(CONTEXT, run=long), scheduler).values()))
        assert f"{mark}{job_name(long)}\n" in text


def test_the_scheduler_is_the_one_that_is_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert choose_scheduler(Site()) == "local"
    (tmp_path / "qsub").write_text("")
    (tmp_path / "qsub").chmod(0o755)
    assert choose_scheduler(Site()) == "pbs"
    assert choose_scheduler(Site(scheduler="slurm")) == "slurm"
