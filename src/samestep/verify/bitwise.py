"""Compares runs bit for bit: after a kill and a resume at the same world size, nothing may differ."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from samestep.core.json_files import JsonLines
from samestep.core.rundir import RunDir
from samestep.verify.tolerance import distance
from samestep.verify.trace import Line, RecordedLaunch, Step, describe_step

# Keys of the evidence files; "metrics" are validation metrics.
_CAUSE_ORDER = ("ids", "data", "before", "rows", "weights", "gradients", "hash", "tokens", "metrics", "state", "own")
_TEXTS = {
    "ids": "the samples differ",
    "data": "the data of the samples differs",
    "before": "the parameters or buffers before the update differ",
    "rows": "the losses differ",
    "weights": "the weights differ",
    "gradients": "the gradients differ",
    "hash": "the parameters differ",
    "tokens": "the sampled tokens differ",
    "metrics": "the validation metrics differ",
    "state": "the state differs",
    "own": "the rank's own state differs",
}


def first_change(expected: RecordedLaunch, found: RecordedLaunch) -> str:
    """The first thing in which a launch differs from the uninterrupted one in any bit; empty when nothing does."""
    trace = expected.trace()
    for key in found.trace():
        for rank, steps in enumerate(found.ranks):
            reference = expected.ranks[rank].get(key)
            if key not in steps:
                continue
            if reference is None:
                return f"{describe_step(key, trace)} does not happen in the uninterrupted run"
            change = _change(reference, steps[key])
            if change:
                return f"from {describe_step(key, trace)} on {change} (rank {rank})"
    return ""


def _change(expected: Step, found: Step) -> str:
    for name in ("draws", "updates", "validations"):
        ours, theirs = _without_repeats(getattr(expected, name)), _without_repeats(getattr(found, name))
        if len(theirs) > len(ours) or (found.closing_line is not None and len(theirs) != len(ours)):
            return f"there are {len(theirs)} {name} and not {len(ours)}"
        for a, b in zip(ours, theirs):
            change = _line_change(a, b)
            if change:
                return change
    return (
        _line_change(expected.closing_line, found.closing_line) if expected.closing_line and found.closing_line else ""
    )


def _without_repeats(lines: Sequence[Line]) -> list[Line]:
    """The discarded pass before a process's first update may draw the same tokens again."""
    return list({json.dumps(line, sort_keys=True): line for line in lines}.values())


def _line_change(expected: Line, found: Line) -> str:
    names = [name for name in {**expected, **found} if _differ(expected.get(name), found.get(name))]
    names.sort(key=lambda name: _CAUSE_ORDER.index(name) if name in _CAUSE_ORDER else len(_CAUSE_ORDER))
    if not names:
        return ""
    return _TEXTS.get(names[0], f"{names[0]} differs") + _which(expected.get(names[0]), found.get(names[0]))


def _which(expected: object, found: object) -> str:
    """The names whose values differ, in parentheses, where both are mappings."""
    if not isinstance(expected, Mapping) or not isinstance(found, Mapping):
        return ""
    names = [name for name in {**expected, **found} if _differ(expected.get(name), found.get(name))]
    return f" ({_listed(names)})"


def _listed(names: Sequence[str], most: int = 3) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _differ(a: object, b: object) -> bool:
    """Compared as text, in which NaN equals itself."""
    return json.dumps(a, sort_keys=True) != json.dumps(b, sort_keys=True)


MetricsRow = Mapping[str, Any]
"""A row of metrics.jsonl."""
_POSITION = ("stage", "step", "epoch")


def read_metrics(path: Path) -> list[MetricsRow]:
    """The rows of metrics.jsonl in a run directory, without those values that depend on the clock."""
    rows = JsonLines(RunDir(path).metrics)
    return [{name: value for name, value in row.items() if not name.endswith("/s")} for row in rows]


def differing_metric(ours: Sequence[MetricsRow], theirs: Sequence[MetricsRow], tolerance: float | None = None) -> str:
    """The first metric that differs, as `name at step 3: 1.5 and 1.6`; empty when none does.

    Without a tolerance every bit counts.
    """
    for a, b in zip(ours, theirs):
        positions = [{name: row[name] for name in _POSITION} for row in (a, b)]
        if positions[0] != positions[1]:
            return f"there is a row of step {a['step']} where the other run has step {b['step']}"
        for name in [*a, *(set(b) - set(a))]:
            if name not in _POSITION and _values_differ(a.get(name), b.get(name), tolerance):
                return f"{name} at step {a['step']}: {a.get(name)} and {b.get(name)}"
    if len(ours) != len(theirs):
        return f"{len(ours)} and {len(theirs)} rows"
    return ""


def largest_difference(ours: Sequence[MetricsRow], theirs: Sequence[MetricsRow]) -> tuple[float, str]:
    """The largest relative difference between metrics that both have, and which one it is."""
    found = [
        (distance(a[name], b[name]), f"{name} at step {a['step']}")
        for a, b in zip(ours, theirs)
        for name in a
        if name not in _POSITION and a[name] is not None and b.get(name) is not None
    ]
    return max(found, default=(0.0, ""))


def _values_differ(a: float | None, b: float | None, tolerance: float | None) -> bool:
    if a is None or b is None or tolerance is None:
        return json.dumps(a) != json.dumps(b)
    return not distance(a, b) <= tolerance
