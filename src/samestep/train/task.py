"""What the loop steps: a task, and the tick that it is given."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from samestep.train.logging.metrics import Metrics


@dataclass(frozen=True)
class Tick:
    """The step that the loop is at."""

    step: int
    epoch: int
    last_of_epoch: bool


class Task(Protocol):
    """A training algorithm, as the loop sees it."""

    length: int
    """Steps."""
    state: Mapping[str, Any]
    """What a checkpoint must hold: name to Stateful."""

    def step(self, tick: Tick) -> Metrics:
        """One step; after a kill inside, all of it is done again."""
