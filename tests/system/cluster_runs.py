"""Runs submitted to a cluster by the tests: `samestep submit` as a user types it, in a separate folder."""

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from faults import run_checks, toy
from samestep.cli.main import main
from samestep.core.json_files import JsonLines, read_json
from samestep.core.rundir import RunDir
from system import pausable
from system.cleanup import MARKED
from system.cluster import GPUS, Cluster
from system.hosts import Host, wait_for
from system.requirements import MODULES

PAIR = ("--nodes=2", "--tasks-per-node=1")
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
JOB_TIMEOUT = 300.0
"""Seconds after which a job of a few steps counts as hung, also on a busy machine."""
POLL_SECONDS = 0.2
"""Seconds between two questions to SLURM, each of which starts a process."""


@dataclass
class ClusterRuns:
    """Runs on a cluster, in one folder."""

    cluster: Cluster
    folder: Path

    @property
    def env(self) -> dict[str, str]:
        """The environment of a user of the cluster; if all nodes are this machine, their names do not resolve."""
        own = {} if isinstance(self.cluster.login, Host) else {"MASTER_ADDR": "127.0.0.1"}
        site = self.folder / "site.yaml"
        site.write_text(json.dumps({"gpus_per_node": GPUS, "env": {"PYTHONPATH": MODULES, **own}}))
        conf = self.cluster.env["SLURM_CONF"]
        return {**MARKED, "SLURM_CONF": conf, "SAMESTEP_SITE": str(site), "OMP_NUM_THREADS": "1"}

    @contextmanager
    def open(self) -> Iterator["ClusterRuns"]:
        """Until the context is left, commands run in the folder and go to the cluster; then all jobs are cancelled."""
        with pytest.MonkeyPatch.context() as patch:
            for name, value in self.env.items():
                patch.setenv(name, value)
            patch.chdir(self.folder)
            yield self
        self.cluster("scancel", "-u", "root")

    def submit(self, label: str, *options: str, recipe: str = pausable.NAME, **changes: Any) -> str:
        """Submit a run; returns the id of its last job."""
        return self.samestep("submit", recipe, *options, *self.settings(label, **changes))[-1]

    def settings(self, label: str, **changes: Any) -> list[str]:
        """The args that make a run of the toy."""
        file = self.folder / f"{label}.yaml"
        file.write_text(json.dumps(toy.settings(self.folder / "runs", **changes)))
        return [f"--config={file}", f"name={label}"]

    def pause_file(self, label: str) -> str:
        """Make the file that pauses a run in the middle."""
        file = self.folder / f"{label}.pause"
        file.touch()
        return str(file)

    def unpause(self, label: str) -> None:
        """Let a paused run go on, now or when it is started again."""
        (self.folder / f"{label}.pause").unlink()

    def samestep(self, *args: str) -> list[str]:
        """Run `samestep` as a user does in the folder; returns the ids of the jobs it submitted."""
        lines = self._output(args).splitlines()
        return [line.split()[1].rstrip(":") for line in lines if line.startswith("job ")]

    def _output(self, args: tuple[str, ...]) -> str:
        login = self.cluster.login
        if isinstance(login, Host):
            command = login.wrap([sys.executable, "-m", "samestep", *args], self.folder)
            env = {**os.environ, **self.env, "PYTHONPATH": MODULES}
            return subprocess.run(
                command, env=env, stdout=subprocess.PIPE, text=True, check=True, timeout=JOB_TIMEOUT
            ).stdout
        printed = io.StringIO()
        with redirect_stdout(printed):
            assert main(args) == 0
        return printed.getvalue()

    def path(self, label: str) -> Path:
        """The run directory."""
        return self.folder / "runs" / label

    def status(self, label: str) -> str:
        """The status of the run in its status.json."""
        known = read_json(RunDir(self.path(label)).status) or {}
        is_stage = known.get("status") == "done" and "stage" in known  # other stages may follow
        return "running" if is_stage else str(known.get("status"))

    def steps(self, label: str, world: int = 2) -> int:
        """How many steps rank 0 has finished, over all launches."""
        return sum(line["kind"] == "step" for line in run_checks.evidence_lines(self.path(label), world, 0))

    def await_step(self, label: str, step: int = pausable.PAUSE_STEP) -> None:
        """Wait until the run has done `step` steps; by default, those before the pause."""
        message = lambda: f"for step {step} of {label}:\n{self.printed(label)}"  # noqa: E731
        wait_for(lambda: self.steps(label) >= step, JOB_TIMEOUT, message)

    def await_checkpoint(self, label: str) -> None:
        """Wait until the run has a checkpoint; it is written in the background."""
        saved = self.path(label) / "checkpoints" / "fit"
        wait_for(lambda: list(saved.glob("step_*")), JOB_TIMEOUT, f"for a checkpoint of {label}")

    def await_state(self, job: str, *states: str) -> None:
        """Wait until SLURM reports one of these states of a job."""
        message = lambda: f"for job {job}, {self.cluster.state(job)}, to be {states}"  # noqa: E731
        wait_for(lambda: self.cluster.state(job) in states, JOB_TIMEOUT, message, every=POLL_SECONDS)

    def await_change(self, job: str, name: str, value: str) -> None:
        """Wait until a field of a job no longer has this value."""
        wait_for(
            lambda: self.cluster.field(job, name) not in ("", value),
            JOB_TIMEOUT,
            f"for {name} of job {job} to change from {value}",
            every=POLL_SECONDS,
        )

    def printed(self, label: str) -> str:
        """What the jobs of a run printed."""
        return "".join(path.read_text() for path in sorted(RunDir(self.path(label)).job.glob("*.out")))

    def events(self, label: str, kind: str) -> list[dict[str, Any]]:
        """The rows of one kind in events.jsonl."""
        return [row for row in JsonLines(RunDir(self.path(label)).events) if row["kind"] == kind]

    def rank_process(self, label: str, world: int, rank: int) -> int:
        """The process id of this rank."""
        return [
            line["pid"] for line in run_checks.evidence_lines(self.path(label), world, rank) if line["kind"] == "start"
        ][-1]
