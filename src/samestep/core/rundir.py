"""The run directory: the one class that knows where everything of a run lies, and the lock against two writers.

runs/NAME/
  config.json           the resolved configuration, and hashes of the recipe's code at the last launch
  frozen.json           what the first launch fixed for good, per stage: global batch, learning rate, steps, the data
  status.json           running, done, preempted or failed, with the last step
  metrics.jsonl         one row a figure set, each step once
  events.jsonl          launches, resumes, saves, warnings
  logs/rank_0.log       one per rank
  watch/                of the last launch: signs of life, stacks and last words of its ranks, and why it hung
  ranks.jsonl           how fast each rank was
  job/                  scripts, output and numbers of the jobs that `samestep submit` made
  tensorboard/
  checkpoints/STAGE/step_00000100/
  weights/              plain weight files, when asked for
  artifacts/STAGE/      what a stage hands to the next
  evidence/             what `samestep verify` compares, when asked for
"""

import fcntl
import json
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from samestep.core.errors import UserError


@dataclass(frozen=True)
class RunDir:
    """Every path of one run."""

    path: Path

    @property
    def config(self) -> Path:
        """The resolved configuration with its recipe."""
        return self.path / "config.json"

    @property
    def frozen(self) -> Path:
        """What the first launch fixed for good."""
        return self.path / "frozen.json"

    @property
    def status(self) -> Path:
        """How the run stands."""
        return self.path / "status.json"

    @property
    def metrics(self) -> Path:
        """The figures, a JSON line each."""
        return self.path / "metrics.jsonl"

    @property
    def events(self) -> Path:
        """What happened, a JSON line each."""
        return self.path / "events.jsonl"

    @property
    def tensorboard(self) -> Path:
        """TensorBoard's folder."""
        return self.path / "tensorboard"

    @property
    def weights(self) -> Path:
        """Plain weight files."""
        return self.path / "weights"

    @property
    def job(self) -> Path:
        """Scripts and output of batch jobs."""
        return self.path / "job"

    @property
    def speeds(self) -> Path:
        """How fast each rank was, a JSON line now and then."""
        return self.path / "ranks.jsonl"

    @property
    def watch(self) -> Path:
        """Signs of life and last words of the last launch; emptied by the next."""
        return self.path / "watch"

    @property
    def stall(self) -> Path:
        """Who hung, where, and what the others waited for."""
        return self.watch / "stall.json"

    def beat(self, rank: int) -> Path:
        """The last sign of life of one rank: what it was doing, since when, where."""
        return self.watch / f"rank_{rank}.json"

    def stacks(self, rank: int) -> Path:
        """Where every thread of one rank was when the run stalled."""
        return self.watch / f"rank_{rank}_stacks.txt"

    def collectives(self, rank: int) -> Path:
        """The last collectives of one rank, as torch's flight recorder has them."""
        return self.watch / f"rank_{rank}_collectives.json"

    def word(self, rank: int) -> Path:
        """Why one rank ended, if it failed and could still say so."""
        return self.watch / f"rank_{rank}_word.json"

    def log(self, rank: int) -> Path:
        """The log of one rank."""
        return self.path / "logs" / f"rank_{rank}.log"

    def checkpoints(self, stage: str) -> Path:
        """The checkpoints of one stage."""
        return self.path / "checkpoints" / stage

    def artifacts(self, stage: str) -> Path:
        """What one stage leaves for the next ones."""
        return self.path / "artifacts" / stage

    def evidence(self, world_size: int, rank: int) -> Path:
        """What one rank recorded for `samestep verify`."""
        return self.path / "evidence" / f"world_{world_size}_rank_{rank}.jsonl"

    def lock(self) -> "RunLock":
        """Take the run for this process, or say who has it."""
        return RunLock(self.path / "lock")


class RunLock:
    """One writer a run. A POSIX record lock: gone with its process however that ends, and not inherited by a fork."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: TextIO = open(path, "a+", encoding="utf-8")  # noqa: SIM115 (held as long as the lock)
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.seek(0)
            holder = self._file.read().strip() or "another process"
            self._file.close()
            raise UserError(
                f"the run directory {path.parent} is in use by a live run ({holder}); "
                "wait for it, stop it, or choose another name with name=..."
            ) from None
        self._file.truncate(0)
        self._file.write(json.dumps({"host": socket.gethostname(), "pid": os.getpid()}))
        self._file.flush()

    def release(self) -> None:
        """Let others have the run."""
        self._file.close()
