"""The verdict on one thing, and when two numbers count as equal."""

import math
from dataclasses import dataclass

TOLERANCE = 1e-8
"""Largest relative difference between world sizes in float64."""
TIE = 1e-6
"""A sampled token may differ where its two best candidates are closer than this."""
_SMALL = 1e-4  # a number far below this is compared as if it were this large: 1e-12 is rounding, not a difference


@dataclass(frozen=True)
class Check:
    """One row of the table: what was looked at, whether it holds (None: not looked at), and what was seen."""

    name: str
    passed: bool | None
    sentence: str


def distance(a: float, b: float, scale: float = 0.0) -> float:
    """The difference relative to the larger of both and of `scale`; infinite where only one is finite."""
    if a == b or (math.isnan(a) and math.isnan(b)):
        return 0.0
    if not (math.isfinite(a) and math.isfinite(b)):
        return math.inf
    return abs(a - b) / max(abs(a), abs(b), scale or _SMALL)


def plural(count: int, noun: str) -> str:
    """`1 step`, `2 steps`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}{'es' if noun.endswith('sh') else 's'}"
