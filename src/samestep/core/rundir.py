"""The run directory: the one class that knows the path of every file of a run, and the lock against two writers.

runs/NAME/
  config.json           the resolved configuration, and hashes of the recipe's code at the last launch
  first_launch.json     what no later launch may change, per stage, in order: learning rate, steps, data, hashes
  status.json           running, done, preempted or failed, with the last step
  metrics.jsonl         one row of metrics for each logged step
  samples.jsonl         what the network made, for people to look at; its pictures are in samples/STAGE/
  events.jsonl          launches, resumes, saves, warnings
  logs/rank_0.log       one per rank
  watch/                of the last launch: heartbeats, stack dumps and exit reports of its ranks, and why it stalled
  lock, lease           held by the process that writes; the lease also against other hosts
  ranks.jsonl           how fast each rank was
  job/                  scripts, config files, output and ids of the jobs that `samestep submit` submitted
  tensorboard/
  report.html           what `samestep report` made of it
  checkpoints/STAGE/step_00000100/
  weights/              plain weight files, if requested
  artifacts/STAGE/      what a stage passes to the next, and done.json when it is done
  profile/STAGE/        traces of profiled steps, if requested, and the slowest operations of each
  .taking_over/STAGE/   a stage of another run, while it is being taken over
  evidence/             what `samestep verify` compares, if requested
"""

import errno
import fcntl
import json
import os
import socket
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from samestep.core.errors import UserError
from samestep.core.lease import Lease, in_use
from samestep.core.safe_files import open_file, remove_leftovers

DONE = "done.json"
"""Among the artifacts of a stage that is done."""
LEASE = "lease"
"""The file beside the lock."""
_OPERATIONS = "_operations.json"
"""The end of the name of the table beside a trace."""


@dataclass(frozen=True)
class RunDir:
    """Every path of one run."""

    path: Path

    @property
    def config(self) -> Path:
        """The resolved configuration with its recipe."""
        return self.path / "config.json"

    @property
    def first_launch(self) -> Path:
        """What the first launch fixed, and no later launch may change."""
        return self.path / "first_launch.json"

    @property
    def status(self) -> Path:
        """The run's status and last step."""
        return self.path / "status.json"

    @property
    def metrics(self) -> Path:
        """The metrics, as JSON lines."""
        return self.path / "metrics.jsonl"

    @property
    def samples(self) -> Path:
        """Samples of what the network made, as JSON lines."""
        return self.path / "samples.jsonl"

    def sample_images(self, stage: str) -> Path:
        """The pictures among the samples of a stage."""
        return self.path / "samples" / stage

    @property
    def events(self) -> Path:
        """Events of the run, as JSON lines."""
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
    def rank_speeds(self) -> Path:
        """How fast each rank was, as JSON lines."""
        return self.path / "ranks.jsonl"

    @property
    def watch(self) -> Path:
        """Heartbeats, stack dumps and exit reports of the last launch; the next launch empties it."""
        return self.path / "watch"

    @property
    def stall_report(self) -> Path:
        """Which rank stalled, where, and what the others waited for."""
        return self.watch / "stall.json"

    def heartbeat(self, rank: int) -> Path:
        """The last heartbeat of one rank: what it was doing, since when, on which host."""
        return self.watch / f"rank_{rank}.json"

    def stack_dump(self, rank: int) -> Path:
        """Where every thread of one rank was when the run stalled."""
        return self.watch / f"rank_{rank}_stacks.txt"

    def collectives(self, rank: int) -> Path:
        """The last collectives of one rank, from torch's flight recorder."""
        return self.watch / f"rank_{rank}_collectives.json"

    def exit_report(self, rank: int) -> Path:
        """Why one rank failed, if it could still write that."""
        return self.watch / f"rank_{rank}_exit.json"

    def log(self, rank: int) -> Path:
        return self.path / "logs" / f"rank_{rank}.log"

    def checkpoints(self, stage: str) -> Path:
        return self.path / "checkpoints" / stage

    def artifacts(self, stage: str) -> Path:
        """What one stage passes to the next ones."""
        return self.path / "artifacts" / stage

    def done(self, stage: str) -> Path:
        """Written when a stage is done."""
        return self.artifacts(stage) / DONE

    def profile(self, stage: str) -> Path:
        """Traces of profiled steps of one stage."""
        return self.path / "profile" / stage

    def profiled_operations(self) -> list[tuple[str, Path, Path]]:
        """Stage, table of operations and trace of all that was profiled."""
        tables = sorted((self.path / "profile").glob(f"*/*{_OPERATIONS}"))
        return [(path.parent.name, path, path.with_name(path.name.replace(_OPERATIONS, ".json"))) for path in tables]

    @property
    def taking_over(self) -> Path:
        """Stages that are being taken over from another run, by name; a finished takeover removes it."""
        return self.path / ".taking_over"

    def evidence(self, world_size: int, rank: int) -> Path:
        """What one rank recorded for `samestep verify`."""
        return self.path / "evidence" / f"world_{world_size}_rank_{rank}.jsonl"

    def lock(self) -> "RunLock":
        """Lock the run for this process, or raise an error that names the holder."""
        lock = RunLock(self.path / "lock")
        inner = [path for name in ("artifacts", "samples") for path in (self.path / name).glob("*")]
        for folder in (self.path, self.weights, *inner):
            remove_leftovers(folder)
        return lock


def operations_path(trace: Path) -> Path:
    """The table of operations beside a trace of profiled steps."""
    return trace.with_name(trace.stem + _OPERATIONS)


class RunLock:
    """One writer per run. A POSIX record lock: released when its process ends in any way, not inherited by a fork.
    And a lease, for hosts that do not see each other's locks."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = _lock(path)
        with ExitStack() as undo:
            undo.enter_context(closing(self._file))
            undo.callback(_remove_unused, path)
            self._lease = Lease(path.with_name(LEASE))
            undo.callback(self._lease.release)
            self._file.truncate(0)
            self._file.write(json.dumps({"host": socket.gethostname(), "pid": os.getpid()}))
            self._file.flush()
            undo.pop_all()

    def release(self) -> None:
        self._lease.release()
        self._file.close()


def _remove_unused(path: Path) -> None:
    """Remove a lock that could not be taken with its lease, and its folder, if nothing else is in there."""
    if [found.name for found in path.parent.iterdir()] == [path.name]:
        path.unlink()
        path.parent.rmdir()


def _lock(path: Path) -> IO[str]:
    """The lock file, locked; raises UserError if another process has locked it."""
    while True:
        file: IO[str] = open_file(path, "a+", encoding="utf-8")
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.seek(0)
            holder = file.read().strip() or "another process"
            file.close()
            if error.errno not in (errno.EACCES, errno.EAGAIN):  # the two that mean: locked by another process
                raise UserError(
                    f"{path} cannot be locked ({error.strerror}); choose a folder on a disk that has file locks with "
                    "out=..."
                ) from None
            raise in_use(path.parent, holder) from None
        if path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat()):
            return file
        file.close()  # the run was discarded by its first launch, and this lock with it
        path.parent.mkdir(parents=True, exist_ok=True)
