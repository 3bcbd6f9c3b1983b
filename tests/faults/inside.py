"""What runs in the workers in place of training as it is: the same, but with a blow at a chosen instant."""

import itertools
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, tzinfo
from pathlib import Path
from typing import Any

from samestep.checkpoint import store as store_module
from samestep.train.session import stage_run
from samestep.train.session.entry import train_with

PHASES = {
    "staged": (0, 1),
    "written": (0, 1),
    "reported": (0, 1),
    "manifest": (0,),
    "replaced": (0,),
    "renamed": (0,),
    "pruned": (0,),
}
"""The steps of the commit protocol, and the ranks that take them."""
JUMPS = (0.0, 3600.0, -86400.0, 5.0, -400.0 * 86400.0)


@dataclass(frozen=True)
class Blow:
    """A signal that ranks send to themselves when the save of a step has come to a phase; or a disk that fills up."""

    step: int
    phase: str
    ranks: tuple[int, ...]
    number: int = signal.SIGKILL
    ballast: str = ""
    """A file that then takes all that is left of the disk, in place of the signal."""

    def strike(self) -> None:
        """Do it."""
        if self.ballast:
            fill(Path(self.ballast))
        else:
            os.kill(os.getpid(), self.number)


def train_under(blow: Blow, recipe: str, config: Mapping[str, Any]) -> int:
    """Train, with a blow inside a save."""

    class Struck(store_module.Store):
        def write(self, snapshot: Any) -> Any:
            def reached(phase: str) -> None:
                if (snapshot.step, phase) == (blow.step, blow.phase) and self.world.rank in blow.ranks:
                    blow.strike()

            self._on_phase = reached
            return super().write(snapshot)

    stage_run.Store = Struck  # type: ignore[attr-defined]
    return train_with(recipe, config)


def fill(path: Path) -> None:
    """Write to `path` until the disk is full."""
    with open(path, "ab", buffering=0) as file:
        size = 1 << 16
        while size:
            try:
                file.write(b"x" * size)
            except OSError:
                size //= 2


def train_in_odd_time(blow: Blow | None, recipe: str, config: Mapping[str, Any]) -> int:
    """Train while the clock on the wall jumps to and fro, by seconds and by years, at every look."""
    jumps, real = itertools.cycle(JUMPS), time.time

    class Jumping(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> "Jumping":
            return cls.fromtimestamp(time.time(), tz)

    time.time = lambda: real() + next(jumps)
    store_module.datetime = Jumping  # type: ignore[attr-defined]
    return train_under(blow, recipe, config) if blow else train_with(recipe, config)
