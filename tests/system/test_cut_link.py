"""The link between two hosts is cut: each side reports what it knows, and everything ends, also torchrun's agents and
mpiexec.

All launchers run at the same time, each on two hosts of its own, since they spend most of the time waiting.
"""

import re
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from faults import hang_faults
from samestep.core import launch_env, processes
from samestep.core.json_files import read_json, write_json
from samestep.core.rundir import RunDir
from samestep.launching.schedulers import pbs
from samestep.launching.schedulers.job import Allocation, Job, JobPart, Site
from samestep.launching.schedulers.script import ScriptContext
from system.hosts import Host, Process, hosts, wait_for
from system.requirements import MODULES, require
from system.sshd import Ssh

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


MPIEXEC = {
    "openmpi": "mpiexec.openmpi --allow-run-as-root",
    "mpich": "mpiexec.mpich",
}
"""The mpiexec of a job of PBS, which starts the ranks of the second host by ssh."""


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
        config = self._config()
        first_args, last_args = LAUNCHERS[self.launcher]
        args = [*first_args, "-m", "samestep", "train", hang_faults.NAME, f"--config={config}", *last_args]
        env = {"PYTHONPATH": MODULES, "OMP_NUM_THREADS": "1"}
        for rank, host in enumerate(self.hosts):
            command = [sys.executable, *(arg.format(rank=rank) for arg in args)]
            self.started.append(host.start(*command, env=env, output=self._output(host), folder=self.folder))

    def prepare(self) -> None:
        """Before anything starts."""

    def _config(self) -> Path:
        config = self.folder / "config.yaml"
        write_json(config, hang_faults.settings(self.folder, LIMIT, name="run", max_steps=1_000_000))
        return config

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


class CutJob(CutRun):
    """A run of a job of PBS: its script runs on the first host, which alone has the file with the nodes."""

    def prepare(self) -> None:
        """Start sshd on the second host."""
        require("mpiexec", [shlex.split(MPIEXEC[self.launcher])[0]])
        for name in ("spool", "empty", "bin"):
            (self.folder / name).mkdir()
        (self.folder / "spool" / "nodes").write_text("node1\nnode2\n")
        qstat = self.folder / "bin" / "qstat"
        qstat.write_text("#!/bin/sh\necho '    Resource_List.walltime = 02:00:00'\n")
        qstat.chmod(0o755)
        second = replace(self.hosts[1], own_folders={str(self.folder / "spool"): self.folder / "empty"})
        self.hosts = [self.hosts[0], second]
        self.ssh = Ssh.prepare(self.folder / "ssh")
        self.ssh.serve(second)

    def start(self) -> None:
        """Run the script as PBS does."""
        config, context = self._config(), ScriptContext(self.rundir.path, self.folder, sys.executable)
        args = [hang_faults.NAME, f"--config={config}"]
        site = Site(mpiexec=MPIEXEC[self.launcher], env={"PYTHONPATH": MODULES})
        script = self.folder / "run" / "job" / "train.sh"
        script.parent.mkdir(parents=True)
        script.write_text(pbs.script(JobPart("train", args, Allocation(2, 0, 1)), Job(site=site), context))
        env = {
            "PATH": f"{self.folder}/bin:{self.ssh.path()}",
            "PBS_JOBID": "17.server",
            "PBS_NODEFILE": str(self.folder / "spool" / "nodes"),
            launch_env.SECRET: "s" * 32,
            "OMPI_MCA_orte_tmpdir_base": str(self.folder),
        }
        self.started = [self.hosts[0].start("bash", str(script), env=env, output=self._output(self.hosts[0]))]

    def await_end(self) -> None:
        """Wait until the script has ended, and nothing is left on the hosts but what cannot know of the cut."""
        self.codes = [self.started[0].wait(END_TIMEOUT)]
        wait_for(lambda: not self._left(), 60, lambda: f"for the end of {self._left()} under {self.launcher}")

    def _left(self) -> list[str]:
        commands = [" ".join(processes.command(pid)) for host in self.hosts for pid in host.processes()]
        return [command for command in commands if command and not re.match(r"(/\S*/)?(sshd|ssh)\b", command)]

    def printed(self, rank: int) -> str:
        """What was printed by the job."""
        output = self.rundir.job / "17.server.out"
        return (output.read_text(errors="replace") if output.exists() else "") + super().printed(0)


@pytest.fixture(scope="module")
def cut_runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, CutRun]]:
    with ExitStack() as stack:
        runs = {}
        for launcher in (*LAUNCHERS, *MPIEXEC):
            folder, kind = tmp_path_factory.mktemp(f"cut-{launcher}"), CutRun if launcher in LAUNCHERS else CutJob
            runs[launcher] = kind(launcher, stack.enter_context(hosts(2, folder, launcher)), folder)
        for act in ("prepare", "start", "cut", "await_end"):
            for run in runs.values():
                getattr(run, act)()
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


@pytest.mark.parametrize("mpi", MPIEXEC)
def test_under_mpiexec(cut_runs: dict[str, CutRun], mpi: str) -> None:
    """It would wait for its ssh, and the job would hold its nodes: the rank that is left ends it."""
    run = cut_runs[mpi]
    assert run.codes != [0]
    assert "samestep: rank 1 on node2 " in run.printed(0)
    assert f"samestep: job 17.server ended with exit code {run.codes[0]}" in run.printed(0)
    assert "\x1b" not in run.printed(0), "no progress bars"
