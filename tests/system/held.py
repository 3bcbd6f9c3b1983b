"""The toy of the fault suite, but it can be held: a run waits in the middle for as long as a test needs.

While the file `gate` is there, only the first steps are done, until the run is asked to stop. So whatever a test does
to a run, it does in the middle of it, however slow the machine is.
"""

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType

from faults import toy
from samestep import Bench, Recipe, Stage, Tick
from samestep.core.config import free
from samestep.train.logging.metrics import Metrics

NAME = "system.held"
HELD = 4
"""Steps that are done at a closed gate."""


@dataclass(frozen=True)
class Held(toy.Toy):
    """The toy, with a gate."""

    gate: str = free("")
    """A file; while it is there, the run waits."""


class HeldFit:
    """Fits the toy, and waits at the gate."""

    def __init__(self, bench: Bench) -> None:
        self.fit, self.gate = toy.build(bench), bench.config.gate
        self.length, self.state = self.fit.length, self.fit.state
        self.listens = self.asked = False

    def step(self, tick: Tick) -> Metrics:
        if not self.listens:
            self._listen()
        while tick.step == HELD and not self.asked and self.gate and Path(self.gate).exists():
            time.sleep(0.02)
        return self.fit.step(tick)

    def _listen(self) -> None:
        """Hear of it when the run is asked to stop, as soon as it is."""
        self.listens = True
        for number in (signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, partial(self._receive, signal.getsignal(number)))

    def _receive(self, handler: Callable[..., None], number: int, frame: FrameType | None) -> None:
        self.asked = True
        handler(number, frame)


recipe = Recipe(
    config=Held,
    stages=lambda config: [
        Stage("fit", HeldFit, validate=lambda held, tick: held.fit.validate(tick), best=("val/error", "min"))
    ],
)
