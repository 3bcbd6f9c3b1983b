"""How far a stage has come."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from samestep.core.json_files import Json
from samestep.train.record.improvement import Improvement
from samestep.world.activity import ActivityTracker


@dataclass(frozen=True)
class Tick:
    """The step that the loop is at."""

    step: int
    """The number of the step in its stage, from 0."""
    epoch: int
    """The epoch of the stage's first training feed, from 0."""
    last_of_epoch: bool
    """Whether an epoch of that feed ends with this step."""


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
    validation: Mapping[str, float] = field(default_factory=dict)
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
