"""What the threads of this rank are doing. Training only counts its moves here; the watchdog does all the looking.

with world.watch.doing("data"):
    rows = load()
world.watch.moved()                  # a sign of progress inside something long
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

COMPILING = 3
"""Steps of a compiled model that may still compile something."""


class Lane:
    """One thread: its activity, and a count of its moves, which stands still when the thread makes no progress."""

    def __init__(self, name: str, activity: str) -> None:
        self.name, self.activity = name, activity
        self.thread = threading.get_ident()
        self.moves = 0


class Watch:
    """What this rank does."""

    def __init__(self) -> None:
        self.stage, self.step = "", 0
        self._compiling = 0
        self.lanes = [Lane("main", "start")]

    @contextmanager
    def doing(self, activity: str) -> Iterator[None]:
        """What the calling thread does meanwhile; entering and leaving are signs of progress."""
        lane = self._mine()
        before, lane.activity = lane.activity, activity
        lane.moves += 1
        try:
            yield
        finally:
            lane.activity = before
            lane.moves += 1

    def moved(self) -> None:
        """The calling thread made progress."""
        self._mine().moves += 1

    @contextmanager
    def stepping(self, stage: str, step: int, *, compiles: bool) -> Iterator[None]:
        """Through the steps of a stage; the first ones of a compiled model may take longer."""
        self.stage, self.step = stage, step
        self._compiling = COMPILING if compiles else 0
        with self.doing("compile" if compiles else "step"):
            yield

    def stepped(self, step: int) -> None:
        """So many steps of the stage are done."""
        self.step = step
        lane = self._mine()
        lane.moves += 1
        if self._compiling:
            self._compiling -= 1
            lane.activity = "compile" if self._compiling else "step"

    @contextmanager
    def beside(self, name: str, activity: str) -> Iterator[None]:
        """The calling thread works beside the main one, and is watched as well."""
        lane = Lane(name, activity)
        self.lanes.append(lane)
        try:
            yield
        finally:
            self.lanes.remove(lane)

    def _mine(self) -> Lane:
        own = threading.get_ident()
        return next((lane for lane in self.lanes if lane.thread == own), self.lanes[0])
