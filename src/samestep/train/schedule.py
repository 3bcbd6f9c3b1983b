"""The learning rate as a function of the step: nothing to save, nothing to step."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Schedule:
    """Warm-up, then a course from the peak down to `floor` times it."""

    peak: float
    steps: int
    warmup: int = 0
    kind: str = "constant"
    floor: float = 0.0
    decay: int = 0
    """Steps of the final decay (wsd only)."""

    def __call__(self, step: int) -> float:
        """The rate of update number `step`, counted from 0."""
        if step < self.warmup:
            return self.peak * (step + 1) / self.warmup
        after = self.warmup
        if self.kind == "wsd":
            after = max(self.warmup, self.steps - self.decay)
        done = min(1.0, max(0.0, (step - after) / max(1, self.steps - after)))
        return self.peak * (self.floor + (1 - self.floor) * self._course(done))

    def _course(self, done: float) -> float:
        if self.kind == "constant":
            return 1.0
        if self.kind == "cosine":
            return 0.5 * (1 + math.cos(math.pi * done))
        return 1.0 - done  # linear, and wsd's decay
