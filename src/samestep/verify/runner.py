"""Runs the real processes of a proof on this machine, and kills some of them."""

import copy
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from samestep.core.records import read_json
from samestep.core.rundir import RunDir
from samestep.launch.local import Workers, start
from samestep.train.session.entry import train_with
from samestep.verify.trace import RecordedLaunch, last_words

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
    data["global_batch_size"] = data["global_batch_size"] or uneven_batch(data["batch_size"])
    data["validate_every"] = data["validate_every"] or (steps // 2 if data["max_steps"] else 0)
    data.update(out=str(folder), evidence=True, compile=False, max_time=None, deterministic=False)
    data["distributed"].update(
        dtype="float64", device="cpu", backend="gloo", mixed_precision="none", timeout=float(timeout)
    )
    # Rows of figures that no save falls together with: an open window must survive a kill too.
    data["log"].update(every=3, quiet=True, tensorboard=False, wandb=False)
    data["checkpoint"].update(every_steps=2 if steps >= 6 else 1, every_minutes=0.0, weights=False)
    return data


def uneven_batch(micro: int) -> int:
    """A global batch of more than two micro-batches that neither 2 nor 3 ranks can share evenly."""
    batch = 2 * micro + 1
    while batch % 2 == 0 or batch % 3 == 0:
        batch += 1
    return batch


def other_micro(batch: int, micro: int) -> int | None:
    """Another micro-batch size that cuts `batch` differently, and unevenly where `micro` does not; None: there is none.

    Equal micro-batches would hide that they count alike whatever their size.
    """
    now = _pieces(batch, micro)
    others = {_pieces(batch, size): size for size in range(batch, 0, -1) if _pieces(batch, size) != now}
    if batch % now:
        return others.get(1)
    uneven = [size for pieces, size in others.items() if batch % pieces]
    return next(iter(uneven), next(iter(others.values()), None))


def _pieces(batch: int, micro: int) -> int:
    return -(-batch // micro)


PRELOAD = ("samestep.train.session.session", "samestep.train.session.entry", "torch._dynamo")
"""What workers find imported; DDP wants the last one, which takes longer than all else."""
LIMIT = 600.0
"""Seconds after which a launch is given up; a rank that waits for another gives up much sooner."""
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
_LONE = (
    "import json, sys; from samestep.train.session.entry import train_with; "
    "sys.exit(train_with(*json.loads(sys.argv[1])))"
)


@dataclass(frozen=True)
class RunResult:
    """How a launch ended."""

    path: Path
    world: int
    codes: Sequence[int | None]
    outputs: Sequence[str]

    @property
    def done(self) -> bool:
        """Whether the run came to its end."""
        return (read_json(RunDir(self.path).status) or {}).get("status") == "done" and not any(self.codes)

    def evidence(self) -> RecordedLaunch:
        """What its ranks recorded."""
        return RecordedLaunch.read(self.path, self.world)

    def failure(self) -> str:
        """Why it did not, on one line."""
        words = [last_words(output) for output, code in zip(self.outputs, self.codes) if code and output.strip()]
        signals = [
            f"rank {rank} died by {signal.Signals(-code).name}"
            for rank, code in enumerate(self.codes)
            if code and code < 0
        ]
        return "; ".join([*words[:1], *signals[:1]]) or f"exit codes {list(self.codes)}"


@dataclass(frozen=True)
class Moment:
    """When to kill whom."""

    steps: int
    """Steps that rank 0 has finished by then."""
    delay: float
    """Seconds to wait after that."""
    victims: tuple[int, ...]
    """Ranks; the others must end by themselves."""

    @classmethod
    def choose(cls, chance: random.Random, world: int, first: int, total: int) -> "Moment":
        """Any moment from step `first` on, the save after the last one included; all ranks or one of them."""
        victims = tuple(range(world)) if chance.random() < 0.5 else (chance.randrange(world),)
        return cls(chance.randint(min(first, total), total), chance.random() * 0.02, victims)

    def earlier(self) -> "Moment":
        """For a run that was faster."""
        return replace(self, steps=max(0, self.steps - 1), delay=self.delay / 2)

    def words(self, world: int) -> str:
        """Who was killed, for the table."""
        if len(self.victims) == world:
            return "all ranks killed"
        return f"rank {self.victims[0]} killed"


@dataclass
class ProofRunner:
    """Starts the runs of a proof, each in a directory of its own under `folder`."""

    recipe: str
    settings: dict[str, Any]
    folder: Path
    preload: tuple[str, ...] = ()

    def begin_alone(self, label: str) -> "Alone":
        """A process that nobody launched, in a fresh interpreter: other hash seed, nothing imported before."""
        return Alone(self, label)

    def run(self, label: str, world: int, **changes: Any) -> RunResult:
        """A launch to its end; of a run that exists already, a resume."""
        return self.begin(label, world, **changes).end()

    def begin(self, label: str, world: int, **changes: Any) -> "StartedRun":
        """A launch that others may run beside."""
        return StartedRun(self, label, world, self._start(label, world, changes))

    def kill(self, label: str, world: int, moment: Moment) -> tuple[RunResult, Moment]:
        """A launch that is killed before it is done: at `moment`, or earlier when it was faster than that."""
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
            outcome = self._outcome(name, world, workers, codes)
            if any(codes) and (read_json(RunDir(outcome.path).status) or {}).get("status") != "done":
                break
            moment = moment.earlier()
        return outcome, moment

    def copy(self, outcome: RunResult, label: str) -> None:
        """The same run directory once more, under another label."""
        shutil.copytree(outcome.path, self.folder / label)

    def _start(self, label: str, world: int, changes: dict[str, Any]) -> Workers:
        config = {**self.settings, "name": label, **changes}
        preload = (*PRELOAD, *self.preload)
        return start(train_with, world, self.recipe, config, logs=self._logs(label, world), preload=preload)

    def _logs(self, label: str, world: int) -> Path:
        return self.folder / "output" / f"{label}-{world}"

    def _outcome(self, label: str, world: int, workers: Workers, codes: Sequence[int | None]) -> RunResult:
        return RunResult(self.folder / label, world, codes, [workers.output(rank) for rank in range(world)])

    def _wait_for(self, label: str, workers: Workers, moment: Moment, saved: bool) -> None:
        """Until rank 0 has finished so many steps and, if `saved`, there is something to resume; or the run is over."""
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
    """A launch under way."""

    lab: ProofRunner
    label: str
    world: int
    workers: Workers

    def end(self) -> RunResult:
        """Wait for it."""
        try:
            codes = self.workers.wait(LIMIT)
        except BaseException:
            self.stop()
            raise
        return self.lab._outcome(self.label, self.world, self.workers, codes)

    def stop(self) -> None:
        """End it, if it still runs."""
        self.workers.kill()


class Alone:
    """A run in a lone, fresh process, under way."""

    def __init__(self, lab: ProofRunner, label: str) -> None:
        self._path = lab.folder / label
        output = lab._logs(label, 1)
        output.mkdir(parents=True)
        self._output = output / "output_0.txt"
        config = {**lab.settings, "name": label}
        with open(self._output, "w") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _LONE, json.dumps([lab.recipe, config])],
                stdout=file,
                stderr=subprocess.STDOUT,
                env=_lone_environment(),
            )

    def end(self) -> RunResult:
        """Wait for it."""
        try:
            code: int | None = self._process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            self.stop()
        return RunResult(self._path, 1, [code], [self._output.read_text(errors="replace")])

    def stop(self) -> None:
        """End it, if it still runs."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


def _lone_environment() -> dict[str, str]:
    """No launcher's variables, and the import path of this process."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_LAUNCHERS)}
    threads = os.environ.get("OMP_NUM_THREADS", "1")
    return {**kept, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": threads}
