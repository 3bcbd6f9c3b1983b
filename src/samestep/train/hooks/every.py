"""A hook that calls a function every so many steps."""

from collections.abc import Callable
from dataclasses import dataclass

from samestep.core.errors import UserError
from samestep.train.logging.metrics import Metrics
from samestep.train.loop import Tick


@dataclass(frozen=True)
class Every:
    """Calls `function(tick)` on every rank after every `steps` steps."""

    steps: int
    function: Callable[[Tick], object]

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise UserError(f"Every needs a number of steps of at least 1, not {self.steps}")

    def after_step(self, tick: Tick, metrics: Metrics, last: bool) -> None:
        """Call the function when it is time."""
        if (tick.step + 1) % self.steps == 0:
            self.function(tick)
