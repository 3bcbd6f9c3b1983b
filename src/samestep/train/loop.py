"""The loop. It owns time, cadence and stopping; what a step does is the task's affair."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from samestep.core.records import Json
from samestep.train.logging.metrics import Metrics
from samestep.train.stop import Stop
from samestep.train.task import Task, Tick
from samestep.world.watchdog.activity import ActivityTracker


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
    """The best agreed figure so far."""
    seconds: float = 0.0
    """Training time so far, over all launches."""

    aside: float = 0.0
    """Seconds spent beside the steps since the last row of figures (validation, saves)."""
    watch: ActivityTracker = field(default_factory=ActivityTracker)
    """Where the watchdog sees how far this rank is."""

    @contextmanager
    def beside_the_steps(self, activity: str) -> Iterator[None]:
        """Keep what is done inside out of the speed figures."""
        began = time.monotonic()
        try:
            with self.watch.doing(activity):
                yield
        finally:
            self.aside += time.monotonic() - began

    def advance(self) -> None:
        """One more step is done."""
        self.step += 1
        self.watch.stepped(self.step)

    def tick(self) -> Tick:
        """The step to do now."""
        epoch, place = divmod(self.step, self.steps_per_epoch)
        return Tick(self.step, epoch, last_of_epoch=place == self.steps_per_epoch - 1)

    def state_dict(self) -> dict[str, Json]:
        """All of it, but for what the plan knows."""
        return {"step": self.step, "best": self.best, "seconds": self.seconds}

    def load_state_dict(self, state: dict[str, Json]) -> None:
        """Go on from there."""
        self.step, self.best, self.seconds = state["step"], state["best"], state["seconds"]


class Hook(Protocol):
    """Something that happens now and then: log, validate, save."""

    def after_step(self, tick: Tick, metrics: Metrics, last: bool) -> None:
        """Called on every rank after every step; `last` when the task ends with it."""


def run(task: Task, progress: Progress, every: Sequence[Hook], stop: Stop) -> Outcome:
    """Step the task to its end, or to the agreed stop."""
    while progress.step < task.length:
        if stop.agreed():
            return Outcome.PREEMPTED
        tick = progress.tick()
        metrics = task.step(tick)
        progress.advance()
        for event in every:
            event.after_step(tick, metrics, last=progress.step == task.length)
    return Outcome.DONE
