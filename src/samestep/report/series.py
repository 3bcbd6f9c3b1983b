"""The curves of a run: its metrics by stage, and what its ranks took for a step, as arrays; thinned for a page.

A long run has millions of numbers, so rows with the same names are made into one array at once.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from samestep.core.rundir import RunDir
from samestep.train.record.damaged_files import METRICS, Reader

_WHERE = ("stage", "step")
"""Where a row of metrics belongs; an epoch follows."""
KINDS = ("Loss", "Validation", "Learning rate and gradient", "Speed", "Metrics")
"""The kinds of metrics, as a page has them."""
RANK_ROW = {"stage": str, "step": int, "time": float, "step_seconds": list, "data_seconds": list, "memory": list}
_AT_ONCE = 4096
"""Rows that are made into an array together: as lists of Python they take ten times the memory."""


@dataclass(frozen=True)
class Curve:
    """Values of one metric at steps, in their order."""

    steps: np.ndarray
    values: np.ndarray

    @property
    def last(self) -> float:
        return float(self.values[-1])

    def thinned(self, most: int) -> "Curve":
        """At most so many points: of each stretch of steps the smallest and the largest value, so that no peak is lost;
        and of all the first and the last. Values that are not finite are drawn as gaps."""
        count = len(self.steps)
        if count <= most:
            return self
        parts = np.array_split(np.arange(count), max(1, (most - 2) // 2))
        kept = {0, count - 1}
        for part in parts:
            values = self.values[part]
            finite = np.flatnonzero(np.isfinite(values))
            if not len(finite):
                kept.add(int(part[0]))
                continue
            kept.update(int(part[finite[at]]) for at in (values[finite].argmin(), values[finite].argmax()))
        chosen = np.array(sorted(kept))
        return Curve(self.steps[chosen], self.values[chosen])


@dataclass(frozen=True)
class RankTimes:
    """What each rank took for a step and held, row by row: [rows, ranks]. At another number of ranks, another one."""

    stage: str
    steps: np.ndarray
    times: np.ndarray
    """When the row was written, in seconds since 1970."""
    columns: Mapping[str, np.ndarray]
    """step_seconds, data_seconds, and where they were measured wait_seconds and memory."""

    @property
    def ranks(self) -> int:
        return int(self.columns["step_seconds"].shape[1])

    def parts(self) -> dict[str, np.ndarray]:
        """Mean seconds of a step by rank, by what they went into: data, waiting where it is known, and the rest."""
        mean = {name: np.nanmean(values, axis=0) for name, values in self.columns.items() if name != "memory"}
        data, wait = mean["data_seconds"], mean.get("wait_seconds")
        rest = mean["step_seconds"] - data - (0 if wait is None else wait)
        found = {"computing": np.maximum(rest, 0), "getting data": data}
        return found if wait is None else {**found, "waiting for other ranks": wait}


def kind_of(name: str) -> str:
    """What kind of metric a name is, as every recipe has it."""
    last = name.rpartition("/")[2]
    if name.startswith(("val/", "validation/", "benchmark/", "pairs/", "test/")):
        return "Validation"
    if last == "loss" or last.endswith("_loss"):
        return "Loss"
    if name.endswith("/s"):
        return "Speed"
    return "Learning rate and gradient" if last in ("lr", "grad_norm", "skipped") else "Metrics"


def matching_names(pattern: str, known: Iterable[str]) -> list[str]:
    """The metric of this name, or those that match such a pattern as `val/*`."""
    names = list(known)
    return [pattern] if pattern in names else [name for name in names if fnmatchcase(name, pattern)]


def read_curves(rundir: RunDir, reader: Reader, *, with_epochs: bool = False) -> dict[str, dict[str, Curve]]:
    """By stage, in the order in which they ran, and by the name of a metric; `with_epochs`: the epoch is one too."""
    pieces: dict[str, dict[str, list[tuple[np.ndarray, np.ndarray]]]] = {}
    for stage, names, block in blocks(reader.rows(rundir.metrics, METRICS, None), with_epochs=with_epochs):
        of_stage = pieces.setdefault(stage, {})
        for place, name in enumerate(names, 1):
            of_stage.setdefault(name, []).append((block[:, 0], block[:, place]))
    return {
        stage: {name: _joined(parts) for name, parts in found.items() if any(len(steps) for steps, _ in parts)}
        for stage, found in pieces.items()
    }


def read_rank_times(rundir: RunDir, reader: Reader) -> list[RankTimes]:
    """By stage and number of ranks, in the order in which they were written."""
    groups: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in reader.rows(rundir.rank_speeds, RANK_ROW, None):
        spent = row.get("step_seconds")
        if row.get("stage") is not None and row.get("step") is not None and row.get("time") is not None and spent:
            groups.setdefault((row["stage"], len(spent)), []).append(row)
    found = []
    for (stage, ranks), rows in groups.items():
        columns = {
            name: np.array([_numbers(row.get(name), ranks) for row in rows])
            for name in ("step_seconds", "data_seconds", "wait_seconds", "memory")
        }
        known = {name: values for name, values in columns.items() if np.isfinite(values).any()}
        steps, times = (np.array([row[name] for row in rows]) for name in ("step", "time"))
        if "step_seconds" in known:
            found.append(RankTimes(stage, steps, times, {"data_seconds": np.zeros_like(columns["memory"])} | known))
    return found


def blocks(
    rows: Iterable[Mapping[str, Any]], *, with_epochs: bool = False
) -> Iterator[tuple[str, Sequence[str], np.ndarray]]:
    """Rows of metrics as arrays: stage, names of metrics, and [rows, step and values]."""
    skipped = _WHERE if with_epochs else (*_WHERE, "epoch")
    waiting: dict[tuple[str, tuple[str, ...]], list[list[Any]]] = {}
    for row in rows:
        stage, step = row.get("stage"), row.get("step")
        if stage is None or step is None:
            continue
        names = tuple(name for name in row if name not in skipped)
        like = waiting.setdefault((stage, names), [])
        like.append([step, *(row[name] for name in names)])
        if len(like) == _AT_ONCE:
            yield stage, names, _array(like)
            like.clear()
    for (stage, names), like in waiting.items():
        if like:
            yield stage, names, _array(like)


def _array(rows: list[list[Any]]) -> np.ndarray:
    """Numbers; NaN stands for what is none."""
    try:
        return np.array(rows, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        return np.array([[_number(value) for value in row] for row in rows])


def _number(value: Any) -> float:
    try:
        return float(value) if isinstance(value, int | float) else np.nan
    except OverflowError:
        return np.nan


def _numbers(values: Any, count: int) -> list[float]:
    is_whole = isinstance(values, list) and len(values) == count
    return [_number(value) for value in values] if is_whole else [np.nan] * count


def _joined(parts: Sequence[tuple[np.ndarray, np.ndarray]]) -> Curve:
    """In the order of steps; of a step that comes again, as after a launch that was killed, the later value."""
    steps, values = (np.concatenate(each) for each in zip(*parts))
    if bool((np.diff(steps) > 0).all()):
        return Curve(steps.astype(np.int64), values)
    last = {step: place for place, step in enumerate(steps.tolist())}
    places = np.array([last[step] for step in sorted(last)])
    return Curve(steps[places].astype(np.int64), values[places])
