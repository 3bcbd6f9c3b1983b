"""Whether a run is running: its lock, and the heartbeats of its ranks. Nothing is locked to find out."""

import fcntl
import os
import re
import struct
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from samestep.core.json_files import Json, parse_json
from samestep.core.rundir import RunDir
from samestep.core.typed_json import from_json
from samestep.train.record.damaged_files import LOCK, Reader

FRESH = 90.0
"""Seconds after which a rank without a new heartbeat does not count as alive; it writes one every few seconds."""
_FLOCK = "hhqqi4x"  # type, whence, start, length, process: `struct flock` of 64-bit Linux


@dataclass(frozen=True)
class Lock:
    """The lock of the run: which process holds it, or held it last."""

    held: bool | None = None
    """None: it cannot be found out on this machine."""
    host: str = ""
    pid: int = 0


NO_LOCK = Lock()
"""Of a run that was never locked, or whose lock cannot be read."""


@dataclass(frozen=True)
class Heartbeat:
    """The last heartbeat of a rank."""

    rank: int
    host: str
    pid: int
    age: float
    """Seconds since it was written, by the clock that gives less."""
    stage: str = ""
    step: int | None = None
    activity: str = ""
    seconds: float = 0.0
    """How long the activity has lasted."""
    limit: float = 0.0
    memory: int = 0
    free: int = 0


def is_alive(lock: Lock, heartbeats: Sequence[Heartbeat], here: str, job_state: str = "") -> bool:
    """Whether ranks still run: by the lock where this host can read it, elsewhere by the job and by heartbeats."""
    if lock.held is not None and (lock.held or lock.host == here):
        return lock.held
    return job_state == "RUNNING" or any(heartbeat.age < FRESH for heartbeat in heartbeats)


def read_lock(path: Path) -> Lock:
    """The lock at `path`: which process holds it, or held it last."""
    try:
        with open(path, "rb") as file:
            held, text = _is_held(file.fileno()), file.read()
    except OSError:
        return NO_LOCK
    try:
        known = Reader(path.parent).typed(path, parse_json(text), LOCK)
    except ValueError:  # its writer was killed while it wrote
        known = {}
    return Lock(held, known.get("host") or "", known.get("pid") or 0)


def _is_held(handle: int) -> bool | None:
    """None where the file system or the operating system cannot say."""
    if sys.platform != "linux":
        return None
    query = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    try:
        answer = fcntl.fcntl(handle, fcntl.F_GETLK, query)
    except OSError:
        return None
    return bool(struct.unpack(_FLOCK, answer)[0] != fcntl.F_UNLCK)


def read_heartbeats(rundir: RunDir, reader: Reader) -> list[Heartbeat]:
    found = []
    for path in rundir.watch.glob("rank_*.json"):
        if not re.fullmatch(r"rank_\d+\.json", path.name):
            continue
        data = reader.object(path, {"time": float})
        try:
            found.append(from_json(Heartbeat, {"host": "", "pid": 0, **data, "age": _age(data, path)}))
        except ValueError:
            reader.add(path, "it is no heartbeat")
    return sorted(found, key=lambda heartbeat: heartbeat.rank)


def _age(data: dict[str, Json], path: Path) -> float:
    """Of a heartbeat, by two clocks, since that of the rank's host or that of the disk may be wrong."""
    return min(abs(time.time() - stamp) for stamp in (data.get("time") or 0.0, last_modified(path)))


def last_modified(path: Path) -> float:
    """When a file was written last, in seconds since 1970; 0 for one that is gone."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
