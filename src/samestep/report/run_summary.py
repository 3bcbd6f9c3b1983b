"""One run in a few facts, from its small files: for a list of a thousand runs, and for the head of a report.

Any file may be missing, damaged, or of a later version: what can be read is shown, `damage` says what cannot.
"""

import math
import os
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from samestep.core.errors import UserError
from samestep.core.json_files import Json
from samestep.core.near_names import did_you_mean
from samestep.core.rundir import RunDir
from samestep.core.status import is_done
from samestep.train.record.damaged_files import EVENT, METRICS, STATUS, Reader
from samestep.train.record.liveness import Lock, is_alive, last_modified, read_heartbeats, read_lock

_RECORD = {"recipe": str, "config": dict, "versions": dict}
_BEST = {"stage": str, "metric": str, "mode": str, "value": float, "step": int}
_STAGE = {"stage": str, "steps": int, "unit": str}


@dataclass(frozen=True)
class BestValue:
    """The best value so far of the metric that a stage chooses its weights by."""

    stage: str
    metric: str
    value: float
    step: int


@dataclass
class RunSummary:
    """What is known of a run without reading all its metrics."""

    rundir: RunDir
    recipe: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, Any] = field(default_factory=dict)
    state: str = "unknown"
    """running, done, preempted, failed, waiting, killed (it says that it runs, and does not), or not begun."""
    stage: str = ""
    """The one that ran last."""
    step: int | None = None
    steps: int | None = None
    """All steps of that stage."""
    best: BestValue | None = None
    """Of the last stage that has one."""
    events: list[dict[str, Json]] = field(default_factory=list)
    host: str = ""
    changed: float = 0.0
    """When something was last written, in seconds since 1970."""
    damage: Mapping[str, str] = field(default_factory=dict)
    """What is wrong with files, by their paths in the run."""

    @property
    def name(self) -> str:
        return self.rundir.path.name

    @property
    def age(self) -> float:
        """Seconds since something was written."""
        return max(0.0, time.time() - self.changed)

    @property
    def launches(self) -> list[dict[str, Json]]:
        """The events of its launches, in order."""
        return [event for event in self.events if event.get("kind") == "launch"]

    @property
    def size(self) -> int:
        """Bytes of all its files."""
        return sum(_sizes(self.rundir.path))


def read_summary(rundir: RunDir) -> RunSummary:
    """What the small files of a run say."""
    reader = Reader(rundir.path)
    record = reader.object(rundir.config, _RECORD)
    status = reader.object(rundir.status, STATUS)
    events = list(reader.rows(rundir.events, EVENT, None))
    last, lock = reader.last_row(rundir.metrics, METRICS), read_lock(rundir.path / "lock")
    stage = status.get("stage") or last.get("stage") or _last_of(events, "stage", "stage") or ""
    return RunSummary(
        rundir,
        recipe=Path(record.get("recipe") or "").name.removesuffix(".py"),
        settings=record.get("config") or {},
        versions=record.get("versions") or {},
        state=_state(rundir, reader, status, lock),
        stage=stage,
        step=_step(status, last),
        steps=status.get("steps") or _steps_of(events, stage, reader, rundir),
        best=_best(events, reader, rundir),
        events=events,
        host=lock.host,
        changed=max(map(last_modified, (rundir.metrics, rundir.events, rundir.status, rundir.config))),
        damage=reader.damage,
    )


def find_runs(folder: Path) -> list[RunDir]:
    """The runs in a folder, in the order of their names; refuses a folder that is none."""
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in entries if not entry.name.startswith("."))
    except OSError as error:
        near = did_you_mean(folder.name, [path.name for path in folder.absolute().parent.glob("*") if path.is_dir()])
        raise UserError(f"{folder} cannot be listed ({error.strerror}){near}; name a folder with runs in it") from None
    return [RunDir(folder / name) for name in names if is_run(folder / name)]


def is_run(path: Path) -> bool:
    """Whether a folder looks like one of a run, readable or not: published weights have a config.json too."""
    rundir = RunDir(path)
    return rundir.config.is_file() and any(each.exists() for each in (rundir.status, rundir.events, rundir.metrics))


def _state(rundir: RunDir, reader: Reader, status: Mapping[str, Json], lock: Lock) -> str:
    word = status.get("status")
    if is_done(status):
        return "done"
    if word not in ("running", None):
        return str(word)
    alive = is_alive(lock, read_heartbeats(rundir, reader), socket.gethostname())
    return "running" if alive else "killed" if word else "not begun"


def _step(status: Mapping[str, Json], last: Mapping[str, Json]) -> int | None:
    """The last step that is known to be done."""
    known = [step for step in (status.get("step"), last.get("step")) if isinstance(step, int)]
    return max(known, default=None)


def _steps_of(events: list[dict[str, Json]], stage: str, reader: Reader, rundir: RunDir) -> int | None:
    for event in reversed(events):
        if event.get("kind") == "stage" and event.get("stage") == stage:
            return reader.typed(rundir.events, event, _STAGE).get("steps")
    return None


def _best(events: list[dict[str, Json]], reader: Reader, rundir: RunDir) -> BestValue | None:
    for event in reversed(events):
        if event.get("kind") == "best":
            found = reader.typed(rundir.events, event, _BEST)
            if found.keys() >= _BEST.keys() and math.isfinite(found["value"]):
                return BestValue(*(found[name] for name in ("stage", "metric", "value", "step")))
    return None


def _last_of(events: list[dict[str, Json]], kind: str, name: str) -> Any:
    return next((event.get(name) for event in reversed(events) if event.get("kind") == kind), None)


def _sizes(folder: Path | str) -> Iterator[int]:
    """The size of each file below a folder; links are not followed."""
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    yield from _sizes(entry.path)
                else:
                    yield entry.stat(follow_symlinks=False).st_size
    except OSError:  # it is being removed
        return
