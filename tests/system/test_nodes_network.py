"""Real training over several hosts, which are network namespaces: torchrun's flags and our own launcher.

The hosts share this machine's disk, except where a test gives each its own.
"""

import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from faults import toy
from samestep.core.records import JsonLines, read_json
from samestep.core.rundir import RunDir
from system.hosts import Host, Process, hosts, wait_for
from system.keeper import environment

pytestmark = pytest.mark.timeout(900)
STEPS = 60
LONG = 300
"""Steps of a run that nobody waits for."""
SLOW = {"nap": 0.25}
"""Half a minute for 60 steps: so long it is in the middle, however busy this machine is."""
LIMIT = 240
"""Seconds after which a run of a few steps hangs."""
TORCHRUN = ("-m", "torch.distributed.run", "--nproc_per_node=1")


@dataclass
class Lab:
    """Hosts, a folder for the runs, and what an uninterrupted run of one process gives."""

    hosts: Sequence[Host]
    folder: Path
    out: Path
    port: int = 29600
    expected: list[dict[str, Any]] = field(default_factory=list)

    def start(self, host: Host, label: str, *command: str) -> Process:
        """Begin a Python command on a host."""
        tests = Path(__file__).parents[1]
        env = {"PYTHONPATH": str(tests), "OMP_NUM_THREADS": "1"}
        return host.start(sys.executable, *command, env=env, output=self.output(host, label), folder=self.folder)

    def train(self, label: str, settings: dict[str, Any] | None = None) -> tuple[str, ...]:
        """The words that train the toy."""
        log = {"every": 1, "quiet": False, "tensorboard": False}
        changes = {"max_steps": STEPS, "schedule": "constant", "log": log, **(settings or {})}
        file = self.folder / f"{label}.yaml"
        file.write_text(json.dumps(toy.settings(self.out, name=label, **changes)))
        return ("train", toy.NAME, f"--config={file}")

    def node(self, host: Host, words: Sequence[str], *options: str, nodes: str = "2", label: str = "") -> Process:
        """Our own launcher on a host."""
        where = ("--nproc=1", f"--nodes={nodes}", f"--rdzv=node1:{self.port}")
        label = label or Path(words[-1]).stem
        return self.start(host, label, "-m", "samestep", *words, *where, *options)

    def output(self, host: Host, label: str) -> Path:
        return self.folder / "output" / f"{label}_{host.name}.txt"

    def said(self, host: Host, label: str) -> str:
        return self.output(host, label).read_text(errors="replace")

    def stepped(self, label: str, step: int, folder: Path | None = None) -> None:
        """Wait until the run has done so many steps."""
        metrics = RunDir((folder or self.out) / label).metrics
        wait_for(lambda: any(row["step"] >= step for row in JsonLines(metrics)), LIMIT, f"for step {step} of {label}")

    def launched(self, label: str, worlds: Sequence[int]) -> None:
        """Wait until the run was launched at these world sizes, one after the other, and steps at the last one."""
        events = RunDir(self.out / label).events
        found = lambda: [row["world"] for row in JsonLines(events) if row["kind"] == "launch"]  # noqa: E731
        wait_for(lambda: found() == list(worlds), LIMIT, lambda: f"for worlds {worlds}; {found()}")
        path = RunDir(self.out / label).evidence(worlds[-1], 0)
        before = _updates(path)
        wait_for(lambda: _updates(path) > before + 5, LIMIT, f"for steps at {worlds}")

    def rank(self, host: Host) -> int:
        """A rank that runs on a host."""
        for process in host.processes():
            if b"\0RANK=" in environment(process):
                return process
        raise AssertionError(f"no rank on {host.name}")

    def same(self, label: str, folder: Path | None = None) -> int:
        """How many steps a run did, all of them with the samples and the loss of the undisturbed run."""
        run = RunDir((folder or self.out) / label)
        rows = [row for row in JsonLines(run.metrics) if "loss" in row]
        assert [row["step"] for row in rows] == list(range(1, len(rows) + 1)), "each step once"
        expected = [row for row in self.expected if "loss" in row][: len(rows)]
        for row, wanted in zip(rows, expected, strict=True):
            assert row["loss"] == pytest.approx(wanted["loss"], rel=1e-9), f"step {row['step']}"
        return len(rows)

    def samples(self, label: str) -> dict[int, set[int]]:
        """The world sizes at which each step was done, with exactly the samples of the undisturbed run."""
        wanted = _samples(self.out / "reference", 1)
        done: dict[int, set[int]] = {}
        for size in range(1, 4):
            for step, ids in _samples(self.out / label, size).items():
                assert ids == wanted[step], f"step {step} at world size {size}"
                done.setdefault(step, set()).add(size)
        return done


def _updates(path: Path) -> int:
    return path.read_bytes().count(b'"kind": "update"') if path.exists() else 0


def _samples(run: Path, size: int) -> dict[int, list[list[int]]]:
    """The samples of each step, by rank, of those steps that every rank did."""
    ranks = []
    for rank in range(size):
        rows = JsonLines(RunDir(run).evidence(size, rank))
        ranks.append({row["step"]: row["ids"] for row in rows if row["kind"] == "update"})
    return {step: [i for rank in ranks for i in rank[step]] for step in set.intersection(*map(set, ranks))}


def ends(*processes: Process, within: float) -> list[int]:
    """The exit codes; a test fails that waits longer."""
    end = time.monotonic() + within
    return [process.wait(max(0.1, end - time.monotonic())) for process in processes]


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    folder = tmp_path_factory.mktemp("network")
    with hosts(3, folder, "nodes") as made:
        lab = Lab(made, folder, folder / "runs")
        settings = {"max_steps": LONG, "checkpoint": {"every_steps": LONG, "every_epochs": 0}}
        alone = lab.start(made[0], "reference", "-m", "samestep", *lab.train("reference", settings))
        assert ends(alone, within=LIMIT) == [0], lab.said(made[0], "reference")
        lab.expected = list(JsonLines(RunDir(folder / "runs" / "reference").metrics))
        yield lab


@pytest.fixture
def lab(network: Lab) -> Iterator[Lab]:
    """Ends with nothing running on any host, and no port used twice."""
    network.port += 1
    yield network
    for host in network.hosts:
        host.mend()
        host.kill()


def idle(lab: Lab) -> bool:
    return not any(host.processes() for host in lab.hosts)


def test_torchrun_by_both_kinds_of_flags_with_a_killed_rank_in_between(lab: Lab) -> None:
    words, pair = lab.train("torchrun", SLOW), lab.hosts[:2]
    static = ("--nnodes=2", "--master_addr=node1", f"--master_port={lab.port}")
    nodes = [
        lab.start(host, "torchrun", *TORCHRUN, *static, f"--node_rank={rank}", "-m", "samestep", *words)
        for rank, host in enumerate(pair)
    ]
    lab.stepped("torchrun", 5)
    os.kill(lab.rank(pair[1]), signal.SIGKILL)
    assert 0 not in ends(*nodes, within=10)
    wait_for(lambda: idle(lab), 5, "for all to end")
    words = lab.train("torchrun")
    dynamic = ("--nnodes=2", "--rdzv_backend=c10d", f"--rdzv_endpoint=node1:{lab.port + 100}")
    nodes = [lab.start(host, "torchrun", *TORCHRUN, *dynamic, "-m", "samestep", *words) for host in pair]
    assert ends(*nodes, within=LIMIT) == [0, 0], lab.said(pair[0], "torchrun")
    assert lab.same("torchrun") == STEPS
    assert lab.samples("torchrun").keys() == set(range(STEPS))


def test_our_launcher_names_a_killed_rank_waits_for_a_lost_host_and_stops_on_all(lab: Lab) -> None:
    words, pair = lab.train("ours", SLOW), lab.hosts[:2]
    nodes = [lab.node(host, words) for host in pair]
    lab.stepped("ours", 5)
    os.kill(lab.rank(pair[1]), signal.SIGKILL)
    assert ends(*nodes, within=10) == [1, 1]
    wait_for(lambda: idle(lab), 5, "for all to end")
    for host in pair:
        assert "samestep: rank 1 on node2 was killed by SIGKILL" in lab.said(host, "ours")
    nodes = [lab.node(host, words, "--max-restarts=1", f"--node-rank={rank}") for rank, host in enumerate(pair)]
    lab.stepped("ours", 10)
    pair[1].kill()
    waiting = "waiting for another node to take its place (restart 1 of 1)"
    wait_for(lambda: waiting in lab.said(pair[0], "ours"), LIMIT, "for the loss to be noticed")
    nodes[1] = lab.node(pair[1], words, "--node-rank=1")
    lab.launched("ours", [2, 2, 2])
    nodes[1].send_signal(signal.SIGTERM)
    assert ends(*nodes, within=LIMIT) == [75, 75], lab.said(pair[0], "ours")
    wait_for(lambda: idle(lab), 5, "for all to end")
    assert read_json(RunDir(lab.out / "ours").status)["status"] == "preempted"
    assert lab.same("ours") >= 10
    assert "Traceback" not in lab.said(pair[0], "ours") + lab.said(pair[1], "ours")


def test_three_hosts_become_two_and_three_again_and_the_order_of_samples_is_exact(lab: Lab) -> None:
    words, lost = lab.train("elastic", {"max_steps": LONG, "nap": 0.5}), lab.hosts[2]
    nodes = {host.name: lab.node(host, words, nodes="1:3") for host in lab.hosts}
    lab.launched("elastic", [3])
    lost.cut()
    lab.launched("elastic", [3, 2])
    assert ends(nodes["node3"], within=LIMIT) == [1], "a host that is cut off ends by itself"
    wait_for(lambda: not lost.processes(), 5, "for all to end")
    assert "the first node, node1:" in lab.said(lost, "elastic")
    lost.mend()
    nodes["node3"] = lab.node(lost, words, nodes="1:3")
    lab.launched("elastic", [3, 2, 3])
    nodes["node3"].send_signal(signal.SIGINT)
    assert ends(*nodes.values(), within=LIMIT) == [75, 75, 75]
    wait_for(lambda: idle(lab), 5, "for all to end")
    assert "node3 joined; going on from the last checkpoint" in lab.said(lab.hosts[0], "elastic")
    done = lab.samples("elastic")
    assert done.keys() == set(range(lab.same("elastic")))
    assert {size for sizes in done.values() for size in sizes} == {2, 3}


@pytest.fixture
def apart(lab: Lab) -> Lab:
    """Two hosts whose folder of runs is on a disk of their own, and whose own names lead nowhere, as on Debian."""
    place = lab.folder / "apart"
    place.mkdir(exist_ok=True)
    own = []
    for host in lab.hosts[:2]:
        disk = lab.folder / f"disk_{host.name}"
        disk.mkdir(exist_ok=True)
        names = lab.folder / f"hosts_{host.name}"
        lines = [line for line in host.names.read_text().splitlines() if host.name not in line]
        names.write_text("\n".join([*lines, f"127.0.1.1 {host.name}"]) + "\n")
        own.append(replace(host, own={str(place): disk}, names=names))
    return replace(lab, hosts=own, out=place / "runs")


def test_without_a_shared_disk_rank_0_saves_and_loads_for_all(apart: Lab) -> None:
    one, two = apart.hosts
    disks = [apart.folder / f"disk_{host.name}" / "runs" for host in apart.hosts]
    words = apart.train("apart", SLOW)
    nodes = [apart.node(host, words) for host in (one, two)]
    apart.stepped("apart", 5, folder=disks[0])
    nodes[0].send_signal(signal.SIGTERM)
    assert ends(*nodes, within=LIMIT) == [75, 75], apart.said(one, "apart")
    assert sorted(path.name for path in (disks[1] / "apart").iterdir()) == ["evidence", "logs", "watch"]

    shutil.copytree(disks[0] / "apart", disks[1] / "moved")
    words, apart.port = apart.train("moved"), apart.port + 1
    nodes = [apart.node(host, words) for host in (one, two)]
    assert ends(*nodes, within=LIMIT) == [2, 2]
    for host in (one, two):
        assert "rank 0 runs on node1, but node2 has a newer checkpoint (step " in apart.said(host, "moved")
    assert not list((disks[0] / "moved").rglob("step_*")), "it did not begin anew"

    words, apart.port = ("train", "--resume", str(apart.out / "apart"), "--nap=0"), apart.port + 1
    nodes = [apart.node(host, words, label="resumed") for host in (one, two)]
    assert ends(*nodes, within=LIMIT) == [0, 0], apart.said(one, "resumed")
    assert apart.same("apart", disks[0]) == STEPS


def test_without_a_shared_disk_a_sharded_run_is_refused(apart: Lab) -> None:
    words = apart.train("sharded", {"distributed": {"strategy": "fsdp", "device": "cpu"}})
    nodes = [apart.node(host, words) for host in apart.hosts]
    assert ends(*nodes, within=LIMIT) == [2, 2]
    for host in apart.hosts:
        said = apart.said(host, "sharded")
        assert "is not seen by all ranks, but every rank of a sharded run writes to it; set out=... to" in said
