"""The link between two hosts is cut: each side reports what it knows, and everything ends, torchrun's agents too.

Both launchers run at the same time, each on two hosts of its own, since they spend most of the time waiting.
"""

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from faults import hang_faults
from samestep.core.records import read_json, write_json
from samestep.core.rundir import RunDir
from system.hosts import Host, Process, hosts, wait_for
from system.requirements import MODULES

pytestmark = pytest.mark.timeout(600)
LIMIT, START_TIMEOUT = 10.0, 300.0
END_TIMEOUT = 150.0
"""Seconds from the cut to the end of everything: the limit, the verdict, and forty for an agent to exit by itself."""
TORCHRUN = ["-m", "torch.distributed.run", "--nproc_per_node=1", "--nnodes=2", "--node_rank={rank}"]
LAUNCHERS: dict[str, tuple[list[str], list[str]]] = {
    "torchrun": ([*TORCHRUN, "--master_addr=node1", "--master_port=29701"], []),
    "ours": ([], ["--nproc=1", "--nodes=2", "--node-rank={rank}", "--rdzv=node1:29702"]),
}
"""The args before and after those of `samestep train`."""


@dataclass
class CutRun:
    """A run under one launcher, on two hosts."""

    launcher: str
    hosts: Sequence[Host]
    folder: Path
    started: list[Process] = field(default_factory=list)
    codes: list[int] = field(default_factory=list)

    @property
    def rundir(self) -> RunDir:
        return RunDir(self.folder / "run")

    def start(self) -> None:
        """Start the launcher on both hosts."""
        config = self.folder / "config.yaml"
        write_json(config, hang_faults.settings(self.folder, LIMIT, name="run", max_steps=1_000_000))
        first_args, last_args = LAUNCHERS[self.launcher]
        args = [*first_args, "-m", "samestep", "train", hang_faults.NAME, f"--config={config}", *last_args]
        env = {"PYTHONPATH": MODULES, "OMP_NUM_THREADS": "1"}
        for rank, host in enumerate(self.hosts):
            command = [sys.executable, *(arg.format(rank=rank) for arg in args)]
            self.started.append(host.start(*command, env=env, output=self._output(host), folder=self.folder))

    def cut(self) -> None:
        """Cut the link of the second host, after some steps."""
        wait_for(self._has_steps, START_TIMEOUT, lambda: f"for steps of {self.launcher}:\n{self.printed(0)}")
        self.hosts[1].cut_link()

    def _has_steps(self) -> bool:
        heartbeat = read_json(self.rundir.heartbeat(1)) or {}
        assert all(process.poll() is None for process in self.started), self.printed(0) + self.printed(1)
        return bool(heartbeat.get("step", 0) > hang_faults.HANG_STEP)

    def await_end(self) -> None:
        """Wait until both launchers have exited, and nothing is left on the hosts."""
        end = time.monotonic() + END_TIMEOUT
        self.codes = [process.wait(max(0.1, end - time.monotonic())) for process in self.started]
        wait_for(lambda: not any(host.processes() for host in self.hosts), 60, f"for all of {self.launcher} to end")

    def printed(self, rank: int) -> str:
        """What was printed on a host."""
        return self._output(self.hosts[rank]).read_text(errors="replace")

    def _output(self, host: Host) -> Path:
        return self.folder / f"{host.name}.txt"


@pytest.fixture(scope="module")
def cut_runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, CutRun]]:
    with ExitStack() as stack:
        runs = {}
        for launcher in LAUNCHERS:
            folder = tmp_path_factory.mktemp(f"cut-{launcher}")
            runs[launcher] = CutRun(launcher, stack.enter_context(hosts(2, folder, launcher)), folder)
        for act in (CutRun.start, CutRun.cut, CutRun.await_end):
            for run in runs.values():
                act(run)
        yield runs


def test_under_torchrun(cut_runs: dict[str, CutRun]) -> None:
    run = cut_runs["torchrun"]
    assert 0 not in run.codes
    assert "samestep: rank 1 on node2 sends no heartbeat" in run.printed(0)
    assert read_json(run.rundir.stall_report)["rank"] == 1
    text = read_json(run.rundir.exit_report(1))["text"]
    assert "the rendezvous store has not answered" in text, "all that it can know"


def test_under_our_own_launcher(cut_runs: dict[str, CutRun]) -> None:
    run = cut_runs["ours"]
    assert 0 not in run.codes
    assert "node2" in run.printed(0)
    assert "the first node, node1" in run.printed(1)
