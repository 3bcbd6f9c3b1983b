"""Bounds of numbers, declared in a field's type: `epochs: Count = 1`, or `Annotated[float, Bounds(above=0, most=2)]`.

Every number must be finite, and every whole number must fit in 64 bits, whether its field declares bounds or not.
"""

import math
from dataclasses import dataclass
from typing import Annotated, Any, get_args, get_origin

_WORDS = {"least": "at least", "above": "above", "most": "at most", "below": "below"}
_SIGNS = {"least": ">=", "above": ">", "most": "<=", "below": "<"}


@dataclass(frozen=True)
class Bounds:
    """The numbers that a field takes."""

    least: float | None = None
    """The smallest one."""
    above: float | None = None
    """All are larger than this."""
    most: float | None = None
    """The largest one."""
    below: float | None = None
    """All are smaller than this."""
    finite: bool = True
    """Whether infinities and NaN are refused."""

    def allow(self, value: float) -> bool:
        if is_infinite_or_nan(value):
            return not self.finite
        return (
            (self.least is None or value >= self.least)
            and (self.above is None or value > self.above)
            and (self.most is None or value <= self.most)
            and (self.below is None or value < self.below)
        )

    def text(self) -> str:
        """For a sentence, after "a number": `of at least 0 and below 1`."""
        if not self._limits():
            return "that is finite" if self.finite else ""
        found = " and ".join(f"{_WORDS[name]} {limit}" for name, limit in self._limits())
        return f"of {found}" if found.startswith("at ") else found

    def signs(self) -> str:
        """For a table: `>= 0, < 1`."""
        return ", ".join(f"{_SIGNS[name]} {limit}" for name, limit in self._limits())

    def _limits(self) -> list[tuple[str, str]]:
        limits = [(name, getattr(self, name)) for name in _WORDS]
        return [(name, str(limit)) for name, limit in limits if limit is not None]


Count = Annotated[int, Bounds(least=1)]
"""How many, where none makes no sense."""
CountOrZero = Annotated[int, Bounds(least=0)]
"""How many, where 0 means none or never."""
Positive = Annotated[float, Bounds(above=0)]
"""A rate, a temperature to divide by, a length of time."""
NotNegative = Annotated[float, Bounds(least=0)]
"""A weight or a strength, where 0 means none."""
Share = Annotated[float, Bounds(least=0, most=1)]
"""A part of a whole, or a probability."""
PartialShare = Annotated[float, Bounds(above=0, below=1)]
"""A part of a whole that is neither nothing nor everything."""
Decay = Annotated[float, Bounds(least=0, below=1)]
"""What an average keeps at each step."""

_OF_TYPE = {int: Bounds(least=-(2**63), most=2**63 - 1), float: Bounds()}


def bare(tp: Any) -> Any:
    """A type without its bounds."""
    return get_args(tp)[0] if get_origin(tp) is Annotated else tp


def bounds_of(tp: Any) -> Bounds | None:
    """The bounds that a type declares, if it does."""
    return next((each for each in get_args(tp) if isinstance(each, Bounds)), None)


def is_infinite_or_nan(value: float) -> bool:
    """Whether a number is none that can be computed with. An int may be too large for a float, and is finite."""
    return isinstance(value, float) and not math.isfinite(value)


def broken_bounds(value: Any, tp: Any) -> Bounds | None:
    """The bounds that a value of this type breaks: those that it declares, or those of all numbers of the type."""
    declared, general = bounds_of(tp), _OF_TYPE.get(bare(tp))
    if general is None or (declared is not None and not declared.finite and is_infinite_or_nan(value)):
        return None
    if not general.allow(value):
        return general
    return None if declared is None or declared.allow(value) else declared
