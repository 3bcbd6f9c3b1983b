"""Where the jobs of the tests are handed in: `samestep submit` as a user types it, in a folder of its own."""

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from faults import same, toy
from samestep.cli.main import main
from samestep.core.records import JsonLines, read_json
from samestep.core.rundir import RunDir
from system import held
from system.cluster import GPUS, Cluster
from system.hosts import Host, wait_for
from system.keeper import MARKED

TESTS = Path(__file__).parents[1]
PAIR = ("--nodes=2", "--tasks-per-node=1")
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
LIMIT = 300.0
"""Seconds after which a job of a few steps hangs, also on a busy machine."""


@dataclass
class Desk:
    """A folder of runs on a cluster."""

    cluster: Cluster
    folder: Path
    settings_of: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By the name of the run."""

    @property
    def env(self) -> dict[str, str]:
        """What a user of the cluster has set, on nodes whose names resolve nowhere if all of them are this machine."""
        own = {} if isinstance(self.cluster.login, Host) else {"MASTER_ADDR": "127.0.0.1"}
        site = self.folder / "site.yaml"
        site.write_text(json.dumps({"gpus_per_node": GPUS, "env": {"PYTHONPATH": str(TESTS), **own}}))
        conf = self.cluster.env["SLURM_CONF"]
        return {**MARKED, "SLURM_CONF": conf, "SAMESTEP_SITE": str(site), "OMP_NUM_THREADS": "1"}

    @contextmanager
    def open(self) -> Iterator["Desk"]:
        """While entered, commands are typed in the folder and go to the cluster; then nothing is left running."""
        with pytest.MonkeyPatch.context() as patch:
            for name, value in self.env.items():
                patch.setenv(name, value)
            patch.chdir(self.folder)
            yield self
        self.cluster("scancel", "-u", "root")

    def submit(self, label: str, *options: str, recipe: str = held.NAME, **changes: Any) -> str:
        """Hand in a run; the number of its last job."""
        return self.type("submit", recipe, *options, *self.settings(label, **changes))[-1]

    def settings(self, label: str, **changes: Any) -> list[str]:
        """The words that make a run of the toy; written again, they hold from its next start on."""
        file = self.folder / f"{label}.yaml"
        self.settings_of[label] = {**self.settings_of.get(label, {}), **changes}
        file.write_text(json.dumps(toy.settings(self.folder / "runs", **self.settings_of[label])))
        return [f"--config={file}", f"name={label}"]

    def gate(self, label: str) -> str:
        """A closed gate, for a run that is to be held in the middle."""
        gate = self.folder / f"{label}.gate"
        gate.touch()
        return str(gate)

    def release(self, label: str) -> None:
        """Let a held run go on, now or when it is started again."""
        (self.folder / f"{label}.gate").unlink()

    def type(self, *words: str) -> list[str]:
        """A command, as a user types it in the folder; the numbers of the jobs that came of it."""
        lines = self._typed(words).splitlines()
        return [line.split()[1].rstrip(":") for line in lines if line.startswith("job ")]

    def _typed(self, words: tuple[str, ...]) -> str:
        login = self.cluster.login
        if isinstance(login, Host):
            command = login.inside([sys.executable, "-m", "samestep", *words], self.folder)
            env = {**os.environ, **self.env, "PYTHONPATH": str(TESTS)}
            return subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True, timeout=LIMIT).stdout
        printed = io.StringIO()
        with redirect_stdout(printed):
            assert main(words) == 0
        return printed.getvalue()

    def path(self, label: str) -> Path:
        """The run directory."""
        return self.folder / "runs" / label

    def status(self, label: str) -> str:
        """How the run stands, by its own account."""
        known = read_json(RunDir(self.path(label)).status) or {}
        is_stage = known.get("status") == "done" and "stage" in known  # of which others may follow
        return "running" if is_stage else str(known.get("status"))

    def steps(self, label: str, world: int = 2) -> int:
        """Steps that rank 0 finished, over all launches."""
        return sum(line["kind"] == "step" for line in same.lines_of(self.path(label), world, 0))

    def await_step(self, label: str, step: int = held.HELD) -> None:
        """Until the run is well under way, or held."""
        told = lambda: f"for step {step} of {label}:\n{self.printed(label)}"  # noqa: E731
        wait_for(lambda: self.steps(label) >= step, LIMIT, told)

    def await_checkpoint(self, label: str) -> None:
        """Until there is one to go on from; it is written beside the steps."""
        saved = self.path(label) / "checkpoints" / "fit"
        wait_for(lambda: list(saved.glob("step_*")), LIMIT, f"for a checkpoint of {label}")

    def await_state(self, job: str, *states: str) -> None:
        """Until SLURM says that a job stands so."""
        told = lambda: f"for job {job}, {self.cluster.state(job)}, to be {states}"  # noqa: E731
        wait_for(lambda: self.cluster.state(job) in states, LIMIT, told)

    def await_other(self, job: str, name: str, value: str) -> None:
        """Until a field of what SLURM says of a job is not this any more."""
        wait_for(lambda: self.cluster.field(job, name) not in ("", value), LIMIT, f"for another {name} of job {job}")

    def printed(self, label: str) -> str:
        """What the jobs of a run printed."""
        return "".join(path.read_text() for path in sorted(RunDir(self.path(label)).job.glob("*.out")))

    def events(self, label: str, kind: str) -> list[dict[str, Any]]:
        """What the run noted."""
        return [row for row in JsonLines(RunDir(self.path(label)).events) if row["kind"] == kind]

    def rank_process(self, label: str, world: int, rank: int) -> int:
        """The process that is this rank."""
        return [line["pid"] for line in same.lines_of(self.path(label), world, rank) if line["kind"] == "start"][-1]
