"""Launching on several nodes: here all on one machine, each a launcher of its own, with small workers without torch."""

import multiprocessing
import os
import re
import signal
import socket
import sys
import textwrap
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import pytest

from launching.test_launcher import gone, wait_for
from samestep.core.errors import UserError
from samestep.launching import attempt
from samestep.launching.launcher import Launcher
from samestep.launching.nodes import leader, link
from samestep.launching.nodes.options import NodeOptions, parse_nodes

pytestmark = pytest.mark.timeout(900)
_CONTEXT = multiprocessing.get_context("forkserver")


def launcher(folder: str, log: str, args: list[str], nproc: int, nodes: NodeOptions, options: dict[str, Any]) -> None:
    """What one node runs."""
    os.chdir(folder)
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    os.environ["TMPDIR"] = folder
    for name, value in options.items():
        if name == "timeout":
            link.Link.__init__.__kwdefaults__["timeout"] = value
            leader._NODE_TIMEOUT = 1.2 * value
        elif name == "peers":
            attempt.PEER_SECONDS = leader.PEER_SECONDS = value
        elif name == "more_nodes_wait":
            leader.MORE_NODES_WAIT = value
        elif name == "secret":
            os.environ["SAMESTEP_SECRET"] = value
    more = {name: value for name, value in options.items() if name in ("max_restarts", "grace")}
    try:
        sys.exit(Launcher(args, nproc, nodes=nodes, **more).run())
    except UserError as error:
        print(f"samestep: {error}", flush=True)
        sys.exit(2)


@dataclass
class Machines:
    """Nodes that connect to one port."""

    folder: Path
    port: int
    worker: str = ""
    started: list[ForkServerProcess] = field(default_factory=list)

    def script(self, body: str) -> None:
        """Makes a worker out of a few lines; it knows its rank, the world's size and its attempt."""
        head = """
            import os, signal, sys, time
            from pathlib import Path
            from samestep.core.exit_report import ExitReport
            from samestep.core.parent import terminate_with_parent
            from samestep.core.json_files import write_atomically
            terminate_with_parent(int(os.environ["SAMESTEP_PARENT"]), 1.0)
            rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
            attempt = len(list(Path().glob(f"began_{rank}_*")))
            write_atomically(Path(f"began_{rank}_{attempt}_of_{size}"), str(os.getpid()))
        """
        path = self.folder / "worker.py"
        path.write_text(textwrap.dedent(head) + textwrap.dedent(body))
        self.worker = str(path)

    def start(
        self,
        name: str,
        nproc: int = 1,
        rank: int | None = None,
        *,
        nodes: tuple[int, int] = (2, 2),
        wait: float = 100,
        args: tuple[str, ...] = (),
        **options: float | str,
    ) -> ForkServerProcess:
        """Begin a node's launcher."""
        node_options = NodeOptions(*nodes, "127.0.0.1", self.port, rank, wait)
        arguments = (str(self.folder), str(self.output(name)), [self.worker, *args], nproc, node_options, options)
        process = _CONTEXT.Process(target=launcher, args=arguments, daemon=False)
        process.start()
        self.started.append(process)
        return process

    def output(self, name: str) -> Path:
        return self.folder / f"{name}.txt"

    def printed(self, name: str) -> str:
        return self.output(name).read_text() if self.output(name).exists() else ""

    def ends(self, *processes: ForkServerProcess) -> list[int | None]:
        """The exit codes."""
        end = time.monotonic() + 120
        for process in processes:
            process.join(max(0.0, end - time.monotonic()))
        return [process.exitcode for process in processes]

    def began(self, rank: int, size: int) -> int:
        """How often a rank of a world of this size began."""
        return len(list(self.folder.glob(f"began_{rank}_*_of_{size}")))

    def workers(self) -> list[int]:
        return [int(path.read_text()) for path in self.folder.glob("began_*")]


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    with socket.create_server(("", 0)) as free:
        port = free.getsockname()[1]
    machines = Machines(tmp_path, port)
    yield machines
    for process in machines.started:
        process.kill()
        process.join()
    wait_for(lambda: all(gone(worker) for worker in machines.workers()))


HANDLES_SIGNALS = """
    def stop(number, frame):
        Path(f"asked_{rank}").touch()
        if "stubborn" not in sys.argv:
            sys.exit(75)
    signal.signal(signal.SIGTERM, stop)
    Path(f"ready_{rank}_{attempt}").touch()
    while True:
        time.sleep(0.02)
"""


def test_ranks_are_assigned_over_nodes_of_different_size(machines: Machines) -> None:
    machines.script("""
        names = ["LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "SAMESTEP_LAUNCH_ID"]
        Path(f"env_{rank}").write_text(" ".join(os.environ[name] for name in names))
        print("I am", rank, flush=True)
    """)
    second = machines.start("b", 2, rank=1)
    first = machines.start("a", 1, rank=0)
    assert machines.ends(first, second) == [0, 0], machines.printed("b")
    found = [(machines.folder / f"env_{rank}").read_text().split() for rank in range(3)]
    assert [env[:4] for env in found] == [["0", "1", "0", "2"], ["0", "2", "1", "2"], ["1", "2", "1", "2"]]
    assert len({env[4] for env in found}) == 1, "one launch"
    assert machines.printed("a") == "I am 0\n"
    assert machines.printed("b") == "samestep: ranks 1 and 2 of 3 here; rank 0 shows the progress\n"


def test_without_node_ranks_the_first_node_leads_and_has_rank_0(machines: Machines) -> None:
    machines.script("print('I am', rank, flush=True)")
    nodes = [machines.start(name) for name in "ab"]
    assert machines.ends(*nodes) == [0, 0]
    assert sorted([machines.printed("a"), machines.printed("b")])[0] == "I am 0\n"


def test_a_failed_rank_is_named_on_every_node_and_all_restart_together(machines: Machines) -> None:
    machines.script("""
        if rank == 2:
            time.sleep(0.1)
            trace, now = "Traceback\\n  row 7", time.time()
            report = ExitReport("ValueError: bad row", 1, rank, "there", traceback=trace, time=now)
            assert report.write(os.environ)
            sys.exit(1)
        time.sleep(60)
    """)
    settings = {"max_restarts": 1, "peers": 1.0}
    nodes = [machines.start("a", 2, rank=0, **settings), machines.start("b", 1, rank=1, **settings)]
    assert machines.ends(*nodes) == [1, 1]
    assert [machines.began(rank, 3) for rank in range(3)] == [2, 2, 2]
    for name in "ab":
        printed = machines.printed(name)
        assert printed.count("samestep: rank 2 on there failed: ValueError: bad row\n") == 2
        assert printed.count("restarting from the last checkpoint (restart 1 of 1)") == 1
        assert ("  row 7" in printed) == (name == "b"), "the traceback is shown where it happened"


@pytest.mark.parametrize("code", [2, 75])
def test_users_mistakes_and_preemption_end_all_nodes_alike(machines: Machines, code: int) -> None:
    machines.script(f"sys.exit({code})")
    nodes = [machines.start("a", rank=0, max_restarts=3), machines.start("b", rank=1, max_restarts=3)]
    assert machines.ends(*nodes) == [code, code]
    assert machines.began(0, 2) == 1


@pytest.mark.parametrize("asked", ["a", "b"])
def test_a_signal_to_one_node_stops_all(machines: Machines, asked: str) -> None:
    machines.script(HANDLES_SIGNALS)
    nodes = {name: machines.start(name, rank=rank, max_restarts=3) for rank, name in enumerate("ab")}
    wait_for(lambda: all((machines.folder / f"ready_{rank}_0").exists() for rank in range(2)))
    nodes[asked].terminate()
    assert machines.ends(*nodes.values()) == [75, 75]
    assert all((machines.folder / f"asked_{rank}").exists() for rank in range(2))


def test_a_signal_while_nodes_wait_for_each_other_ends_them(machines: Machines) -> None:
    machines.script("")
    nodes = [machines.start("a", rank=0, nodes=(3, 3)), machines.start("b", rank=1, nodes=(3, 3))]
    wait_for(lambda: all("waiting for other nodes" in machines.printed(name) for name in "ab"))
    nodes[1].terminate()
    assert machines.ends(*nodes) == [75, 75]
    assert not machines.workers()


def test_ranks_on_other_nodes_that_do_not_stop_are_ended(machines: Machines) -> None:
    machines.script(HANDLES_SIGNALS)
    nodes = [machines.start(name, rank=rank, args=("stubborn",), grace=1.0) for rank, name in enumerate("ab")]
    wait_for(lambda: all((machines.folder / f"ready_{rank}_0").exists() for rank in range(2)))
    nodes[0].terminate()
    assert machines.ends(*nodes) == [75, 75]
    assert "rank 0, 1 did not stop within 1 s" in machines.printed("b")


def test_a_killed_rank_ends_all(machines: Machines) -> None:
    machines.script("time.sleep(60)")  # peers that notice nothing
    nodes = [machines.start(name, rank=rank) for rank, name in enumerate("ab")]
    wait_for(lambda: machines.began(0, 2) and machines.began(1, 2))
    os.kill(int((machines.folder / "began_1_0_of_2").read_text()), signal.SIGKILL)
    assert machines.ends(*nodes) == [1, 1]
    for name in "ab":
        assert "rank 1 on " in machines.printed(name) and "was killed by SIGKILL" in machines.printed(name)


def test_nodes_leave_and_join_and_the_run_goes_on(machines: Machines) -> None:
    machines.script(HANDLES_SIGNALS)
    nodes = {name: machines.start(name, nodes=(1, 3), more_nodes_wait=0.5) for name in "ab"}
    wait_for(lambda: machines.began(0, 2))
    nodes["c"] = machines.start("c", nodes=(1, 3))
    wait_for(lambda: machines.began(2, 3))
    assert any("joined; going on from the last checkpoint" in machines.printed(name) for name in "ab")
    nodes["c"].kill()
    wait_for(lambda: machines.began(1, 2) == 2)
    wait_for(lambda: any("closed the connection; going on with 2 nodes" in machines.printed(name) for name in "ab"))
    nodes["a"].terminate()
    assert machines.ends(nodes["a"], nodes["b"]) == [75, 75]


def test_a_node_out_of_reach_is_left_behind_and_ends_its_own_ranks(machines: Machines) -> None:
    machines.script("signal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(60)")
    first = machines.start("a", rank=0, nodes=(1, 2), timeout=2.0)
    second = machines.start("b", rank=1, nodes=(1, 2), timeout=2.0, grace=1.0)
    wait_for(lambda: machines.began(1, 2))
    os.kill(second.pid or 0, signal.SIGSTOP)  # it sends no heartbeat and reads none
    wait_for(lambda: machines.began(0, 1), 15)
    assert "has not answered for 2.4 s; going on with 1 node" in machines.printed("a")
    first.kill()
    os.kill(second.pid or 0, signal.SIGCONT)
    assert machines.ends(second) == [1]
    assert "the first node, 127.0.0.1:" in machines.printed("b")


def test_a_lost_node_of_a_fixed_number_is_waited_for_if_restarts_are_left(machines: Machines) -> None:
    machines.script("time.sleep(60 if attempt == 0 else 0)")
    first = machines.start("a", rank=0, max_restarts=1, peers=1.0)
    second = machines.start("b", rank=1, max_restarts=1)
    wait_for(lambda: machines.began(0, 2) and machines.began(1, 2))
    second.kill()
    wait_for(lambda: "waiting for another node to take its place (restart 1 of 1)" in machines.printed("a"), 15)
    assert machines.ends(first, machines.start("c", rank=1)) == [0, 0]


def test_a_lost_node_ends_the_others(machines: Machines) -> None:
    machines.script("time.sleep(60)")
    nodes = [machines.start(name, rank=rank, peers=1.0) for rank, name in enumerate("ab")]
    wait_for(lambda: machines.began(0, 2) and machines.began(1, 2))
    nodes[1].kill()
    assert machines.ends(nodes[0]) == [1]
    assert re.search("(closed|broke) the connection.*; the run can be resumed with --resume", machines.printed("a"))


def test_the_first_node_is_missed_by_the_others(machines: Machines) -> None:
    machines.script(HANDLES_SIGNALS)
    nodes = [machines.start(name, rank=rank) for rank, name in enumerate("ab")]
    wait_for(lambda: all((machines.folder / f"ready_{rank}_0").exists() for rank in range(2)))
    nodes[0].kill()
    assert machines.ends(nodes[1]) == [75], "its ranks stopped in good order"
    assert "the first node, 127.0.0.1:" in machines.printed("b")


def test_a_node_that_does_not_come(machines: Machines) -> None:
    machines.script("")
    assert machines.ends(machines.start("a", rank=0, wait=1.0)) == [2]
    expected = f"samestep: only 1 of 2 nodes ({socket.gethostname()}) came to 127.0.0.1:{machines.port} within 1 s; "
    assert expected + "start the same command on every node" in machines.printed("a")


def test_a_first_node_that_does_not_come(machines: Machines) -> None:
    machines.script("")
    assert machines.ends(machines.start("b", rank=1, wait=1.0)) == [2]
    assert f"the first node was not found at 127.0.0.1:{machines.port} within 1 s" in machines.printed("b")


@pytest.mark.parametrize(
    ("second", "expected"),
    [
        ({"rank": 0}, "cannot be opened here (Address already in use); choose another one with --rdzv 127.0.0.1:PORT"),
        ({"rank": 1, "args": ("other",)}, "was given another command; start the same one on every node"),
    ],
)
def test_nodes_that_do_not_fit_are_refused(machines: Machines, second: dict, expected: str) -> None:
    machines.script("")
    machines.start("a", rank=0)
    wait_for(lambda: "waiting" in machines.printed("a"))
    assert machines.ends(machines.start("b", **second)) == [2]
    assert expected in machines.printed("b")


def test_a_node_rank_is_given_once(machines: Machines) -> None:
    machines.script("")
    machines.start("a", rank=0, nodes=(3, 3))
    machines.start("b", rank=1, nodes=(3, 3))
    wait_for(lambda: "waiting" in machines.printed("b"))
    assert machines.ends(machines.start("c", rank=1, nodes=(3, 3))) == [2]
    assert "has --node-rank 1 already" in machines.printed("c")


def test_other_connections_to_the_port_do_no_harm(machines: Machines) -> None:
    machines.script("")
    first = machines.start("a", rank=0)
    wait_for(lambda: "waiting" in machines.printed("a"))
    for line in [b"GET / HTTP/1.1\r\n\r\n", b'{"kind": "hello", "language": 1, "host": "x", "nproc": 1}\n' * 2]:
        with socket.create_connection(("127.0.0.1", machines.port)) as other:
            other.sendall(line)
            other.settimeout(5)
            other.recv(100)
    assert machines.ends(first, machines.start("b", rank=1)) == [0, 0]


def test_another_program_on_the_port_is_recognised(machines: Machines) -> None:
    machines.script("")
    with socket.create_server(("127.0.0.1", machines.port)) as server:
        node = machines.start("b", rank=1)
        connection, _ = server.accept()
        connection.sendall(b"220 mail.example.org ESMTP\n")
        assert machines.ends(node) == [2]
        connection.close()
    assert f"what answers at 127.0.0.1:{machines.port} is not a samestep launcher of this version" in machines.printed(
        "b"
    )


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"nodes": "2"}, "--nodes 2 needs --rdzv HOST:PORT on every node"),
        ({"rdzv": "a:1"}, "--rdzv is for several nodes; add --nodes N"),
        ({"node-rank": "0"}, "--node-rank is for several nodes; add --nodes N"),
        ({"nodes": "3:2", "rdzv": "a:1"}, "--nodes must be a number of nodes, or LEAST:MOST such as 1:4, not '3:2'"),
        ({"nodes": "0", "rdzv": "a:1"}, "--nodes must be a number of nodes"),
        ({"nodes": "2", "rdzv": "a:none"}, "--rdzv must be HOST:PORT such as node1:29400, not 'a:none'"),
        ({"nodes": "2", "rdzv": ":7"}, "--rdzv must be HOST:PORT"),
        ({"nodes": "2", "rdzv": "a:1", "node-rank": "2"}, "--node-rank must be a whole number from 0 to 1, not '2'"),
        ({"nodes": "2", "rdzv": "a:1", "join-timeout": "x"}, "--join-timeout must be a number of seconds, not 'x'"),
    ],
)
def test_senseless_nodes_are_refused(options: dict[str, str], expected: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_nodes(options)
    assert expected in str(caught.value)


def test_node_options_are_parsed() -> None:
    assert parse_nodes({}) is None
    assert parse_nodes({"nodes": "1"}) is None
    assert parse_nodes({"nodes": "2", "rdzv": "a"}) == NodeOptions(2, 2, "a", 29400)
    options = {"nodes": "1:4", "rdzv": "[fe80::1]:7", "node-rank": "3", "join-timeout": "2.5"}
    assert parse_nodes(options) == NodeOptions(1, 4, "fe80::1", 7, 3, 2.5)
    assert NodeOptions(2, 2, "fe80::1", 7).address == "[fe80::1]:7"


@pytest.mark.parametrize("name", ["-oX=y", "", "a b", "a\n", "a;b", "u@-b", "-u@b", "a$(b)", "@b", "a\x00", "`b`"])
def test_names_that_ssh_could_take_for_something_else_are_refused(name: str) -> None:
    with pytest.raises(UserError, match="--hosts must be host names with commas in between"):
        parse_nodes({"hosts": f"here,{name}"})


def test_hosts_are_parsed() -> None:
    found = parse_nodes({"hosts": "me@node1,fe80::1,gpu-2.example.org,you@x", "nproc": "4", "join-timeout": "9"})
    hosts = ("me@node1", "fe80::1", "gpu-2.example.org", "you@x")
    assert found == NodeOptions(4, 4, "node1", 0, 0, 9.0, hosts, "4")
    with pytest.raises(UserError, match="--hosts names a twice"):
        parse_nodes({"hosts": "a,b,a"})


@pytest.mark.parametrize("option", ["nodes", "rdzv", "node-rank"])
def test_hosts_need_no_other_options(option: str) -> None:
    with pytest.raises(UserError, match=f"--hosts starts all nodes by itself; leave out --{option}"):
        parse_nodes({"hosts": "a,b", option: "1"})


def test_the_first_node_is_the_one_that_is_named() -> None:
    with pytest.raises(UserError, match=r"--node-rank 0 is the first node, but 192\.0\.2\.1 of --rdzv is not this"):
        NodeOptions(2, 2, "192.0.2.1", 7, rank=0).open_port()
    assert NodeOptions(2, 2, "192.0.2.1", 7).open_port() is None


def test_a_name_that_does_not_resolve() -> None:
    with pytest.raises(UserError, match=r"the name 'no\.such\.host\.invalid' does not resolve on "):
        NodeOptions(2, 2, "no.such.host.invalid", 7).check_host()
