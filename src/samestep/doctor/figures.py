"""The figures of metrics.jsonl, the same at any world size and after any kill, but for speed."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from samestep.core.records import JsonLines
from samestep.core.rundir import RunDir
from samestep.doctor.check import distance

Row = Mapping[str, Any]
_PLACE = ("stage", "step", "epoch")


def read_figures(path: Path) -> list[Row]:
    """The rows of a run directory, without what depends on the clock."""
    rows = JsonLines(RunDir(path).metrics)
    return [{name: value for name, value in row.items() if not name.endswith("/s")} for row in rows]


def differing_figure(ours: Sequence[Row], theirs: Sequence[Row], tolerance: float | None = None) -> str:
    """The first figure that differs, as `name at step 3: 1.5 and 1.6`; empty when there is none.

    Without a tolerance every bit counts.
    """
    for a, b in zip(ours, theirs):
        places = [{name: row[name] for name in _PLACE} for row in (a, b)]
        if places[0] != places[1]:
            return f"the row of step {a['step']} stands where step {b['step']} does"
        for name in [*a, *(set(b) - set(a))]:
            if name not in _PLACE and _differ(a.get(name), b.get(name), tolerance):
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


def _differ(a: float | None, b: float | None, tolerance: float | None) -> bool:
    if a is None or b is None or tolerance is None:
        return json.dumps(a) != json.dumps(b)
    return not distance(a, b) <= tolerance
