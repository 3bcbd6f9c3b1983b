"""The training loop: steps a task, runs the hooks after each step, and stops when the ranks agree to."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from samestep.core.errors import UserError
from samestep.train.logging.metrics import Metrics, checked_metrics
from samestep.train.record.progress import Progress, Tick
from samestep.train.record.stop import Stop


class Task(Protocol):
    """A training algorithm, as the loop sees it."""

    length: int
    """Steps."""
    state: Mapping[str, Any]
    """What a checkpoint must hold: name to Stateful."""

    def step(self, tick: Tick) -> Metrics:
        """One step; after a kill inside, all of it is done again."""


class Outcome(Enum):
    """How a stage ended."""

    DONE = "done"
    PREEMPTED = "preempted"


class Hook(Protocol):
    """Something to do after a step: log, validate, save."""

    def after_step(self, tick: Tick, metrics: Metrics, last: bool) -> None:
        """Called on every rank after every step; `last` when the task ends with it. A hook with a `name`, `state_dict`
        and `load_state_dict` is saved with the stage."""


@dataclass(frozen=True)
class Every:
    """Calls `function(tick)` on every rank after every `steps` steps."""

    steps: int
    """1 is every step."""
    function: Callable[[Tick], object]
    """What to call, with the step that has just been made."""

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise UserError(f"Every needs a number of steps of at least 1, not {self.steps}")

    def after_step(self, tick: Tick, metrics: Metrics, last: bool) -> None:
        """Call the function when it is time."""
        if (tick.step + 1) % self.steps == 0:
            self.function(tick)


def run(
    task: Task, progress: Progress, hooks: Sequence[Hook], stop: Stop, begin: Callable[[], None] = lambda: None
) -> Outcome:
    """Step the task to its end, or to the agreed stop. `begin` is what comes before the first step of this launch."""
    with stop.leaving_steps():
        begin()
        while not progress.has_ended(task.length):
            if stop.agreed():
                return Outcome.PREEMPTED
            tick = progress.begin_step()
            metrics = checked_metrics(task.step(tick))
            progress.advance()
            for hook in hooks:
                hook.after_step(tick, metrics, last=progress.has_ended(task.length))  # a validation may end the stage
        return Outcome.DONE
    return Outcome.PREEMPTED  # it left a step
