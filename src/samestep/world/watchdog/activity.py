"""What the threads of this rank are doing. Training only counts its progress here; the watchdog checks it.

with world.activity.doing("data"):
    rows = load()
world.activity.made_progress()       # inside something long
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

COMPILE_STEPS = 3
"""Steps of a compiled model that may still compile something."""


class ThreadActivity:
    """One thread: its activity, and a count that grows with every sign of progress."""

    def __init__(self, name: str, activity: str) -> None:
        self.name, self.activity = name, activity
        self.thread = threading.get_ident()
        self.progress = 0


class ActivityTracker:
    """What the threads of this rank do."""

    def __init__(self) -> None:
        self.stage, self.step = "", 0
        self._compile_steps_left = 0
        self.threads = [ThreadActivity("main", "start")]

    @contextmanager
    def doing(self, activity: str) -> Iterator[None]:
        """What the calling thread does meanwhile; entering and leaving count as progress."""
        thread = self._own()
        before, thread.activity = thread.activity, activity
        thread.progress += 1
        try:
            yield
        finally:
            thread.activity = before
            thread.progress += 1

    def made_progress(self) -> None:
        """The calling thread made progress."""
        self._own().progress += 1

    @contextmanager
    def stepping(self, stage: str, step: int, *, compiles: bool) -> Iterator[None]:
        """Through the steps of a stage; the first ones of a compiled model may take longer."""
        self.stage, self.step = stage, step
        self._compile_steps_left = COMPILE_STEPS if compiles else 0
        with self.doing("compile" if compiles else "step"):
            yield

    def stepped(self, step: int) -> None:
        """So many steps of the stage are done."""
        self.step = step
        thread = self._own()
        thread.progress += 1
        if self._compile_steps_left:
            self._compile_steps_left -= 1
            thread.activity = "compile" if self._compile_steps_left else "step"

    @contextmanager
    def side_thread(self, name: str, activity: str) -> Iterator[None]:
        """The calling thread runs beside the main one, and is watched as well."""
        thread = ThreadActivity(name, activity)
        self.threads.append(thread)
        try:
            yield
        finally:
            self.threads.remove(thread)

    def _own(self) -> ThreadActivity:
        own = threading.get_ident()
        return next((thread for thread in self.threads if thread.thread == own), self.threads[0])
