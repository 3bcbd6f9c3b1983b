"""Both kinds of mpiexec, and a qsub that is a wrapper over a real SLURM: a real PBS prints more and does less."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from shutil import which

import pytest

from faults import run_checks
from faults.run_checks import Reference
from samestep.core.json_files import read_json
from samestep.core.rundir import RunDir
from system import pausable
from system.cluster import Cluster
from system.cluster_runs import JOB_TIMEOUT, ClusterRuns
from system.hosts import SOON, Machine, Process, wait_for
from system.requirements import MODULES, require

pytestmark = pytest.mark.timeout(900)
LAUNCHERS = {
    "mpich": ["mpiexec.mpich", "-n", "2"],
    "openmpi": ["mpiexec.openmpi", "--allow-run-as-root", "--oversubscribe", "-n", "2"],
}


QSUB = """#!/bin/bash
[ "$1" = --version ] && echo pbs_version = 0 && exit  # samestep asks for it before it submits
exec {} "${{@/%\\//\\/%j.OU}}"  # PBS puts a file of each job into a folder; SLURM has to be told its name
"""


@dataclass
class MpiRuns:
    """Runs started by mpiexec, all on this machine at the same time."""

    runs: ClusterRuns
    started: dict[str, Process] = field(default_factory=dict)

    def start(self, label: str, launcher: Sequence[str], **changes: float) -> None:
        command = [*launcher, sys.executable, "-m", "samestep", "train", pausable.NAME]
        # Open MPI's folder of a user is removed by the launch that ends first, under one that is just starting
        session = self.runs.folder / f"{label}-session"
        session.mkdir()
        env = {"PYTHONPATH": MODULES, "OMP_NUM_THREADS": "1", "OMPI_MCA_orte_tmpdir_base": str(session)}
        args = [*command, *self.runs.settings(label, **changes)]
        self.started[label] = Machine().start(*args, env=env, output=self.runs.folder / f"{label}.txt")

    def output(self, label: str) -> str:
        return (self.runs.folder / f"{label}.txt").read_text()


@pytest.fixture(scope="module")
def mpi(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MpiRuns]:
    require("mpiexec", [command[0] for command in LAUNCHERS.values()])
    folder = tmp_path_factory.mktemp("mpi")
    mpi = MpiRuns(ClusterRuns(Cluster(folder), folder))
    for kind, launcher in LAUNCHERS.items():
        mpi.start(kind, launcher)
    for kind, launcher in LAUNCHERS.items():
        mpi.start(f"{kind}-killed", launcher, step_delay=0.2, max_steps=10_000)
    yield mpi
    for process in mpi.started.values():
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.fixture(scope="module")
def runs(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterRuns]:
    require("mpiexec", [LAUNCHERS["mpich"][0]])
    with ClusterRuns(cluster, tmp_path_factory.mktemp("qsub")).open() as runs, pytest.MonkeyPatch.context() as patch:
        qsub = runs.folder / "bin" / "qsub"
        qsub.parent.mkdir()
        qsub.write_text(QSUB.format(which("qsub")))
        qsub.chmod(0o755)
        patch.setenv("PATH", f"{qsub.parent}:{os.environ['PATH']}")
        yield runs


@pytest.fixture(scope="module")
def jobs(runs: ClusterRuns) -> dict[str, str]:
    """Both jobs of qsub, submitted before mpiexec starts anything: one of them pauses until half its time is over."""
    on_pbs = ("--on=pbs", "--mpiexec=mpiexec.mpich", f"--env=PATH={os.environ['PATH']}")  # with its qsub, in jobs too
    limits = ("--nodes=2", "--tasks-per-node=1", "--time=90s", "--grace=45", "--filesystems=home:flare")
    stages = ("--num-gpus=1", "--num-gpus-train=2", "--time=5m", "name=stages", "distributed=cpu", "--quiet")
    return {
        "resubmitted": runs.submit("resubmitted", *on_pbs, *limits, pause_file=runs.pause_file("resubmitted")),
        "stages": runs.samestep("submit", "system.two_stages", *on_pbs, *stages)[0],
    }


def test_jobs_are_submitted_by_qsub(jobs: dict[str, str]) -> None:
    assert all(number.isdigit() for number in jobs.values()), "each answers with the number of a job"


@pytest.mark.parametrize("kind", LAUNCHERS)
def test_one_run_of_two_ranks(mpi: MpiRuns, kind: str) -> None:
    """Not two runs of one rank each, and no two launches on the same port."""
    assert mpi.started[kind].wait(JOB_TIMEOUT) == 0, mpi.output(kind)
    assert not run_checks.unfinished(mpi.runs.path(kind))
    assert [event["world"] for event in mpi.runs.events(kind, "launch")] == [2]
    assert not run_checks.first_difference(Reference(mpi.runs.path("mpich"), 2, 0.0, 0.0), mpi.runs.path(kind))


@pytest.mark.parametrize("kind", LAUNCHERS)
def test_a_killed_rank_ends_all(mpi: MpiRuns, kind: str) -> None:
    label = f"{kind}-killed"
    mpi.runs.await_step(label)
    os.kill(mpi.runs.rank_process(label, 2, 1), signal.SIGKILL)
    assert mpi.started[label].wait(SOON) != 0
    assert not run_checks.orphans(mpi.runs.folder, label, timeout=1)


_GATHER = """
import sys
from samestep.world.world import World
world = World.join(device="cpu", timeout=100)
names = world.gather([sys.argv[1], world.rank_info.local_size])
world.leave()
sys.exit(0 if names == [[sys.argv[1], 2]] * 4 else f"gathered {names}")
"""


def test_launches_of_mpich_in_one_allocation_do_not_mix() -> None:
    """Over several hosts, here two names for this one; all have the same job id."""
    require("mpiexec", ["mpiexec.mpich"])
    launch = ["mpiexec.mpich", "-launcher", "fork", "-hosts", "one,two", "-n", "4", "-ppn", "2"]
    env = {**os.environ, "MASTER_ADDR": "localhost", "PBS_JOBID": "77.server", "OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen([*launch, sys.executable, "-c", _GATHER, name], env=env, stderr=subprocess.PIPE, text=True)
        for name in ("a", "b")
    ]
    for process in started:
        _, errors = process.communicate(timeout=200)
        assert process.returncode == 0, errors


def test_a_job_of_qsub_stops_before_its_limit_and_submits_itself(
    runs: ClusterRuns, jobs: dict[str, str], mpi: MpiRuns
) -> None:
    """PBS sends no signal before the limit: the run checks the clock, and stops `--grace` seconds before it."""
    wait_for(lambda: runs.status("resubmitted") == "done", JOB_TIMEOUT, lambda: runs.printed("resubmitted"))
    outputs = sorted(RunDir(runs.path("resubmitted")).job.glob("*.out"), key=lambda path: int(path.stem))
    assert len(outputs) > 1, runs.printed("resubmitted")
    assert f"job {outputs[1].stem} goes on from there" in outputs[0].read_text()
    assert len(runs.events("resubmitted", "resume")) >= 1
    assert not run_checks.first_difference(Reference(mpi.runs.path("mpich"), 2, 0.0, 0.0), runs.path("resubmitted"))


def test_stages_under_qsub_follow_each_other(runs: ClusterRuns, jobs: dict[str, str]) -> None:
    wait_for(lambda: runs.status("stages") == "done", JOB_TIMEOUT, lambda: runs.printed("stages"))
    assert [event["world"] for event in runs.events("stages", "launch")] == [1, 2]
    assert read_json(RunDir(runs.path("stages")).config)["global_batch"] == 8
    assert Path(RunDir(runs.path("stages")).job / "2_train.sh").exists()
