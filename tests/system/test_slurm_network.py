"""A SLURM cluster whose nodes are separate hosts, with names that resolve and links that can be cut."""

from collections.abc import Iterator

import pytest

from faults import run_checks, toy
from faults.run_checks import Reference
from system.cleanup import MARK
from system.cluster import Cluster
from system.cluster_runs import ENDED, JOB_TIMEOUT, PAIR, ClusterRuns
from system.hosts import Host, hosts, wait_for

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterRuns]:
    folders = [tmp_path_factory.mktemp(name) for name in ("far-hosts", f"far-slurm-{MARK}-", "far-runs")]
    with (
        hosts(3, folders[0], "slurm") as made,
        Cluster(folders[1], made, lost_after=10, kill_wait=5).running() as cluster,
        ClusterRuns(cluster, folders[2]).open() as runs,
    ):
        yield runs


@pytest.fixture(scope="module")
def jobs(runs: ClusterRuns) -> dict[str, str]:
    """A run that nothing interrupts, and one that pauses until its link is cut, at the same time."""
    return {
        "uninterrupted": runs.submit("uninterrupted", *PAIR),
        "cut": runs.submit("cut", *PAIR, pause_file=runs.pause_file("cut")),
    }


def test_ranks_on_two_hosts_find_each_other_by_the_list_of_nodes(runs: ClusterRuns, jobs: dict[str, str]) -> None:
    runs.await_state(jobs["uninterrupted"], *ENDED)
    assert runs.cluster.state(jobs["uninterrupted"]) == "COMPLETED", runs.printed("uninterrupted")
    assert runs.cluster.field(jobs["uninterrupted"], "NodeList") == "node[1-2]"
    assert not run_checks.unfinished(runs.path("uninterrupted"))
    assert [event["world"] for event in runs.events("uninterrupted", "launch")] == [2]


def test_a_lost_node_has_the_job_queued_again(runs: ClusterRuns, jobs: dict[str, str]) -> None:
    """SLURM queues the job again; the run resumes from its last checkpoint when there are two nodes again."""
    job, lost = jobs["cut"], runs.cluster.machines[1]
    assert isinstance(lost, Host)
    runs.await_step("cut")
    runs.await_checkpoint("cut")
    runs.await_state(jobs["uninterrupted"], *ENDED)
    lost.cut_link()
    runs.unpause("cut")
    wait_for(
        lambda: "down" in runs.cluster("sinfo", "-h", "-n", "node2", "-o", "%T"), JOB_TIMEOUT, "for the loss of a node"
    )
    runs.await_change(job, "Restarts", "0")
    lost.restore_link()
    runs.await_state(job, *ENDED)
    assert runs.cluster.state(job) == "COMPLETED", runs.printed("cut")
    assert [0 < event["step"] < toy.STEPS for event in runs.events("cut", "resume")] == [True]
    assert not run_checks.unfinished(runs.path("cut"))
    assert not run_checks.first_difference(Reference(runs.path("uninterrupted"), 2, 0.0, 0.0), runs.path("cut"))
