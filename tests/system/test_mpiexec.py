"""Both kinds of mpiexec, and qsub over a real SLURM, which is a wrapper: a real PBS says more and does less."""

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from faults import same
from faults.same import Reference
from samestep.core.records import read_json
from samestep.core.rundir import RunDir
from system import held
from system.cluster import Cluster
from system.desk import LIMIT, TESTS, Desk
from system.hosts import Machine, Process, wait_for
from system.needs import require

pytestmark = pytest.mark.timeout(900)
KINDS = {
    "mpich": ["mpiexec.mpich", "-n", "2"],
    "openmpi": ["mpiexec.openmpi", "--allow-run-as-root", "--oversubscribe", "-n", "2"],
}


@dataclass
class Bench:
    """Runs that are started by hand, all of them on this machine at the same time."""

    desk: Desk
    started: dict[str, Process] = field(default_factory=dict)

    def start(self, label: str, launcher: Sequence[str], **changes: float) -> None:
        command = [*launcher, sys.executable, "-m", "samestep", "train", held.NAME]
        env = {"PYTHONPATH": str(TESTS), "OMP_NUM_THREADS": "1"}
        words = [*command, *self.desk.settings(label, **changes)]
        self.started[label] = Machine().start(*words, env=env, output=self.desk.folder / f"{label}.txt")

    def told(self, label: str) -> str:
        return (self.desk.folder / f"{label}.txt").read_text()


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    require("mpiexec", [words[0] for words in KINDS.values()])
    folder = tmp_path_factory.mktemp("mpi")
    bench = Bench(Desk(Cluster(folder), folder))
    for kind, launcher in KINDS.items():
        bench.start(kind, launcher)
    for kind, launcher in KINDS.items():
        bench.start(f"{kind}-killed", launcher, nap=0.2, max_steps=10_000)
    yield bench
    for process in bench.started.values():
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.mark.parametrize("kind", KINDS)
def test_one_run_of_two_ranks(bench: Bench, kind: str) -> None:
    """Not two runs of one, and no two launches at the same door."""
    assert bench.started[kind].wait(LIMIT) == 0, bench.told(kind)
    assert not same.lost(bench.desk.path(kind))
    assert [event["world"] for event in bench.desk.events(kind, "launch")] == [2]
    assert not same.change(Reference(bench.desk.path("mpich"), 2, 0.0, 0.0), bench.desk.path(kind))


@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_rank_ends_all(bench: Bench, kind: str) -> None:
    label = f"{kind}-killed"
    bench.desk.await_step(label)
    os.kill(bench.desk.rank_process(label, 2, 1), signal.SIGKILL)
    assert bench.started[label].wait(10) != 0
    assert not same.orphans(bench.desk.folder, label, patience=1)


@pytest.fixture(scope="module")
def desk(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    require("mpiexec", [KINDS["mpich"][0]])
    with Desk(cluster, tmp_path_factory.mktemp("qsub")).open() as desk:
        yield desk


def test_a_job_of_qsub_stops_before_its_limit_and_submits_itself(desk: Desk, bench: Bench) -> None:
    """There is no signal before the limit: the run looks at the clock, and stops half-way to it."""
    options = ("--on=pbs", "--nodes=2", "--tasks-per-node=1", "--mpiexec=mpiexec.mpich")
    limits = ("--time=70s", "--grace=40", "--filesystems=home:flare")
    desk.submit("resubmitted", *options, *limits, nap=2.0)
    desk.await_step("resubmitted", 1)
    desk.settings("resubmitted", nap=0.0)  # from the next job on
    wait_for(lambda: desk.status("resubmitted") == "done", LIMIT, lambda: desk.printed("resubmitted"))
    outputs = sorted(RunDir(desk.path("resubmitted")).job.glob("*.out"), key=lambda path: int(path.stem))
    assert len(outputs) > 1, desk.printed("resubmitted")
    assert f"job {outputs[1].stem} goes on from there" in outputs[0].read_text()
    assert len(desk.events("resubmitted", "resume")) >= 1
    assert not same.change(Reference(bench.desk.path("mpich"), 2, 0.0, 0.0), desk.path("resubmitted"))


def test_stages_under_qsub_follow_each_other(desk: Desk) -> None:
    options = ("--on=pbs", "--mpiexec=mpiexec.mpich", "--num-gpus=1", "--num-gpus-train=2", "--time=5m")
    desk.type("submit", "system.two_stages", *options, "name=stages", "distributed=cpu", "--quiet")
    wait_for(lambda: desk.status("stages") == "done", LIMIT, lambda: desk.printed("stages"))
    assert [event["world"] for event in desk.events("stages", "launch")] == [1, 2]
    assert read_json(RunDir(desk.path("stages")).frozen)["train"]["plan"]["global_batch"] == 8
    assert Path(RunDir(desk.path("stages")).job / "2_train.sh").exists()
