"""What the loop steps: a task, and where the loop stands."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from samestep.train.logging.metrics import Metrics


@dataclass(frozen=True)
class Tick:
    """Where the loop stands."""

    step: int
    epoch: int
    last_of_epoch: bool


class Task(Protocol):
    """An algorithm: all that the loop knows of it."""

    length: int
    """Steps."""
    state: Mapping[str, Any]
    """What must survive a kill: name to Stateful."""

    def step(self, tick: Tick) -> Metrics:
        """One step; a kill inside replays it whole."""
