"""A run while it trains, read again and again: only what was written since is read of its long files.

Nothing is locked and nothing is written, and other machines that see the same disk can do the same.
"""

import math
import os
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from samestep.core.json_files import parse_json
from samestep.core.rundir import RunDir
from samestep.report.run_summary import RunSummary, read_summary
from samestep.report.series import RANK_ROW, blocks, kind_of
from samestep.train.record.damaged_files import METRICS, Reader
from samestep.train.record.liveness import Heartbeat, read_heartbeats

MOST_POINTS, AT_ONCE = 8_192, 4_096
"""Earlier points of one curve, and how many newer values become such points together."""
PACE_ROWS = 50
"""Rows over which the speed is measured that the rest of the run is expected to have."""
_READ = 16 << 20
"""Bytes of a file that are read together."""
Points = list[tuple[float, float]]


class LiveCurve:
    """A curve that grows: once it is long, each of its earlier points is the mean of as many values."""

    def __init__(self) -> None:
        self._earlier, self._newest = np.empty((0, 2)), np.empty((0, 2))
        """Step and value."""
        self._each = 1
        """Values that an earlier point is the mean of."""
        self.last = math.nan
        """The newest value."""

    def add(self, points: np.ndarray) -> None:
        """Add the next ones, in order."""
        self._newest, self.last = np.concatenate([self._newest, points]), float(points[-1, 1])
        if len(self._newest) >= AT_ONCE:
            self._earlier = np.concatenate([self._earlier, _means(self._newest, self._each)])
            self._newest = self._newest[:0]
        while len(self._earlier) > MOST_POINTS:
            self._earlier, self._each = _means(self._earlier, 2), 2 * self._each

    @property
    def points(self) -> Points:
        """Step and value, in order."""
        return [(step, value) for step, value in [*self._earlier.tolist(), *self._newest.tolist()]]

    @property
    def is_short(self) -> bool:
        """Whether it is no curve yet."""
        return len(self._earlier) + len(self._newest) < 2


@dataclass
class LiveRun:
    """What is known of a run now; `read` reads what is new."""

    rundir: RunDir
    summary: RunSummary = field(init=False)
    heartbeats: list[Heartbeat] = field(init=False)
    """Of the ranks of the last launch."""
    curves: dict[str, dict[str, LiveCurve]] = field(default_factory=dict)
    """By stage and metric."""
    ranks: list[dict[str, Any]] = field(default_factory=list)
    """The last rows of what each rank took for a step, in the stage and launch of now."""

    def __post_init__(self) -> None:
        self._metrics, self._speeds = _NewRows(self.rundir.metrics), _NewRows(self.rundir.rank_speeds)
        self.read()

    def read(self) -> None:
        """Read what was written since."""
        reader = Reader(self.rundir.path)
        self.summary, self.heartbeats = read_summary(self.rundir), read_heartbeats(self.rundir, reader)
        if self._metrics.begins_again():
            self.curves.clear()
        self._extend_curves(self._metrics.read(reader, METRICS))
        self._speeds.begins_again()
        began = max((event.get("time") or 0.0 for event in self.summary.launches), default=0.0)
        rows = chain(self.ranks, self._speeds.read(reader, RANK_ROW))
        of_now = (r for r in rows if r.get("stage") == self.summary.stage and (r.get("time") or 0.0) >= began)
        self.ranks = list(deque(of_now, maxlen=PACE_ROWS))

    def _extend_curves(self, rows: Iterator[dict[str, Any]]) -> None:
        new: dict[tuple[str, str], list[np.ndarray]] = {}
        for stage, names, block in blocks(rows):
            for place, name in enumerate(names, 1):
                new.setdefault((stage, name), []).append(block[:, [0, place]])
        for (stage, name), parts in new.items():
            points = np.concatenate(parts)
            curve = self.curves.setdefault(stage, {}).setdefault(name, LiveCurve())
            curve.add(points[np.argsort(points[:, 0], kind="stable")])

    @property
    def step(self) -> int:
        """The last step of the stage that anything speaks of."""
        told = [beat.step for beat in self.heartbeats if beat.stage == self.summary.stage and beat.step is not None]
        return max([*told, self.summary.step or 0])

    @property
    def seconds_left(self) -> float | None:
        """Until the stage is done, at its pace so far, with validations and saves; None where it is not known."""
        known = [row for row in self.ranks if row.get("time") is not None and row.get("step") is not None]
        if len(known) < 2 or not self.summary.steps or known[-1]["step"] <= known[0]["step"]:
            return None
        pace = (known[-1]["time"] - known[0]["time"]) / (known[-1]["step"] - known[0]["step"])
        return max(0.0, pace * (self.summary.steps - self.step))

    def chosen(self, most: int) -> list[str]:
        """The metrics of the stage to draw: what its best value is of, losses, validation, and then the others."""
        best, order = self.summary.best, ("Loss", "Validation", "Metrics", "Learning rate and gradient", "Speed")
        curves = self.curves.get(self.summary.stage, {})
        names = sorted(curves, key=lambda name: (best is None or name != best.metric, order.index(kind_of(name))))
        losses = [name for name in names if kind_of(name) == "Loss"][:1]  # one is always among them
        found = dict.fromkeys([*names[:1], *losses, *names])
        return sorted(found, key=lambda name: curves[name].is_short)[:most]


def _means(points: np.ndarray, each: int) -> np.ndarray:
    """Of as many neighbours each, the last ones may be fewer; of values that are numbers, where there are any."""
    starts = np.arange(0, len(points), each)
    steps = np.add.reduceat(points[:, 0], starts) / np.diff(starts, append=len(points))
    is_known = np.isfinite(points[:, 1])
    sums, counts = (np.add.reduceat(each, starts) for each in (np.where(is_known, points[:, 1], 0.0), is_known * 1.0))
    return np.stack([steps, np.divide(sums, counts, out=np.full(len(starts), np.nan), where=counts > 0)], axis=1)


class _NewRows:
    """The rows of a file of JSON lines that were added since the last time."""

    def __init__(self, path: Path) -> None:
        self._path, self._offset, self._file = path, 0, 0

    def begins_again(self) -> bool:
        """Whether the file is another one, as after a resume, which cuts rows off; then all its rows are new."""
        try:
            found = self._path.stat()
        except OSError:
            return False
        if found.st_ino == self._file and found.st_size >= self._offset:
            return False
        self._file, self._offset = found.st_ino, 0
        return True

    def read(self, reader: Reader, types: Mapping[str, type]) -> Iterator[dict[str, Any]]:
        """The new rows; one that is being written is left for the next time."""
        try:
            with open(self._path, "rb") as file:
                while os.fstat(file.fileno()).st_ino == self._file:
                    file.seek(self._offset)
                    whole, end, _ = file.read(_READ).rpartition(b"\n")
                    if not end:
                        return
                    self._offset += len(whole) + 1
                    for line in whole.split(b"\n"):
                        try:
                            yield reader.typed(self._path, parse_json(line), types)
                        except ValueError:
                            reader.add(self._path, "lines in it are not JSON")
        except OSError:  # not written yet
            return
