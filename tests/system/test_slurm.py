"""Runs on a real SLURM: they finish, and whatever stops them, they go on where they stopped, bit for bit."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from faults import same
from faults.same import Reference
from samestep.core.records import read_json
from samestep.core.rundir import RunDir
from system.cluster import Cluster
from system.desk import ENDED, PAIR, Desk
from system.hosts import wait_for

pytestmark = pytest.mark.timeout(900)
ON_GPUS = ("--nodes=2", "--gpus-per-node=1")


@pytest.fixture(scope="module")
def desk(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    with Desk(cluster, tmp_path_factory.mktemp("desk")).open() as desk:
        yield desk


@pytest.fixture(scope="module")
def jobs(desk: Desk) -> dict[str, str]:
    """All runs that are stopped, and one that is not: at the same time, since each spends most of it waiting.

    Each is stopped while it is held in the middle, and released when SLURM has taken it back.
    """
    jobs = {
        "limited": desk.submit("limited", *PAIR, "--time=1h", "--grace=600", gate=desk.gate("limited")),
        "whole": desk.submit("whole", *PAIR),
        "requeued": desk.submit("requeued", *PAIR, gate=desk.gate("requeued")),
        "cancelled": desk.submit("cancelled", *PAIR, gate=desk.gate("cancelled")),
        "pushed": desk.submit("pushed", *ON_GPUS, "--partition=low", gate=desk.gate("pushed")),
        "asked": desk.submit("asked", *ON_GPUS, "--partition=graceful", gate=desk.gate("asked")),
        "wrong": desk.submit("wrong", *PAIR, batch_size=0),
    }
    counts = ("--num-gpus=1", "--num-gpus-train=2")
    jobs["dump"], jobs["train"] = desk.type(
        "submit", "system.two_stages", *counts, "name=stages", "distributed=cpu", "--quiet"
    )
    slurm = desk.cluster
    for label in ("limited", "requeued", "cancelled", "pushed", "asked"):
        desk.await_step(label)
    # Ten minutes of its hour count as left now: it is signalled when SLURM next looks, which it does twice a minute.
    slurm("scontrol", "update", f"JobId={jobs['limited']}", "TimeLimit=10")
    slurm("scontrol", "requeue", jobs["requeued"])
    slurm("scancel", jobs["cancelled"])
    slurm("sbatch", "--partition=urgent", "--nodes=2", "--gpus-per-node=4", "--output=/dev/null", "--wrap=true")
    desk.await_state(jobs["cancelled"], "CANCELLED")
    desk.release("cancelled")
    for label in ("requeued", "pushed", "asked", "limited"):
        desk.await_other(jobs[label], "Restarts", "0")
        desk.release(label)
    slurm("scontrol", "update", f"JobId={jobs['limited']}", "TimeLimit=60")  # once is enough
    return jobs


def check_whole(desk: Desk, label: str, job: str) -> None:
    """The run came to its end, as if nothing had happened."""
    desk.await_state(job, *ENDED)
    told = desk.printed(label)
    assert desk.cluster.state(job) == "COMPLETED", told + desk.cluster.told(job)
    assert not same.lost(desk.path(label)), told
    assert not same.change(Reference(desk.path("whole"), 2, 0.0, 0.0), desk.path(label))


def check_resumed(desk: Desk, label: str, job: str) -> None:
    """It stopped in the middle, was queued again under its number, and nothing shows of it."""
    check_whole(desk, label, job)
    assert int(desk.cluster.field(job, "Restarts")) >= 1
    resumed = [event["step"] for event in desk.events(label, "resume")]
    assert resumed
    assert all(0 < step < 12 for step in resumed), resumed


def test_a_job_on_two_nodes_trains_and_finishes(desk: Desk, jobs: dict[str, str]) -> None:
    desk.await_state(jobs["whole"], *ENDED)
    told = desk.printed("whole")
    assert not same.lost(desk.path("whole")), told
    assert [event["world"] for event in desk.events("whole", "launch")] == [2]
    assert desk.cluster.field(jobs["whole"], "NodeList") == "node[1-2]"
    noted = read_json(RunDir(desk.path("whole")).job / "job.json")["jobs"]
    assert [job["job"] for job in noted] == [jobs["whole"]]
    assert Path(noted[0]["output"]).exists()


def test_requeued_by_an_operator(desk: Desk, jobs: dict[str, str]) -> None:
    check_resumed(desk, "requeued", jobs["requeued"])


def test_preempted_at_once(desk: Desk, jobs: dict[str, str]) -> None:
    check_resumed(desk, "pushed", jobs["pushed"])


def test_preempted_with_grace_time(desk: Desk, jobs: dict[str, str]) -> None:
    """SLURM asks the ranks to stop and waits; it does not requeue a job that ends meanwhile: that is the script's."""
    check_resumed(desk, "asked", jobs["asked"])
    assert "the job queues again" in desk.printed("asked")


def test_the_signal_before_the_time_limit(desk: Desk, jobs: dict[str, str]) -> None:
    check_resumed(desk, "limited", jobs["limited"])
    assert "the job queues again" in desk.printed("limited")


def test_a_cancelled_job_stays_cancelled_and_can_be_resumed(desk: Desk, jobs: dict[str, str]) -> None:
    desk.await_state(jobs["cancelled"], *ENDED)
    assert desk.cluster.state(jobs["cancelled"]) == "CANCELLED"
    assert desk.cluster.field(jobs["cancelled"], "Restarts") == "0"
    assert desk.status("cancelled") == "preempted", desk.printed("cancelled")
    check_whole(desk, "cancelled", desk.type("submit", "--resume", "runs/cancelled", *PAIR)[0])


def test_what_the_user_must_mend_is_not_tried_again(desk: Desk, jobs: dict[str, str]) -> None:
    job = jobs["wrong"]
    desk.await_state(job, *ENDED)
    assert desk.cluster.state(job) == "FAILED"
    assert desk.cluster.field(job, "ExitCode") == "2:0"
    assert desk.cluster.field(job, "Restarts") == "0", desk.printed("wrong") + desk.cluster.told(job)
    assert desk.printed("wrong").count("batch_size must be at least 1") == 1


def test_a_killed_rank_ends_the_job(desk: Desk) -> None:
    job = desk.submit("killed", *PAIR, nap=0.1, max_steps=10_000)
    desk.await_step("killed")
    os.kill(desk.rank_process("killed", 2, 1), signal.SIGKILL)
    wait_for(lambda: desk.cluster.state(job) in ENDED, 10, "for the end of a job without a rank")
    assert desk.cluster.state(job) == "FAILED"
    assert not same.orphans(desk.folder, "killed", patience=1)


def test_stages_are_jobs_with_gpus_of_their_own(desk: Desk, jobs: dict[str, str]) -> None:
    desk.await_state(jobs["train"], *ENDED)
    assert [desk.cluster.state(jobs[part]) for part in ("dump", "train")] == ["COMPLETED"] * 2, desk.printed("stages")
    assert desk.cluster.field(jobs["dump"], "EndTime") <= desk.cluster.field(jobs["train"], "StartTime")
    assert [event["world"] for event in desk.events("stages", "launch")] == [1, 2]
    assert desk.status("stages") == "done"
    frozen = read_json(RunDir(desk.path("stages")).frozen)
    assert frozen["train"]["plan"]["global_batch"] == 2 * 4  # of the two ranks that train, not of the one that dumps
