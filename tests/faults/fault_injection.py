"""Runs in the workers in place of plain training: the same training, with a fault injected at a chosen moment."""

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
"""The phases of the commit protocol, and the ranks that go through them."""
CLOCK_JUMPS = (0.0, 3600.0, -86400.0, 5.0, -400.0 * 86400.0)


@dataclass(frozen=True)
class SaveFault:
    """A signal that ranks send to themselves when the save of a step reaches a phase; or a disk that fills up."""

    step: int
    phase: str
    ranks: tuple[int, ...]
    signal_number: int = signal.SIGKILL
    fill_file: str = ""
    """If set: a file that takes all the free space of the disk, instead of the signal."""

    def inject(self) -> None:
        """Send the signal, or fill the disk."""
        if self.fill_file:
            fill_disk(Path(self.fill_file))
        else:
            os.kill(os.getpid(), self.signal_number)


def train_with_fault(fault: SaveFault, recipe: str, config: Mapping[str, Any]) -> int:
    """Train, with a fault during a save."""

    class FaultyStore(store_module.Store):
        def write(self, snapshot: Any) -> Any:
            def reached(phase: str) -> None:
                if (snapshot.step, phase) == (fault.step, fault.phase) and self.world.rank in fault.ranks:
                    fault.inject()

            self._on_phase = reached
            return super().write(snapshot)

    stage_run.Store = FaultyStore  # type: ignore[attr-defined]
    return train_with(recipe, config)


def fill_disk(path: Path) -> None:
    """Write to `path` until the disk is full."""
    with open(path, "ab", buffering=0) as file:
        size = 1 << 16
        while size:
            try:
                file.write(b"x" * size)
            except OSError:
                size //= 2


def train_with_jumping_clock(fault: SaveFault | None, recipe: str, config: Mapping[str, Any]) -> int:
    """Train while the wall clock jumps back and forth, by seconds and by years, each time it is read."""
    jumps, real = itertools.cycle(CLOCK_JUMPS), time.time

    class JumpingDatetime(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> "JumpingDatetime":
            return cls.fromtimestamp(time.time(), tz)

    time.time = lambda: real() + next(jumps)
    store_module.datetime = JumpingDatetime  # type: ignore[attr-defined]
    return train_with_fault(fault, recipe, config) if fault else train_with(recipe, config)
