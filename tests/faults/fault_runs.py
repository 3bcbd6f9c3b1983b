"""Starts, kills and resumes the runs of the fault suite: real processes, each run in its own folder."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from faults import run_checks, toy
from faults.fault_injection import SaveFault, train_with_fault
from faults.run_checks import Reference
from samestep.checkpoint.manifest import checkpoint_folders
from samestep.core.json_files import JsonLines
from samestep.core.rundir import RunDir
from samestep.launching.local import Workers, start
from samestep.train.session.entry import train_with

PRELOAD = (
    "samestep.train.session.session",
    "samestep.train.session.entry",
    "torch._dynamo",
    "faults.fault_injection",
    "faults.toy",
)
LAUNCH_TIMEOUT = 60.0
"""Seconds after which a launch of a few steps counts as hung."""
PEER_EXIT_TIMEOUT = 3.0
"""Seconds that the peers of a killed rank get to exit by themselves."""
STEP_DELAY = 0.01
"""Seconds added to every step, so that a kill at a random moment can hit it."""
STEP_RECORD = b'"kind": "step"'


@dataclass
class FaultRuns:
    """Runs of the toy recipe in one folder, and the uninterrupted runs they are compared with."""

    folder: Path
    printed: Path | None = None
    """The folder for the output of the ranks, if it is not `folder`."""
    launches: int = 0
    ended_by_force: list[str] = field(default_factory=list)
    """Runs in which a peer of a killed rank did not exit by itself and had to be killed."""
    references: dict[int, Reference] = field(default_factory=dict)

    def begin(
        self, label: str, world: int, target: Callable[..., object] = train_with, *extra: Any, **changes: Any
    ) -> Workers:
        """Start a launch; if the run exists already, it resumes. `extra` args of `target` come before the recipe."""
        self.launches += 1
        config = toy.settings(self.folder, name=label, **changes)
        logs = (self.printed or self.folder / "output") / label / str(self.launches)
        return start(target, world, *extra, toy.NAME, config, logs=logs, preload=PRELOAD)

    def run(
        self, label: str, world: int, target: Callable[..., object] = train_with, *extra: Any, **changes: Any
    ) -> tuple[list[int | None], str]:
        """Start a launch and wait for its end: the exit codes, and what the ranks printed."""
        workers = self.begin(label, world, target, *extra, **changes)
        try:
            codes = workers.wait(LAUNCH_TIMEOUT)
        finally:
            workers.kill()
        return codes, "\n".join(workers.output(rank) for rank in range(world))

    def path(self, label: str) -> Path:
        """The run directory."""
        return self.folder / label

    def reference(self, world: int) -> Reference:
        """The uninterrupted run; the first call makes it."""
        if not self.references:  # the very first process waits until torch is imported; that must not count as its time
            start(time.monotonic, 1, logs=self.folder / "output" / "warm", preload=PRELOAD).wait(LAUNCH_TIMEOUT)
        if world not in self.references:
            label, began = f"reference-{world}", time.monotonic()
            workers = self.begin(label, world)
            self.wait_for(label, world, workers, 0, 0.0)
            ready = time.monotonic() - began
            codes = workers.wait(LAUNCH_TIMEOUT)
            assert codes == [0] * world, workers.output(0)
            reference = Reference(self.path(label), world, time.monotonic() - began, ready)
            assert not run_checks.unfinished(reference.path), run_checks.unfinished(reference.path)
            self.references[world] = reference
        return self.references[world]

    def steps_done(self, label: str, world: int) -> int:
        """How many steps rank 0 has finished, over all launches; -1 before its first record."""
        path = RunDir(self.path(label)).evidence(world, 0)
        return path.read_bytes().count(STEP_RECORD) if path.exists() else -1

    def wait_for(
        self, label: str, world: int, workers: Workers | subprocess.Popen[bytes], steps: int, delay: float
    ) -> None:
        """Wait until rank 0 has finished `steps` steps over all launches, plus `delay` seconds; or the launch ends."""
        while _is_alive(workers):
            if self.steps_done(label, world) >= steps:
                time.sleep(delay)
                return
            time.sleep(0.002)

    def wait_for_end(self, workers: Workers, ranks: Sequence[int]) -> None:
        """Wait until these ranks have exited."""
        end = time.monotonic() + LAUNCH_TIMEOUT
        while any(workers.processes[rank].is_alive() for rank in ranks) and time.monotonic() < end:
            time.sleep(0.01)

    def process_of(self, label: str, world: int, rank: int) -> int | None:
        """The process id of this rank under a launcher; None before it has started."""
        started = [
            row["pid"] for row in JsonLines(RunDir(self.path(label)).evidence(world, rank)) if row["kind"] == "start"
        ]
        return started[-1] if started else None

    def remaining(self, label: str) -> int:
        """How many steps a resume has left to do."""
        saved = checkpoint_folders(RunDir(self.path(label)).checkpoints("fit"))
        return toy.STEPS - max(saved, default=0)

    def kill(self, label: str, world: int, victims: Sequence[int], rng: random.Random) -> bool:
        """Start a launch and kill ranks of it at a random moment; true if that was before its end."""
        before = max(0, self.steps_done(label, world))
        workers = self.begin(label, world, step_delay=STEP_DELAY, num_workers=int(rng.random() < 0.1))
        if rng.random() < 0.2:
            time.sleep(rng.random() * self.reference(world).ready)
        else:
            steps = rng.randint(0, self.remaining(label))
            self.wait_for(label, world, workers, before + steps, rng.random() * 2 * STEP_DELAY)
        workers.kill(*victims)
        self.end(workers)
        return any(workers.processes[rank].exitcode == -signal.SIGKILL for rank in victims)

    def end(self, workers: Workers) -> None:
        """Give the peers of a dead rank some time to exit by themselves, then kill them, as a launcher does."""
        end = time.monotonic() + PEER_EXIT_TIMEOUT
        while _is_alive(workers) and time.monotonic() < end:
            time.sleep(0.01)
        if _is_alive(workers):
            self.ended_by_force.append(workers.logs.parent.name)
        workers.kill()

    def start_launcher(self, label: str, world: int, restarts: int = 0) -> "subprocess.Popen[bytes]":
        """Run `samestep train` as a user does; it starts its own workers."""
        file = self.folder / "toy.yaml"
        file.write_text(json.dumps(toy.settings(self.folder, step_delay=STEP_DELAY)))
        args = ["train", "--nproc", str(world), f"--max-restarts={restarts}", toy.NAME, f"--config={file}"]
        output = self.folder / "output" / label
        output.mkdir(parents=True, exist_ok=True)
        env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), "OMP_NUM_THREADS": "1"}
        with open(output / "launcher.txt", "ab") as printed:
            return subprocess.Popen(
                [sys.executable, "-m", "samestep", *args, f"name={label}"], stdout=printed, stderr=printed, env=env
            )

    def interrupted(self, world: int) -> str:
        """A run killed after two thirds, with three checkpoints, to corrupt one of them; the first call makes it."""
        label = f"interrupted-{world}"
        if not self.path(label).exists():
            self.run(label, world, train_with_fault, SaveFault(8, "pruned", (0,)))
            assert self.remaining(label) == toy.STEPS - 8
        return label

    def copy(self, label: str, new: str) -> str:
        """Copy a run directory."""
        shutil.copytree(self.path(label), self.path(new))
        return new

    def resume(self, label: str, world: int, **changes: Any) -> str:
        """Start the run until it is done, at most three times; empty on success, else what the last launch printed."""
        for _ in range(3):
            codes, output = self.run(label, world, **changes)
            if codes == [0] * world:
                return ""
        return f"exit codes {codes}: {output[-2000:]}"

    def events(self, label: str, kind: str) -> list[dict[str, Any]]:
        """The rows of one kind in events.jsonl."""
        return [row for row in JsonLines(RunDir(self.path(label)).events) if row["kind"] == kind]


def _is_alive(workers: Workers | subprocess.Popen[bytes]) -> bool:
    if isinstance(workers, Workers):
        return any(process.is_alive() for process in workers.processes)
    return workers.poll() is None


@contextmanager
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of four megabytes; skips the test where none can be mounted."""
    disk = tmp_path / "disk"
    disk.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(disk)], capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {made.stderr.strip()}")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)
