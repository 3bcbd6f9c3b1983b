"""Where the jobs of the tests are handed in: `samestep submit` as a user types it, in a folder of its own."""

import io
import json
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from faults import same, toy
from samestep.cli.main import main
from samestep.core.records import JsonLines, read_json
from samestep.core.rundir import RunDir
from system.cluster import GPUS, Cluster
from system.hosts import wait_for

TESTS = Path(__file__).parents[1]
SITE = {"gpus_per_node": GPUS, "env": {"MASTER_ADDR": "127.0.0.1", "PYTHONPATH": str(TESTS)}}
"""The names of the nodes resolve nowhere, but all nodes are this machine."""
PAIR = ("--nodes=2", "--tasks-per-node=1")
LIMIT = 90.0
"""Seconds after which a job of a few steps hangs."""


@dataclass
class Desk:
    """A folder of runs on a cluster."""

    cluster: Cluster
    folder: Path

    @contextmanager
    def open(self) -> Iterator["Desk"]:
        """While entered, commands are typed in the folder and go to the cluster; then nothing is left running."""
        (self.folder / "site.yaml").write_text(json.dumps(SITE))
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("SLURM_CONF", self.cluster.env["SLURM_CONF"])
            patch.setenv("SAMESTEP_SITE", str(self.folder / "site.yaml"))
            patch.setenv("OMP_NUM_THREADS", "1")
            patch.chdir(self.folder)
            yield self
        self.cluster("scancel", "-u", "root")

    def submit(self, label: str, *options: str, recipe: str = toy.NAME, **changes: Any) -> str:
        """Hand in a run; the number of its last job."""
        return self.type("submit", recipe, *options, *self.settings(label, **changes))[-1]

    def settings(self, label: str, **changes: Any) -> list[str]:
        """The words that make a run of the toy."""
        file = self.folder / f"{label}.yaml"
        file.write_text(json.dumps(toy.settings(self.folder / "runs", **changes)))
        return [f"--config={file}", f"name={label}"]

    def type(self, *words: str) -> list[str]:
        """A command, as a user types it in the folder; the numbers of the jobs that came of it."""
        printed = io.StringIO()
        with redirect_stdout(printed):
            assert main(words) == 0
        return [line.split()[1].rstrip(":") for line in printed.getvalue().splitlines() if line.startswith("job ")]

    def path(self, label: str) -> Path:
        """The run directory."""
        return self.folder / "runs" / label

    def status(self, label: str) -> str:
        """How the run stands, by its own account."""
        return str((read_json(RunDir(self.path(label)).status) or {}).get("status"))

    def steps(self, label: str, world: int = 2) -> int:
        """Steps that rank 0 finished, over all launches."""
        return sum(line["kind"] == "step" for line in same.lines_of(self.path(label), world, 0))

    def await_step(self, label: str, step: int = 3) -> None:
        """Until the run is well under way."""
        wait_for(lambda: self.steps(label) >= step, LIMIT, f"for step {step} of {label}:\n{self.printed(label)}")

    def await_state(self, job: str, *states: str) -> None:
        """Until SLURM says that a job stands so."""
        wait_for(lambda: self.cluster.state(job) in states, LIMIT, f"for job {job} to be {states}")

    def printed(self, label: str) -> str:
        """What the jobs of a run printed."""
        return "".join(path.read_text() for path in sorted(RunDir(self.path(label)).job.glob("*.out")))

    def events(self, label: str, kind: str) -> list[dict[str, Any]]:
        """What the run noted."""
        return [row for row in JsonLines(RunDir(self.path(label)).events) if row["kind"] == kind]

    def rank_process(self, label: str, world: int, rank: int) -> int:
        """The process that is this rank."""
        return [line["pid"] for line in same.lines_of(self.path(label), world, rank) if line["kind"] == "start"][-1]
