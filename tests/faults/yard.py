"""Where the runs of the fault suite happen: each in a folder of its own, in real processes, some of them killed."""

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

from faults import same, toy
from faults.inside import Blow, train_under
from faults.same import Reference
from samestep.checkpoint.manifest import checkpoint_folders
from samestep.core.records import JsonLines
from samestep.core.rundir import RunDir
from samestep.launch.local import Workers, start
from samestep.train.session.entry import train_with

PRELOAD = (
    "samestep.train.session.session",
    "samestep.train.session.entry",
    "torch._dynamo",
    "faults.inside",
    "faults.toy",
)
LIMIT = 60.0
"""Seconds after which a launch of a few steps hangs."""
PATIENCE = 3.0
"""Seconds that the peers of a killed rank have to end by themselves."""
NAP = 0.01
MARK = b'"kind": "step"'


@dataclass
class Yard:
    """A folder of runs."""

    folder: Path
    printed: Path | None = None
    """Where ranks print to, if not into the folder."""
    launches: int = 0
    ended_by_force: list[str] = field(default_factory=list)
    """Runs of which a rank was killed and a peer had to be ended."""
    references: dict[int, Reference] = field(default_factory=dict)

    def begin(
        self, label: str, world: int, target: Callable[..., object] = train_with, *more: Any, **changes: Any
    ) -> Workers:
        """Start a launch; of a run that exists already, a resume. `more` comes before the recipe."""
        self.launches += 1
        config = toy.settings(self.folder, name=label, **changes)
        logs = (self.printed or self.folder / "output") / label / str(self.launches)
        return start(target, world, *more, toy.NAME, config, logs=logs, preload=PRELOAD)

    def run(
        self, label: str, world: int, target: Callable[..., object] = train_with, *more: Any, **changes: Any
    ) -> tuple[list[int | None], str]:
        """A launch to its end: the exit codes, and what the ranks printed."""
        workers = self.begin(label, world, target, *more, **changes)
        try:
            codes = workers.wait(LIMIT)
        finally:
            workers.kill()
        return codes, "\n".join(workers.output(rank) for rank in range(world))

    def path(self, label: str) -> Path:
        """The run directory."""
        return self.folder / label

    def reference(self, world: int) -> Reference:
        """The uninterrupted run, made once."""
        if not self.references:  # the first process of all waits for torch to be imported
            start(time.monotonic, 1, logs=self.folder / "output" / "warm", preload=PRELOAD).wait(LIMIT)
        if world not in self.references:
            label, began = f"reference-{world}", time.monotonic()
            workers = self.begin(label, world)
            self.wait_for(label, world, workers, 0, 0.0)
            ready = time.monotonic() - began
            codes = workers.wait(LIMIT)
            assert codes == [0] * world, workers.output(0)
            reference = Reference(self.path(label), world, time.monotonic() - began, ready)
            assert not same.lost(reference.path), same.lost(reference.path)
            self.references[world] = reference
        return self.references[world]

    def marks(self, label: str, world: int) -> int:
        """Steps that rank 0 finished, over all launches."""
        path = RunDir(self.path(label)).evidence(world, 0)
        return path.read_bytes().count(MARK) if path.exists() else -1

    def wait_for(
        self, label: str, world: int, workers: Workers | subprocess.Popen[bytes], marks: int, delay: float
    ) -> None:
        """Until rank 0 has finished so many steps in all, and a moment longer; or the launch is over."""
        while _lives(workers):
            if self.marks(label, world) >= marks:
                time.sleep(delay)
                return
            time.sleep(0.002)

    def wait_for_end(self, workers: Workers, ranks: Sequence[int]) -> None:
        """Until these ranks have ended."""
        end = time.monotonic() + LIMIT
        while any(workers.processes[rank].is_alive() for rank in ranks) and time.monotonic() < end:
            time.sleep(0.01)

    def process_of(self, label: str, world: int, rank: int) -> int | None:
        """The process that is this rank under a launcher; None before it has begun."""
        begun = [
            row["pid"] for row in JsonLines(RunDir(self.path(label)).evidence(world, rank)) if row["kind"] == "start"
        ]
        return begun[-1] if begun else None

    def remaining(self, label: str) -> int:
        """Steps that a resume has before it."""
        saved = checkpoint_folders(RunDir(self.path(label)).checkpoints("fit"))
        return toy.STEPS - max(saved, default=0)

    def kill(self, label: str, world: int, victims: Sequence[int], chance: random.Random) -> bool:
        """A launch that is killed at a random moment: whether that was before its end."""
        before = max(0, self.marks(label, world))
        workers = self.begin(label, world, nap=NAP, num_workers=int(chance.random() < 0.1))
        if chance.random() < 0.2:
            time.sleep(chance.random() * self.reference(world).ready)
        else:
            steps = chance.randint(0, self.remaining(label))
            self.wait_for(label, world, workers, before + steps, chance.random() * 2 * NAP)
        workers.kill(*victims)
        self.end(workers)
        return any(workers.processes[rank].exitcode == -signal.SIGKILL for rank in victims)

    def end(self, workers: Workers) -> None:
        """Give the peers of a dead rank a while to end by themselves, and then end them, as a launcher does."""
        end = time.monotonic() + PATIENCE
        while _lives(workers) and time.monotonic() < end:
            time.sleep(0.01)
        if _lives(workers):
            self.ended_by_force.append(workers.logs.parent.name)
        workers.kill()

    def launcher(self, label: str, world: int, restarts: int = 0) -> "subprocess.Popen[bytes]":
        """`samestep train` as a user starts it, with workers of its own."""
        file = self.folder / "toy.yaml"
        file.write_text(json.dumps(toy.settings(self.folder, nap=NAP)))
        words = ["train", "--nproc", str(world), f"--max-restarts={restarts}", toy.NAME, f"--config={file}"]
        output = self.folder / "output" / label
        output.mkdir(parents=True, exist_ok=True)
        env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), "OMP_NUM_THREADS": "1"}
        with open(output / "launcher.txt", "ab") as printed:
            return subprocess.Popen(
                [sys.executable, "-m", "samestep", *words, f"name={label}"], stdout=printed, stderr=printed, env=env
            )

    def interrupted(self, world: int) -> str:
        """A run whose last third is missing, with three checkpoints: what corruptions work on. Made once."""
        label = f"interrupted-{world}"
        if not self.path(label).exists():
            self.run(label, world, train_under, Blow(8, "pruned", (0,)))
            assert self.remaining(label) == toy.STEPS - 8
        return label

    def copy(self, label: str, new: str) -> str:
        """The same run once more."""
        shutil.copytree(self.path(label), self.path(new))
        return new

    def resume(self, label: str, world: int, **changes: Any) -> str:
        """Start it until it is done, at most three times; what the last launch said when it is not."""
        for _ in range(3):
            codes, output = self.run(label, world, **changes)
            if codes == [0] * world:
                return ""
        return f"exit codes {codes}: {output[-2000:]}"

    def events(self, label: str, kind: str) -> list[dict[str, Any]]:
        """What the run noted."""
        return [row for row in JsonLines(RunDir(self.path(label)).events) if row["kind"] == kind]


def _lives(workers: Workers | subprocess.Popen[bytes]) -> bool:
    if isinstance(workers, Workers):
        return any(process.is_alive() for process in workers.processes)
    return workers.poll() is None


@contextmanager
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of four megabytes, or a test that is skipped."""
    disk = tmp_path / "disk"
    disk.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(disk)], capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {made.stderr.strip()}")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)
