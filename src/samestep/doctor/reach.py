"""Every trainable parameter gets a gradient at least once, or is declared unused."""

from collections.abc import Sequence
from fnmatch import fnmatchcase

from samestep.doctor.check import Check, Result, plural
from samestep.doctor.trace import Trace

NAME = "every parameter gets a gradient"


def every_parameter_reached(trace: Trace, unused: Sequence[str]) -> Check:
    """A parameter whose gradient is absent or zero in every update learns nothing; a glob in `unused` allows it."""
    reached: dict[str, bool] = {}
    for steps in trace.values():
        for line in (line for step in steps for line in step.updates):
            for name, found in line["gradients"].items():
                whole = f"{line['learner']}.{name}"
                reached[whole] = reached.get(whole, False) or bool(found and found[0] > 0)
    idle = [name for name, once in reached.items() if not once and not _allowed(name, unused)]
    if idle:
        more = f" and {len(idle) - 3} more" if len(idle) > 3 else ""
        return Check(
            NAME,
            Result.FAILED,
            f"{', '.join(idle[:3])}{more} never got one: use it, freeze it (requires_grad_(False)), or declare it in "
            "the recipe's `unused`",
        )
    allowed = sum(not once for once in reached.values())
    return Check(
        NAME, Result.OK, f"{plural(len(reached), 'parameter')}" + (f", {allowed} declared unused" if allowed else "")
    )


def _allowed(name: str, unused: Sequence[str]) -> bool:
    """A pattern may name the parameter with or without its learner."""
    return any(fnmatchcase(name, pattern) or fnmatchcase(name.partition(".")[2], pattern) for pattern in unused)
