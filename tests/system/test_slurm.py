"""Runs on a real SLURM cluster: they finish, and after any kind of stop they resume, bit for bit."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from faults import run_checks
from faults.run_checks import Reference
from samestep.core.json_files import read_json
from samestep.core.rundir import RunDir
from system.cluster import Cluster
from system.cluster_runs import ENDED, PAIR, ClusterRuns
from system.hosts import SOON, wait_for

pytestmark = pytest.mark.timeout(900)
ON_GPUS = ("--nodes=2", "--gpus-per-node=1")


@pytest.fixture(scope="module")
def runs(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterRuns]:
    with ClusterRuns(cluster, tmp_path_factory.mktemp("slurm-runs")).open() as runs:
        yield runs


@pytest.fixture(scope="module")
def jobs(runs: ClusterRuns) -> dict[str, str]:
    """All runs that are stopped, and one that is not, at the same time, since each spends most of its time waiting.

    Each is stopped while it is paused in the middle, and goes on after SLURM has queued it again.
    """
    jobs = {
        "limited": runs.submit("limited", *PAIR, "--time=1h", "--grace=600", pause_file=runs.pause_file("limited")),
        "uninterrupted": runs.submit("uninterrupted", *PAIR),
        "requeued": runs.submit("requeued", *PAIR, pause_file=runs.pause_file("requeued")),
        "cancelled": runs.submit("cancelled", *PAIR, pause_file=runs.pause_file("cancelled")),
        "pushed": runs.submit("pushed", *ON_GPUS, "--partition=low", pause_file=runs.pause_file("pushed")),
        "asked": runs.submit("asked", *ON_GPUS, "--partition=graceful", pause_file=runs.pause_file("asked")),
        "wrong": runs.submit("wrong", *PAIR, init_from="missing"),
    }
    counts = ("--num-gpus=1", "--num-gpus-train=2")
    jobs["dump"], jobs["train"] = runs.samestep(
        "submit", "system.two_stages", *counts, "name=stages", "distributed=cpu", "--quiet"
    )
    slurm = runs.cluster
    for label in ("limited", "requeued", "cancelled", "pushed", "asked"):
        runs.await_step(label)
    # Its limit is now its grace time, ten minutes: SLURM, which checks twice a minute, sends the signal soon.
    slurm("scontrol", "update", f"JobId={jobs['limited']}", "TimeLimit=10")
    slurm("scontrol", "requeue", jobs["requeued"])
    slurm("scancel", jobs["cancelled"])
    slurm("sbatch", "--partition=urgent", "--nodes=2", "--gpus-per-node=4", "--output=/dev/null", "--wrap=true")
    runs.await_state(jobs["cancelled"], "CANCELLED")
    runs.unpause("cancelled")
    runs.await_change(jobs["limited"], "Restarts", "0")
    slurm("scontrol", "update", f"JobId={jobs['limited']}", "TimeLimit=60")  # at once, or it is signalled again
    for label in ("limited", "requeued", "pushed", "asked"):
        runs.await_change(jobs[label], "Restarts", "0")
        runs.unpause(label)
    return jobs


def check_finished(runs: ClusterRuns, label: str, job: str) -> None:
    """The run finished with the same results as the uninterrupted one."""
    runs.await_state(job, *ENDED)
    output = runs.printed(label)
    assert runs.cluster.state(job) == "COMPLETED", output + runs.cluster.daemon_log(job)
    assert not run_checks.unfinished(runs.path(label)), output
    assert not run_checks.first_difference(Reference(runs.path("uninterrupted"), 2, 0.0, 0.0), runs.path(label))


def check_resumed(runs: ClusterRuns, label: str, job: str) -> None:
    """The run stopped in the middle, was queued again under the same job id, and its results are the same."""
    check_finished(runs, label, job)
    assert int(runs.cluster.field(job, "Restarts")) >= 1
    resumed = [event["step"] for event in runs.events(label, "resume")]
    assert resumed
    assert all(0 < step < 12 for step in resumed), resumed


def test_a_job_on_two_nodes_trains_and_finishes(runs: ClusterRuns, jobs: dict[str, str]) -> None:
    runs.await_state(jobs["uninterrupted"], *ENDED)
    output = runs.printed("uninterrupted")
    assert not run_checks.unfinished(runs.path("uninterrupted")), output
    assert [event["world"] for event in runs.events("uninterrupted", "launch")] == [2]
    assert runs.cluster.field(jobs["uninterrupted"], "NodeList") == "node[1-2]"
    submitted = read_json(RunDir(runs.path("uninterrupted")).job / "job.json")["jobs"]
    assert [job["job"] for job in submitted] == [jobs["uninterrupted"]]
    assert Path(submitted[0]["output"]).exists()


def test_requeued_by_an_operator(runs: ClusterRuns, jobs: dict[str, str]) -> None:
    check_resumed(runs, "requeued", jobs["requeued"])


def test_preempted_at_once(runs: ClusterRuns, jobs: dict[str, str]) -> None:
    check_resumed(runs, "pushed", jobs["pushed"])


def test_preempted_with_grace_time(runs: ClusterRuns, jobs: dict[str, str]) -> None:
    """SLURM asks the ranks to stop and waits. It does not requeue a job that exits by then; the script does."""
    check_resumed(runs, "asked", jobs["asked"])
    assert "the job queues again" in runs.printed("asked")


def test_the_signal_before_the_time_limit(runs: ClusterRuns, jobs: dict[str, str]) -> None:
    check_resumed(runs, "limited", jobs["limited"])
    assert "the job queues again" in runs.printed("limited")


def test_a_cancelled_job_stays_cancelled_and_can_be_resumed(runs: ClusterRuns, jobs: dict[str, str]) -> None:
    runs.await_state(jobs["cancelled"], *ENDED)
    assert runs.cluster.state(jobs["cancelled"]) == "CANCELLED"
    assert runs.cluster.field(jobs["cancelled"], "Restarts") == "0"
    assert runs.status("cancelled") == "preempted", runs.printed("cancelled")
    check_finished(runs, "cancelled", runs.samestep("submit", "--resume", "runs/cancelled", *PAIR)[0])


def test_a_user_error_is_not_retried(runs: ClusterRuns, jobs: dict[str, str]) -> None:
    job = jobs["wrong"]
    runs.await_state(job, *ENDED)
    assert runs.cluster.state(job) == "FAILED"
    assert runs.cluster.field(job, "ExitCode") == "2:0"
    assert runs.cluster.field(job, "Restarts") == "0", runs.printed("wrong") + runs.cluster.daemon_log(job)
    assert runs.printed("wrong").count("missing does not exist; give a run") == 1


def test_a_killed_rank_ends_the_job(runs: ClusterRuns) -> None:
    job = runs.submit("killed", *PAIR, step_delay=0.1, max_steps=10_000)
    runs.await_step("killed")
    os.kill(runs.rank_process("killed", 2, 1), signal.SIGKILL)
    wait_for(lambda: runs.cluster.state(job) in ENDED, SOON, "for the end of a job with a killed rank")
    assert runs.cluster.state(job) == "FAILED"
    assert not run_checks.orphans(runs.folder, "killed", timeout=1)


def test_stages_are_jobs_with_their_own_gpus(runs: ClusterRuns, jobs: dict[str, str]) -> None:
    runs.await_state(jobs["train"], *ENDED)
    assert [runs.cluster.state(jobs[stage]) for stage in ("dump", "train")] == ["COMPLETED"] * 2, runs.printed("stages")
    assert runs.cluster.field(jobs["dump"], "EndTime") <= runs.cluster.field(jobs["train"], "StartTime")
    assert [event["world"] for event in runs.events("stages", "launch")] == [1, 2]
    assert runs.status("stages") == "done"
    record = read_json(RunDir(runs.path("stages")).config)
    assert record["global_batch"] == 2 * 4  # two ranks in the train stage; the dump stage has one
