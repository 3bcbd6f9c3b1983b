"""After a kill and a resume at the same world size, everything is bit for bit what it would have been."""

import json
from collections.abc import Mapping, Sequence

from samestep.doctor.compare import where
from samestep.doctor.trace import Launch, Line, Step

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


def first_change(wanted: Launch, found: Launch) -> str:
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
