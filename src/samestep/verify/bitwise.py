"""After a kill and a resume at the same world size, everything is bit for bit what it would have been."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from samestep.core.records import JsonLines
from samestep.core.rundir import RunDir
from samestep.verify.tolerance import distance
from samestep.verify.trace import Line, RecordedLaunch, Step, where

_CAUSE_ORDER = ("ids", "data", "before", "rows", "weights", "gradients", "hash", "tokens", "figures", "state", "own")
_WORDS = {
    "ids": "the samples differ",
    "data": "the data of the samples differs",
    "before": "the parameters or buffers before the update differ",
    "rows": "the losses differ",
    "weights": "the weights differ",
    "gradients": "the gradients differ",
    "hash": "the parameters differ",
    "tokens": "the sampled tokens differ",
    "figures": "the validation figures differ",
    "state": "the state differs",
    "own": "the rank's own state differs",
}


def first_change(wanted: RecordedLaunch, found: RecordedLaunch) -> str:
    """The first thing in which a launch is not, bit for bit, the uninterrupted one; empty when there is none."""
    trace = wanted.trace()
    for key in found.trace():
        for rank, steps in enumerate(found.ranks):
            reference = wanted.ranks[rank].get(key)
            if key not in steps:
                continue
            if reference is None:
                return f"{where(key, trace)} does not happen in the uninterrupted run"
            change = _change(reference, steps[key])
            if change:
                return f"from {where(key, trace)} on {change} (rank {rank})"
    return ""


def _change(wanted: Step, found: Step) -> str:
    for name in ("draws", "updates", "validations"):
        ours, theirs = _once(getattr(wanted, name)), _once(getattr(found, name))
        if len(theirs) > len(ours) or (found.mark is not None and len(theirs) != len(ours)):
            return f"there are {len(theirs)} {name} and not {len(ours)}"
        for a, b in zip(ours, theirs):
            change = _line_change(a, b)
            if change:
                return change
    return _line_change(wanted.mark, found.mark) if wanted.mark and found.mark else ""


def _once(lines: Sequence[Line]) -> list[Line]:
    """Without repeats: the discarded pass before a process's first update may draw the same tokens again."""
    return list({json.dumps(line, sort_keys=True): line for line in lines}.values())


def _line_change(wanted: Line, found: Line) -> str:
    names = [name for name in {**wanted, **found} if _differ(wanted.get(name), found.get(name))]
    names.sort(key=lambda name: _CAUSE_ORDER.index(name) if name in _CAUSE_ORDER else len(_CAUSE_ORDER))
    if not names:
        return ""
    return _WORDS.get(names[0], f"{names[0]} differs") + _which(wanted.get(names[0]), found.get(names[0]))


def _which(wanted: object, found: object) -> str:
    """The names under which a mapping differs."""
    if not isinstance(wanted, Mapping) or not isinstance(found, Mapping):
        return ""
    names = [name for name in {**wanted, **found} if _differ(wanted.get(name), found.get(name))]
    return f" ({_listed(names)})"


def _listed(names: Sequence[str], most: int = 3) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _differ(a: object, b: object) -> bool:
    """By text, in which NaN equals itself."""
    return json.dumps(a, sort_keys=True) != json.dumps(b, sort_keys=True)


Row = Mapping[str, Any]
_PLACE = ("stage", "step", "epoch")


def read_metrics(path: Path) -> list[Row]:
    """The rows of a run directory, without what depends on the clock."""
    rows = JsonLines(RunDir(path).metrics)
    return [{name: value for name, value in row.items() if not name.endswith("/s")} for row in rows]


def differing_metric(ours: Sequence[Row], theirs: Sequence[Row], tolerance: float | None = None) -> str:
    """The first figure that differs, as `name at step 3: 1.5 and 1.6`; empty when there is none.

    Without a tolerance every bit counts.
    """
    for a, b in zip(ours, theirs):
        places = [{name: row[name] for name in _PLACE} for row in (a, b)]
        if places[0] != places[1]:
            return f"the row of step {a['step']} stands where step {b['step']} does"
        for name in [*a, *(set(b) - set(a))]:
            if name not in _PLACE and _rows_differ(a.get(name), b.get(name), tolerance):
                return f"{name} at step {a['step']}: {a.get(name)} and {b.get(name)}"
    if len(ours) != len(theirs):
        return f"{len(ours)} and {len(theirs)} rows"
    return ""


def largest_difference(ours: Sequence[Row], theirs: Sequence[Row]) -> tuple[float, str]:
    """The largest relative difference between figures that both have, and which one it is."""
    found = [
        (distance(a[name], b[name]), f"{name} at step {a['step']}")
        for a, b in zip(ours, theirs)
        for name in a
        if name not in _PLACE and a[name] is not None and b.get(name) is not None
    ]
    return max(found, default=(0.0, ""))


def _rows_differ(a: float | None, b: float | None, tolerance: float | None) -> bool:
    if a is None or b is None or tolerance is None:
        return json.dumps(a) != json.dumps(b)
    return not distance(a, b) <= tolerance
