"""Starts the processes of a proof on this machine, and kills some of them."""

import copy
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from samestep.core.child_python import child_env, python_command
from samestep.core.json_files import read_json, read_object_if_readable
from samestep.core.rundir import RunDir
from samestep.core.safe_files import open_file
from samestep.launching.local import Workers, start
from samestep.train.record.config import AUTO, UNMEASURED_ROWS
from samestep.train.session.entry import train_with
from samestep.verify.trace import RecordedLaunch, last_error

PRESET = "verify"
STEPS = 8


def proof_settings(
    config: Mapping[str, Any], preset: Mapping[str, Any], folder: Path, timeout: float
) -> dict[str, Any]:
    """The configuration of a proof's runs, as plain data; `preset` is what the recipe declares for it."""
    data = copy.deepcopy(dict(config))
    if data["max_steps"] is None and "epochs" not in preset:
        data["max_steps"] = STEPS
    steps = data["max_steps"] or STEPS
    if data["batch_size"] == AUTO:  # a proof chooses how batches are cut
        data["batch_size"] = min(UNMEASURED_ROWS, data["global_batch_size"] or UNMEASURED_ROWS)
    data["global_batch_size"] = data["global_batch_size"] or uneven_batch(data["batch_size"])
    data["validate_every"] = data["validate_every"] or (steps // 2 if data["max_steps"] else 0)
    data.update(out=str(folder), evidence=True, compile=False, max_time=None, deterministic=False)
    data["distributed"].update(
        dtype="float64", device="cpu", backend="gloo", mixed_precision="none", timeout=float(timeout)
    )
    # Metrics are logged at other steps than saves: a window that is still open must survive a kill too.
    data["log"].update(every=3, quiet=True, tensorboard=False, wandb=False)
    data["checkpoint"].update(every_steps=2 if steps >= 6 else 1, every_minutes=0.0, weights=False)
    return data


def uneven_batch(micro: int) -> int:
    """A global batch of more than two micro-batches that neither 2 nor 3 ranks can share evenly."""
    batch = 2 * micro + 1
    while batch % 2 == 0 or batch % 3 == 0:
        batch += 1
    return batch


def other_batch_size(batch: int, micro: int) -> int | None:
    """Another batch_size that cuts `batch` differently, and unevenly where `micro` does not; None when there is none.

    Micro-batches of equal size would hide that each counts the same whatever its size.
    """
    now = _micro_batch_count(batch, micro)
    others = {
        _micro_batch_count(batch, size): size for size in range(batch, 0, -1) if _micro_batch_count(batch, size) != now
    }
    if batch % now:
        return others.get(1)
    uneven = [size for count, size in others.items() if batch % count]
    return next(iter(uneven), next(iter(others.values()), None))


def _micro_batch_count(batch: int, micro: int) -> int:
    return -(-batch // micro)


PRELOAD = ("samestep.train.session.session", "samestep.train.session.entry", "torch._dynamo")
"""Modules that workers find already imported; DDP needs the last one, which takes longest."""
LIMIT = 600.0
"""Seconds after which the runner gives up on a launch; a rank that waits for another gives up much sooner."""
_LAUNCHERS = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_",
    "MASTER_",
    "TORCHELASTIC",
    "SLURM_",
    "PMI",
    "PALS",
    "OMPI",
    "PYTHONHASHSEED",
)
_SINGLE_PROCESS_CODE = """
import json, sys
from samestep.core.imports import uncollected_imports
with uncollected_imports():
    from samestep.train.session.entry import train_with
sys.exit(train_with(*json.loads(sys.argv[1])))
"""


@dataclass(frozen=True)
class RunResult:
    """How a launch ended: its exit codes and output, by rank."""

    path: Path
    world: int
    codes: Sequence[int | None]
    outputs: Sequence[str]

    @property
    def done(self) -> bool:
        return (read_json(RunDir(self.path).status) or {}).get("status") == "done" and not any(self.codes)

    def evidence(self) -> RecordedLaunch:
        return RecordedLaunch.read(self.path, self.world)

    def failure(self) -> str:
        """Why it failed, on one line."""
        errors = [last_error(output) for output, code in zip(self.outputs, self.codes) if code and output.strip()]
        signals = [
            f"rank {rank} died by {signal.Signals(-code).name}"
            for rank, code in enumerate(self.codes)
            if code and code < 0
        ]
        return "; ".join([*(errors or self._reported())[:1], *signals[:1]]) or f"exit codes {list(self.codes)}"

    def _reported(self) -> list[str]:
        """What ranks that failed wrote into the run directory; only rank 0 prints."""
        failed = [rank for rank, code in enumerate(self.codes) if code]
        found = {rank: read_object_if_readable(RunDir(self.path).exit_report(rank)).get("text") for rank in failed}
        return [f"rank {rank} ended with: {text}" for rank, text in found.items() if text]


@dataclass(frozen=True)
class KillMoment:
    """When to kill which ranks."""

    steps: int
    """The number of steps that rank 0 has finished by then."""
    delay: float
    """Seconds to wait after that."""
    victims: tuple[int, ...]
    """The ranks to kill; the others must end by themselves."""

    @classmethod
    def choose(cls, rng: random.Random, world: int, first: int, total: int) -> "KillMoment":
        """Any moment from step `first` on, including the save after the last step; all ranks or one of them."""
        victims = tuple(range(world)) if rng.random() < 0.5 else (rng.randrange(world),)
        return cls(rng.randint(min(first, total), total), rng.random() * 0.02, victims)

    def earlier(self) -> "KillMoment":
        """A moment for a run that was over before this one."""
        return replace(self, steps=max(0, self.steps - 1), delay=self.delay / 2)

    def describe(self, world: int) -> str:
        return "all ranks killed" if len(self.victims) == world else f"rank {self.victims[0]} killed"


@dataclass
class ProofRunner:
    """Starts the runs of a proof, each in a directory of its own under `folder`."""

    recipe: str
    settings: dict[str, Any]
    folder: Path
    preload: tuple[str, ...] = ()

    def run(self, label: str, world: int, **changes: Any) -> RunResult:
        """Launch a run and wait for its end; a run that exists already is resumed."""
        return self.start_run(label, world, **changes).wait()

    def start_run(self, label: str, world: int, **changes: Any) -> "StartedRun":
        return StartedRun(self, label, world, self._start(label, world, changes))

    def kill(self, label: str, world: int, moment: KillMoment) -> tuple[RunResult, KillMoment]:
        """Launch a run and kill it before it is done: at `moment`, or earlier if it was over by then."""
        for attempt in range(6):
            name = f"{label}-attempt-{attempt + 1}" if attempt else label
            workers = self._start(name, world, {})
            try:
                self._wait_for(name, workers, moment, saved=attempt < 3)
                workers.kill(*moment.victims)
                codes = workers.wait(LIMIT)
            except BaseException:
                workers.kill()
                raise
            result = self._result(name, world, workers, codes)
            if any(codes) and (read_json(RunDir(result.path).status) or {}).get("status") != "done":
                break
            moment = moment.earlier()
        return result, moment

    def _start(self, label: str, world: int, changes: dict[str, Any]) -> Workers:
        config = {**self.settings, "name": label, **changes}
        preload = (*PRELOAD, *self.preload)
        return start(train_with, world, self.recipe, config, logs=self._logs(label, world), preload=preload)

    def _logs(self, label: str, world: int) -> Path:
        return self.folder / "output" / f"{label}-{world}"

    def _result(self, label: str, world: int, workers: Workers, codes: Sequence[int | None]) -> RunResult:
        return RunResult(self.folder / label, world, codes, [workers.output(rank) for rank in range(world)])

    def _wait_for(self, label: str, workers: Workers, moment: KillMoment, saved: bool) -> None:
        """Wait until rank 0 has finished enough steps and, if `saved`, there is a checkpoint; or the run is over."""
        rundir = RunDir(self.folder / label)
        path = rundir.evidence(len(workers.processes), 0)
        while any(process.is_alive() for process in workers.processes):
            done = path.read_bytes().count(b'"kind": "step"') if path.exists() else -1
            if done >= moment.steps and (not saved or any(rundir.checkpoints("").glob("*/step_*"))):
                time.sleep(moment.delay)
                return
            time.sleep(0.001)


@dataclass(frozen=True)
class StartedRun:
    """A launch that is running."""

    runner: ProofRunner
    label: str
    world: int
    workers: Workers

    def wait(self) -> RunResult:
        try:
            codes = self.workers.wait(LIMIT)
        except BaseException:
            self.stop()
            raise
        return self.runner._result(self.label, self.world, self.workers, codes)

    def stop(self) -> None:
        self.workers.kill()


class SingleProcessRun:
    """A run without a launcher in a fresh interpreter (another hash seed, nothing imported before), begun at once."""

    def __init__(self, runner: ProofRunner, label: str) -> None:
        self._path = runner.folder / label
        output = runner._logs(label, 1)
        output.mkdir(parents=True)
        self._output = output / "output_0.txt"
        config = {**runner.settings, "name": label}
        with open_file(self._output, "w") as file:
            self._process = subprocess.Popen(
                python_command("-c", _SINGLE_PROCESS_CODE, json.dumps([runner.recipe, config])),
                stdout=file,
                stderr=subprocess.STDOUT,
                env=_single_process_environment(),
            )

    def is_running(self) -> bool:
        return self._process.poll() is None

    def wait(self) -> RunResult:
        try:
            code: int | None = self._process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            self.stop()
        return RunResult(self._path, 1, [code], [self._output.read_text(errors="replace")])

    def stop(self) -> None:
        if self.is_running():
            self._process.kill()
            self._process.wait()


def _single_process_environment() -> dict[str, str]:
    """This environment without the variables of launchers, and with the import path of this process."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_LAUNCHERS)}
    threads = os.environ.get("OMP_NUM_THREADS", "1")
    return {**child_env(kept, import_path=sys.path), "OMP_NUM_THREADS": threads}
