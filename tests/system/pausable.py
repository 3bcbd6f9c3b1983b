"""The toy recipe of the fault suite, with a pause: a run waits in the middle for as long as a test needs.

While the file `pause_file` exists, the run does only its first steps and then waits, until it is asked to stop, or
until its time is up where a job of PBS tells it the time. So whatever a test does to a run, it does in the middle of
it, however slow the machine is.
"""

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType

from faults import toy
from samestep import Bench, Recipe, Stage, Tick
from samestep.core import launch_env
from samestep.core.config import free
from samestep.train.logging.metrics import Metrics

NAME = "system.pausable"
PAUSE_STEP = 4
"""Steps that a run does before it pauses."""


@dataclass(frozen=True)
class PausableConfig(toy.Toy):
    """The toy, with a pause."""

    pause_file: str = free("")
    """A file; while it exists, the run pauses."""


class PausableFit:
    """Fits the toy, and pauses before step `PAUSE_STEP`."""

    def __init__(self, bench: Bench) -> None:
        self.fit, self.pause_file = toy.build(bench), bench.config.pause_file
        self.length, self.state = self.fit.length, self.fit.state
        self.handles_signals = self.stop_requested = False

    def step(self, tick: Tick) -> Metrics:
        if not self.handles_signals:
            self._handle_signals()
        while tick.step == PAUSE_STEP and self.pause_file and Path(self.pause_file).exists() and not self._must_stop():
            time.sleep(0.02)
        return self.fit.step(tick)

    def _must_stop(self) -> bool:
        left = launch_env.seconds_left(None, os.environ)
        return self.stop_requested or (left is not None and left <= 0)

    def _handle_signals(self) -> None:
        """End the pause as soon as the run is asked to stop; then call the handler of samestep."""
        self.handles_signals = True
        for number in (signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, partial(self._receive, signal.getsignal(number)))

    def _receive(self, handler: Callable[..., None], number: int, frame: FrameType | None) -> None:
        self.stop_requested = True
        handler(number, frame)


recipe = Recipe(
    config=PausableConfig,
    stages=lambda config: [
        Stage("fit", PausableFit, validate=lambda task, tick: task.fit.validate(tick), best=("val/error", "min"))
    ],
)
