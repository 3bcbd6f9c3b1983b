"""Real training on several hosts, which are network namespaces, under torchrun and under our own launcher.

The hosts share this machine's disk, except where a scenario gives each its own. Two scenarios run at a time, each on
hosts of its own, since they spend half of their time waiting.
"""

import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from faults import toy
from samestep.core.json_files import JsonLines, read_json
from samestep.core.rundir import RunDir
from samestep.train.session.entry import train_with
from system.cleanup import environment
from system.hosts import SOON, Host, Process, hosts, require_hosts, wait_for
from system.requirements import MODULES
from toys import run_on_ranks

pytestmark = pytest.mark.timeout(900)
STEPS = 60
LONG = 300
"""Steps of a run that no test waits for."""
SLOW = {"step_delay": 0.25}
"""Half a minute for 60 steps: long enough to interrupt it in the middle, however busy this machine is."""
RUN_TIMEOUT = 240
"""Seconds after which a run of a few steps counts as hung."""
TORCHRUN = ("-m", "torch.distributed.run", "--nproc_per_node=1")


@dataclass
class NetworkRuns:
    """Runs on hosts, a folder for them, and the metrics of an uninterrupted run of one process."""

    hosts: Sequence[Host]
    folder: Path
    out: Path
    port: int = 29600
    expected: list[dict[str, Any]] = field(default_factory=list)

    def start(self, host: Host, label: str, *command: str) -> Process:
        """Start a Python command on a host."""
        env = {"PYTHONPATH": MODULES, "OMP_NUM_THREADS": "1"}
        return host.start(sys.executable, *command, env=env, output=self.output(host, label), folder=self.folder)

    def settings(self, label: str, **changes: Any) -> dict[str, Any]:
        """The configuration of a run of the toy."""
        log = {"every": 1, "quiet": False, "tensorboard": False}
        settings = {"max_steps": STEPS, "schedule": "constant", "log": log, **changes}
        return toy.settings(self.out, name=label, **settings)

    def train(self, label: str, changes: dict[str, Any] | None = None) -> tuple[str, ...]:
        """The args that train the toy."""
        file = self.folder / f"{label}.yaml"
        file.write_text(json.dumps(self.settings(label, **(changes or {}))))
        return ("train", toy.NAME, f"--config={file}")

    def node(self, host: Host, args: Sequence[str], *options: str, nodes: str = "2", label: str = "") -> Process:
        """Start our own launcher on a host."""
        cluster = ("--nproc=1", f"--nodes={nodes}", f"--rdzv=node1:{self.port}")
        label = label or Path(args[-1]).stem
        return self.start(host, label, "-m", "samestep", *args, *cluster, *options)

    def output(self, host: Host, label: str) -> Path:
        return self.folder / "output" / f"{label}_{host.name}.txt"

    def printed(self, host: Host, label: str) -> str:
        return self.output(host, label).read_text(errors="replace")

    def await_step(self, label: str, step: int, folder: Path | None = None) -> None:
        """Wait until the run has done `step` steps."""
        metrics = RunDir((folder or self.out) / label).metrics
        wait_for(
            lambda: any(row["step"] >= step for row in JsonLines(metrics)), RUN_TIMEOUT, f"for step {step} of {label}"
        )

    def await_launches(self, label: str, worlds: Sequence[int]) -> None:
        """Wait until the run was launched at these world sizes, one after the other, and has done steps at the last."""
        events = RunDir(self.out / label).events
        found = lambda: [row["world"] for row in JsonLines(events) if row["kind"] == "launch"]  # noqa: E731
        wait_for(lambda: found() == list(worlds), RUN_TIMEOUT, lambda: f"for worlds {worlds}; {found()}")
        path = RunDir(self.out / label).evidence(worlds[-1], 0)
        before = _updates(path)
        wait_for(lambda: _updates(path) > before + 5, RUN_TIMEOUT, f"for steps at {worlds}")

    def rank_process(self, host: Host) -> int:
        """The process id of a rank that runs on a host."""
        for process in host.processes():
            if b"\0RANK=" in environment(process):
                return process
        raise AssertionError(f"no rank on {host.name}")

    def steps_as_expected(self, label: str, folder: Path | None = None) -> int:
        """How many steps a run did; fails if the loss of one of them differs from the uninterrupted run."""
        run = RunDir((folder or self.out) / label)
        rows = [row for row in JsonLines(run.metrics) if "loss" in row]
        assert [row["step"] for row in rows] == list(range(1, len(rows) + 1)), "each step once"
        expected = [row for row in self.expected if "loss" in row][: len(rows)]
        for row, wanted in zip(rows, expected, strict=True):
            assert row["loss"] == pytest.approx(wanted["loss"], rel=1e-9), f"step {row['step']}"
        return len(rows)

    def samples(self, label: str) -> dict[int, set[int]]:
        """The world sizes at which each step was done; fails if its samples are not those of the uninterrupted run."""
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
    """The samples of each step, in order of rank, for the steps that every rank did."""
    ranks = []
    for rank in range(size):
        rows = JsonLines(RunDir(run).evidence(size, rank))
        ranks.append({row["step"]: row["ids"] for row in rows if row["kind"] == "update"})
    return {step: [i for rank in ranks for i in rank[step]] for step in set.intersection(*map(set, ranks))}


def exit_codes(*processes: Process, within: float) -> list[int]:
    """The exit codes; fails if a process does not exit within so many seconds."""
    end = time.monotonic() + within
    return [process.wait(max(0.1, end - time.monotonic())) for process in processes]


def make_reference(folder: Path) -> NetworkRuns:
    """Runs in a folder, without hosts as yet; makes the uninterrupted run of one process."""
    require_hosts()
    runs = NetworkRuns([], folder, folder / "runs")
    settings = runs.settings("reference", max_steps=LONG, checkpoint={"every_steps": LONG, "every_epochs": 0})
    run_on_ranks(train_with, 1, toy.NAME, settings, logs=folder / "reference", timeout=RUN_TIMEOUT)
    return replace(runs, expected=list(JsonLines(RunDir(folder / "runs" / "reference").metrics)))


def idle(runs: NetworkRuns) -> bool:
    return not any(host.processes() for host in runs.hosts)


def torchrun_by_both_kinds_of_flags_with_a_killed_rank_in_between(runs: NetworkRuns) -> None:
    args, pair = runs.train("torchrun", SLOW), runs.hosts[:2]
    static = ("--nnodes=2", "--master_addr=node1", f"--master_port={runs.port}")
    nodes = [
        runs.start(host, "torchrun", *TORCHRUN, *static, f"--node_rank={rank}", "-m", "samestep", *args)
        for rank, host in enumerate(pair)
    ]
    runs.await_step("torchrun", 5)
    os.kill(runs.rank_process(pair[1]), signal.SIGKILL)
    assert 0 not in exit_codes(*nodes, within=SOON)
    wait_for(lambda: idle(runs), SOON, "for all to end")
    args = runs.train("torchrun")
    dynamic = ("--nnodes=2", "--rdzv_backend=c10d", f"--rdzv_endpoint=node1:{runs.port + 100}")
    nodes = [runs.start(host, "torchrun", *TORCHRUN, *dynamic, "-m", "samestep", *args) for host in pair]
    assert exit_codes(*nodes, within=RUN_TIMEOUT) == [0, 0], runs.printed(pair[0], "torchrun")
    assert runs.steps_as_expected("torchrun") == STEPS
    assert runs.samples("torchrun").keys() == set(range(STEPS))


def our_launcher_names_a_killed_rank_waits_for_a_lost_host_and_stops_on_all(runs: NetworkRuns) -> None:
    args, pair = runs.train("ours", SLOW), runs.hosts[:2]
    nodes = [runs.node(host, args) for host in pair]
    runs.await_step("ours", 5)
    os.kill(runs.rank_process(pair[1]), signal.SIGKILL)
    assert exit_codes(*nodes, within=SOON) == [1, 1]
    wait_for(lambda: idle(runs), SOON, "for all to end")
    for host in pair:
        assert "samestep: rank 1 on node2 was killed by SIGKILL" in runs.printed(host, "ours")
    nodes = [runs.node(host, args, "--max-restarts=1", f"--node-rank={rank}") for rank, host in enumerate(pair)]
    runs.await_step("ours", 10)
    pair[1].kill()
    waiting = "waiting for another node to take its place (restart 1 of 1)"
    wait_for(lambda: waiting in runs.printed(pair[0], "ours"), RUN_TIMEOUT, "for the loss to be noticed")
    nodes[1] = runs.node(pair[1], args, "--node-rank=1")
    runs.await_launches("ours", [2, 2, 2])
    nodes[1].send_signal(signal.SIGTERM)
    assert exit_codes(*nodes, within=RUN_TIMEOUT) == [75, 75], runs.printed(pair[0], "ours")
    wait_for(lambda: idle(runs), SOON, "for all to end")
    assert read_json(RunDir(runs.out / "ours").status)["status"] == "preempted"
    assert runs.steps_as_expected("ours") >= 10
    assert "Traceback" not in runs.printed(pair[0], "ours") + runs.printed(pair[1], "ours")


def three_hosts_become_two_and_three_again_and_the_order_of_samples_is_exact(runs: NetworkRuns) -> None:
    args, lost = runs.train("elastic", {"max_steps": LONG, "step_delay": 0.5}), runs.hosts[2]
    nodes = {host.name: runs.node(host, args, nodes="1:3") for host in runs.hosts}
    runs.await_launches("elastic", [3])
    lost.cut_link()
    runs.await_launches("elastic", [3, 2])
    assert exit_codes(nodes["node3"], within=RUN_TIMEOUT) == [1], "a host that is cut off exits by itself"
    wait_for(lambda: not lost.processes(), SOON, "for all to end")
    assert "the first node, node1:" in runs.printed(lost, "elastic")
    lost.restore_link()
    nodes["node3"] = runs.node(lost, args, nodes="1:3")
    runs.await_launches("elastic", [3, 2, 3])
    nodes["node3"].send_signal(signal.SIGINT)
    assert exit_codes(*nodes.values(), within=RUN_TIMEOUT) == [75, 75, 75]
    wait_for(lambda: idle(runs), SOON, "for all to end")
    assert "node3 joined; going on from the last checkpoint" in runs.printed(runs.hosts[0], "elastic")
    done = runs.samples("elastic")
    assert done.keys() == set(range(runs.steps_as_expected("elastic")))
    assert {size for sizes in done.values() for size in sizes} == {2, 3}


def on_separate_disks(runs: NetworkRuns) -> NetworkRuns:
    """Two hosts, each with the runs on its own disk; its own name resolves to a loopback address, as on Debian."""
    place = runs.folder / "apart"
    place.mkdir(exist_ok=True)
    own = []
    for host in runs.hosts[:2]:
        disk = runs.folder / f"disk_{host.name}"
        disk.mkdir(exist_ok=True)
        names = runs.folder / f"hosts_{host.name}"
        lines = [line for line in host.names.read_text().splitlines() if host.name not in line]
        names.write_text("\n".join([*lines, f"127.0.1.1 {host.name}"]) + "\n")
        own.append(replace(host, own_folders={str(place): disk}, names=names))
    return replace(runs, hosts=own, out=place / "runs")


def without_a_shared_disk_rank_0_saves_and_loads_for_all(runs: NetworkRuns) -> None:
    separate_disks = on_separate_disks(runs)
    one, two = separate_disks.hosts
    disks = [separate_disks.folder / f"disk_{host.name}" / "runs" for host in separate_disks.hosts]
    args = separate_disks.train("apart", SLOW)
    nodes = [separate_disks.node(host, args) for host in (one, two)]
    separate_disks.await_step("apart", 5, folder=disks[0])
    nodes[0].send_signal(signal.SIGTERM)
    assert exit_codes(*nodes, within=RUN_TIMEOUT) == [75, 75], separate_disks.printed(one, "apart")
    assert sorted(path.name for path in (disks[1] / "apart").iterdir()) == ["evidence", "logs", "watch"]

    shutil.copytree(disks[0] / "apart", disks[1] / "moved")
    args, separate_disks.port = separate_disks.train("moved"), separate_disks.port + 1
    nodes = [separate_disks.node(host, args) for host in (one, two)]
    assert exit_codes(*nodes, within=RUN_TIMEOUT) == [2, 2]
    for host in (one, two):
        assert "rank 0 runs on node1, but node2 has a newer checkpoint (step " in separate_disks.printed(host, "moved")
    assert not list((disks[0] / "moved").rglob("step_*")), "it did not start from scratch"

    separate_disks.port += 1
    args = ("train", "--resume", str(separate_disks.out / "apart"), "--step_delay=0")
    nodes = [separate_disks.node(host, args, label="unnamed") for host in (one, two)]
    assert exit_codes(*nodes, within=RUN_TIMEOUT) == [2, 2], "node2 cannot read which recipe it is"
    assert "if it is on another machine, name its recipe here" in separate_disks.printed(one, "unnamed")

    args, separate_disks.port = (*args, f"--recipe={toy.NAME}"), separate_disks.port + 1
    nodes = [separate_disks.node(host, args, label="resumed") for host in (one, two)]
    assert exit_codes(*nodes, within=RUN_TIMEOUT) == [0, 0], separate_disks.printed(one, "resumed")
    assert separate_disks.steps_as_expected("apart", disks[0]) == STEPS


def without_a_shared_disk_a_sharded_run_is_refused(runs: NetworkRuns) -> None:
    separate_disks = on_separate_disks(runs)
    args = separate_disks.train("sharded", {"distributed": {"strategy": "fsdp", "device": "cpu"}})
    nodes = [separate_disks.node(host, args) for host in separate_disks.hosts]
    assert exit_codes(*nodes, within=RUN_TIMEOUT) == [2, 2]
    for host in separate_disks.hosts:
        output = separate_disks.printed(host, "sharded")
        assert "is not seen by all ranks, but every rank of a sharded run writes to it; set out=... to" in output


Scenario = Callable[[NetworkRuns], None]
SCENARIOS: list[Scenario] = [
    three_hosts_become_two_and_three_again_and_the_order_of_samples_is_exact,
    our_launcher_names_a_killed_rank_waits_for_a_lost_host_and_stops_on_all,
    torchrun_by_both_kinds_of_flags_with_a_killed_rank_in_between,
    without_a_shared_disk_rank_0_saves_and_loads_for_all,
    without_a_shared_disk_a_sharded_run_is_refused,
]
"""The longest first."""


def run_on_hosts(scenario: Scenario, runs: NetworkRuns, number: int) -> None:
    """Run a scenario on three new hosts, which are removed at its end with all that still runs there."""
    folder = runs.folder / f"scenario_{number}"
    folder.mkdir()
    with hosts(3, folder, f"nodes{number}") as made:
        scenario(replace(runs, hosts=made))


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[Scenario, Future[None]]]:
    runs = make_reference(tmp_path_factory.mktemp("network"))
    pool = ThreadPoolExecutor(2)
    yield {scenario: pool.submit(run_on_hosts, scenario, runs, number) for number, scenario in enumerate(SCENARIOS)}
    pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_on_several_hosts(started: dict[Scenario, Future[None]], scenario: Scenario) -> None:
    started[scenario].result()
