"""A SLURM whose nodes are hosts of their own, with names that resolve and links that can be cut."""

from collections.abc import Iterator

import pytest

from faults import same, toy
from faults.same import Reference
from system.cluster import Cluster
from system.desk import ENDED, LIMIT, PAIR, Desk
from system.hosts import Host, hosts, wait_for
from system.keeper import MARK

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    folders = [tmp_path_factory.mktemp(name) for name in ("far-hosts", f"far-slurm-{MARK}-", "far-desk")]
    with (
        hosts(3, folders[0], "slurm") as made,
        Cluster(folders[1], made, lost_after=10, kill_wait=5).running() as cluster,
        Desk(cluster, folders[2]).open() as desk,
    ):
        yield desk


@pytest.fixture(scope="module")
def whole(desk: Desk) -> str:
    """The job of a run that nothing happens to."""
    return desk.submit("whole", *PAIR)


def test_ranks_on_two_hosts_find_each_other_by_the_list_of_nodes(desk: Desk, whole: str) -> None:
    desk.await_state(whole, *ENDED)
    assert desk.cluster.state(whole) == "COMPLETED", desk.printed("whole")
    assert desk.cluster.field(whole, "NodeList") == "node[1-2]"
    assert not same.lost(desk.path("whole"))
    assert [event["world"] for event in desk.events("whole", "launch")] == [2]


def test_a_lost_node_has_the_job_queued_again(desk: Desk, whole: str) -> None:
    """SLURM misses the node and does it; the run goes on from its last checkpoint when there are two nodes again."""
    lost = desk.cluster.machines[1]
    assert isinstance(lost, Host)
    job = desk.submit("cut", *PAIR, gate=desk.gate("cut"))
    desk.await_step("cut")
    desk.await_checkpoint("cut")
    lost.cut()
    desk.release("cut")
    wait_for(lambda: "down" in desk.cluster("sinfo", "-h", "-n", "node2", "-o", "%T"), LIMIT, "for the loss of a node")
    desk.await_other(job, "Restarts", "0")
    lost.mend()
    desk.await_state(job, *ENDED)
    assert desk.cluster.state(job) == "COMPLETED", desk.printed("cut")
    assert [0 < event["step"] < toy.STEPS for event in desk.events("cut", "resume")] == [True]
    assert not same.lost(desk.path("cut"))
    desk.await_state(whole, *ENDED)
    assert not same.change(Reference(desk.path("whole"), 2, 0.0, 0.0), desk.path("cut"))
