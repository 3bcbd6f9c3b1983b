"""Launchers of several nodes, and another user of the host: nobody else joins, leads or keeps nodes out."""

import os
from pathlib import Path

import pytest

from launching.nodes.test_nodes import Machines, machines  # noqa: F401  # a fixture
from launching.test_launcher import wait_for
from security.node_strangers import found, stranger

pytestmark = pytest.mark.timeout(900)
WORKER = "Path(f'args_{rank}').write_text(' '.join(sys.argv[1:]))"


def test_a_stranger_cannot_join(machines: Machines) -> None:  # noqa: F811
    machines.script(WORKER)
    first = machines.start("a", rank=0)
    wait_for(lambda: "waiting" in machines.printed("a"))
    with stranger("join", machines.port) as process:
        assert found(process) == ["refused", "closed"]
    assert not machines.workers()
    assert machines.ends(first, machines.start("b", rank=1)) == [0, 0]
    assert (machines.began(0, 2), machines.began(1, 2)) == (1, 1)


@pytest.mark.parametrize("rank", [None, 1])
def test_a_stranger_who_holds_the_port_first_is_not_obeyed(
    machines: Machines,  # noqa: F811
    rank: int | None,
) -> None:
    machines.script(WORKER)
    with stranger("lead", machines.port) as process:
        node = machines.start("b", rank=rank)
        assert machines.ends(node) == [2]
        assert "obeyed" not in found(process)
    expected = (
        f"samestep: what answers at 127.0.0.1:{machines.port} does not know the secret of this launch: write --rdzv"
    )
    assert machines.printed("b").startswith(expected)
    assert machines.printed("b").count("\n") == 1
    assert not machines.workers()


def test_a_first_node_whose_port_is_held_by_a_stranger_ends(machines: Machines) -> None:  # noqa: F811
    machines.script(WORKER)
    with stranger("lead", machines.port):
        assert machines.ends(machines.start("a", rank=0)) == [2]
    assert "cannot be opened here (Address already in use); choose another one" in machines.printed("a")


def test_strangers_who_say_nothing_neither_keep_nodes_out_nor_use_the_first_one_up(
    machines: Machines,  # noqa: F811
) -> None:
    machines.script(WORKER)
    first = machines.start("a", rank=0)
    wait_for(lambda: "waiting" in machines.printed("a"))
    with stranger("idle", machines.port) as process:
        assert len(list(Path(f"/proc/{first.pid}/fd").iterdir())) < 150
        assert machines.ends(first, machines.start("b", rank=1)) == [0, 0], machines.printed("b")
        assert int(found(process)[0]) >= 300
    assert "Traceback" not in machines.printed("a")


def test_a_node_with_another_secret_is_told_what_to_do(machines: Machines) -> None:  # noqa: F811
    machines.script(WORKER)
    first = machines.start("a", rank=0, secret="x" * 32)
    wait_for(lambda: "waiting" in machines.printed("a"))
    assert machines.ends(machines.start("b", rank=1)) == [2]
    assert "set SAMESTEP_SECRET to the same random text on all of them or start them with --hosts" in machines.printed(
        "b"
    )
    assert machines.ends(first, machines.start("c", rank=1, secret="x" * 32)) == [0, 0]
    assert os.environ.get("SAMESTEP_SECRET") != "x" * 32
