"""Values by optimizer step: the Gumbel temperature, the weight of a term, when a part begins to train.

Lengths are texts: "500s" are 500 optimizer steps, "2e" are 2 epochs, and -1 is the whole stage.
"""

import math
import re
from dataclasses import dataclass
from typing import Literal

from samestep import UserError
from samestep.core.config.checked import CheckedConfig

WHOLE_STAGE = "-1"
_LENGTH = re.compile(r"(\d+)\s*([se]?)")


def steps_of(length: str, steps_per_epoch: int, stage_steps: int) -> int:
    """A length in optimizer steps."""
    if length.strip() == WHOLE_STAGE:
        return stage_steps
    found = _LENGTH.fullmatch(length.strip())
    if found is None:
        raise UserError(
            f"Write a length as 500s (optimizer steps), 2e (epochs) or -1 (the whole stage), not {length!r}."
        )
    return int(found[1]) * (steps_per_epoch if found[2] == "e" else 1)


@dataclass(frozen=True)
class ValueSchedule(CheckedConfig):
    """A number as a function of the optimizer step: from `start` to `end`, then constant."""

    type: Literal["constant", "linear", "cosine", "exponential"] = "constant"
    """The shape of the way from start to end; constant: start all the time."""
    start: float = 1.0
    """The value at the first step."""
    end: float = 1.0
    """The value after num_steps."""
    num_steps: str = WHOLE_STAGE
    """How long it takes: 500s (optimizer steps), 2e (epochs), -1 (the whole stage)."""

    def __post_init__(self) -> None:
        """Refuse what has no value at some step."""
        if steps_of(self.num_steps, 1, 1) < 1:
            raise UserError(f"Set num_steps of a schedule to 1 step or more, or to -1; it is {self.num_steps}.")
        if self.type == "exponential" and min(self.start, self.end) <= 0:
            raise UserError("Set start and end of an exponential schedule above 0.")

    @property
    def least(self) -> float:
        """The smallest value that it takes."""
        return self.start if self.type == "constant" else min(self.start, self.end)

    def at(self, step: int, steps_per_epoch: int, stage_steps: int) -> float:
        """The value of a step, counted from 0; before it, that of the first. The last step of its length has the value
        `end`, unless it is also the first."""
        steps = steps_of(self.num_steps, steps_per_epoch, stage_steps)
        done = min(1.0, max(0, step) / max(1, steps - 1))
        if self.type == "constant":
            return self.start
        if self.type == "exponential":
            return self.start * (self.end / self.start) ** done
        if self.type == "cosine":
            done = (1 - math.cos(math.pi * done)) / 2
        return self.start + (self.end - self.start) * done
