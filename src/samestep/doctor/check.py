"""The verdict on one thing, and when two numbers count as equal."""

import math
from dataclasses import dataclass
from enum import StrEnum

_SMALL = 1e-4  # a number far below this is compared as if it were this large: 1e-12 is rounding, not a difference


class Result(StrEnum):
    """What came out of a check."""

    OK = "ok"
    FAILED = "FAILED"
    UNVERIFIABLE = "UNVERIFIABLE"
    """Rounding alone changes so much that a mistake could not be told from it."""
    UNKNOWN = "unknown"
    """It could not be measured, and nothing was concluded from it."""
    NOT_RUN = "not run"


@dataclass(frozen=True)
class Check:
    """One row of the table: what was looked at, what came out, and what was seen."""

    name: str
    result: Result
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
