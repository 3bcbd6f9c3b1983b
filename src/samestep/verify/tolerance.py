"""How far apart two runs may be: as far as rounding alone moves them, which rounding.py measures."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf

_SMALL = 1e-4  # a number far below this is compared as if it were this large: 1e-12 is rounding, not a difference


class ProofStatus(StrEnum):
    """The result of a check."""

    OK = "ok"
    FAILED = "FAILED"
    UNVERIFIABLE = "UNVERIFIABLE"
    """Rounding alone changes so much that a mistake cannot be distinguished from it."""
    UNKNOWN = "unknown"
    """It could not be measured, so nothing follows from it."""
    NOT_RUN = "not run"


@dataclass(frozen=True)
class CheckResult:
    """One row of the table: what was checked, the result, and the evidence."""

    name: str
    result: ProofStatus
    sentence: str


def distance(a: float, b: float, scale: float = 0.0) -> float:
    """The difference relative to the larger of both and of `scale`; infinite where only one is finite."""
    if a == b or (math.isnan(a) and math.isnan(b)):
        return 0.0
    if not (math.isfinite(a) and math.isfinite(b)):
        return math.inf
    return abs(a - b) / max(abs(a), abs(b), scale or _SMALL)


TOLERANCE = 1e-8
"""Largest relative difference that always passes in float64."""
TIE = 1e-6
"""A sampled token may differ where its two best candidates are closer than this."""
MARGIN = 10.0
"""Differences up to so many times the floor pass: rounding differs from run to run."""
EXACT = 1e-10
"""A run that computes in float64 throughout moves by less than this, also where sums of hundreds of terms cancel."""
FLOAT32 = 1.2e-7
"""The smallest step of float32: where something computes in it, any number may move by that, measured or not."""
WORST = 1e-4
"""A tolerance beyond this proves nothing: real mistakes may be no larger."""
SUBJECTS = {"losses": "losses", "gradients": "gradients", "validation": "validation", "metrics": "logged metrics"}
"""Subjects that have a floor, and their names in messages."""


@dataclass(frozen=True)
class Floor:
    """The largest difference that rounding alone makes, by subject, where it was measured."""

    measured: Mapping[str, float] = field(default_factory=dict)
    where: Mapping[str, str] = field(default_factory=dict)
    """Where the largest difference of a subject was."""
    unlimited: bool = False
    """For the measurement itself: every difference passes, so that all of them are measured."""

    def tolerance(self, subject: str) -> float:
        """The largest difference that passes; infinite where nothing can be proved."""
        least = 0.0 if self.exact else FLOAT32
        limit = max(TOLERANCE, MARGIN * max(least, self.measured.get(subject, 0.0)))
        return inf if self.unlimited or limit > WORST else limit

    @property
    def exact(self) -> bool:
        """Whether nothing moves by more than float64 rounds."""
        return max(self.measured.values(), default=0.0) <= EXACT

    @property
    def tie(self) -> float:
        """A sampled token may differ where its two best candidates are closer than this."""
        return self.tolerance("losses") / TOLERANCE * TIE

    @property
    def unverifiable(self) -> list[str]:
        return [subject for subject in SUBJECTS if self.tolerance(subject) == inf]


STRICT = Floor()
"""Nothing was measured: the tolerance of float64."""
