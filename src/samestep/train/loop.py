"""The training loop: steps a task, runs the hooks after each step, and stops when the ranks agree to."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

from samestep.core.records import Json
from samestep.train.improvement import Improvement
from samestep.train.logging.metrics import Metrics, MetricValues, checked_metrics
from samestep.train.stop import Stop
from samestep.world.watchdog.activity import ActivityTracker


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


class Outcome(Enum):
    """How a stage ended."""

    DONE = "done"
    PREEMPTED = "preempted"


@dataclass
class Progress:
    """How far a stage has come; checkpoint state."""

    steps_per_epoch: int = 1
    step: int = 0
    """Steps done."""
    best: float | None = None
    """The best value so far of the stage's metric."""
    seconds: float = 0.0
    """Training time so far, over all launches."""
    improvement: Improvement = field(default_factory=Improvement)
    """Whether validations still improve."""
    is_unvalidated: bool = False
    """Whether the validation of the last step failed, so that a resume begins with it."""

    paused_seconds: float = 0.0
    """Seconds spent outside the steps since the last row of metrics (validation, saves)."""
    activity: ActivityTracker = field(default_factory=ActivityTracker)
    """Where the watchdog reads how far this rank is."""
    validation: MetricValues = field(default_factory=dict)
    """The validation metrics of this step; empty where it did not validate."""
    current: int = 0
    """The number of the step that is under way or was done last, counted from 1."""

    @contextmanager
    def outside_steps(self, activity: str) -> Iterator[None]:
        """Leave the time of what is done inside out of the measured speed."""
        began = time.monotonic()
        try:
            with self.activity.doing(activity):
                yield
        finally:
            self.paused_seconds += time.monotonic() - began

    def begin_step(self) -> Tick:
        """The step to do now; the validation of the one before is forgotten, since a resumed run does not know it."""
        self.current, self.validation = self.step + 1, {}
        return self.tick()

    def advance(self) -> None:
        """One more step is done."""
        self.step += 1
        self.activity.stepped(self.step)

    def tick(self) -> Tick:
        """The step to do now."""
        return self.tick_of(self.step)

    def tick_of(self, step: int) -> Tick:
        """A step."""
        epoch, position = divmod(step, self.steps_per_epoch)
        return Tick(step, epoch, last_of_epoch=position == self.steps_per_epoch - 1)

    def has_ended(self, length: int) -> bool:
        """Whether a task of so many steps ends here: it is through, or stops early."""
        return self.step >= length or self.improvement.stops

    def state_dict(self) -> dict[str, Json]:
        """All but what the plan has."""
        improvement = self.improvement.state_dict()
        counts = {"step": self.step, "best": self.best, "seconds": self.seconds, "improvement": improvement}
        return {**counts, "is_unvalidated": self.is_unvalidated}

    def load_state_dict(self, state: dict[str, Json]) -> None:
        """Continue from a saved state."""
        self.step, self.best, self.seconds = state["step"], state["best"], state["seconds"]
        self.current = self.step
        self.improvement.load_state_dict(state["improvement"])
        self.is_unvalidated = state["is_unvalidated"]


class Hook(Protocol):
    """Something to do after a step: log, validate, save."""

    def after_step(self, tick: Tick, metrics: Metrics, last: bool) -> None:
        """Called on every rank after every step; `last` when the task ends with it. A hook with a `name`, `state_dict`
        and `load_state_dict` is saved with the stage."""


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
