"""What the threads of this rank are doing. Training only counts its progress here; the watchdog checks it.

with world.activity.doing("data"):
    rows = load()
world.activity.made_progress()       # inside something long
"""

import statistics
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from types import CodeType

from samestep.core.json_files import Json
from samestep.world.source_lines import StackFrame, calling_frame, describe, frames_of

COMPILE_STEPS = 3
"""Steps of a compiled model that may still compile something."""
_LEAST_GAPS, _MOST_GAPS = 10, 100
"""From how many of the last gaps between two signs of progress it is known what is usual."""
_TIMES_MEDIAN, _TIMES_LONGEST, _LEAST_SECONDS = 20.0, 3.0, 20.0
"""A gap is unusual if it is so many times the median, so many times the longest, and so many seconds. The longest
counts for steps with one long part among many short ones, such as a rollout."""
_STEADY = ("step", "data", "validate", "generate")
"""Activities that take about the same time again and again; how long all others take depends on other things."""
_PLACE = 4
"""Frames by which a place is known from which a learner is updated: two of the learner and two of who calls it."""
_MOST_CHANGES = 50
"""How often, at most, the updates of a step were others than those of the step before, among the steps remembered."""


class ThreadActivity:
    """One thread: its activity, and a count that grows with every sign of progress."""

    def __init__(self, name: str, activity: str) -> None:
        self.name, self.activity = name, activity
        self.thread, self.native_id = threading.get_ident(), threading.get_native_id()
        self.progress = 0
        self._marked = time.monotonic()
        self._gaps: dict[str, deque[float]] = {}

    def made_progress(self) -> None:
        """Count it, and how long it took in the present activity."""
        before, self._marked = self._marked, time.monotonic()
        if self.activity not in self._gaps:
            self._gaps[self.activity] = deque(maxlen=_MOST_GAPS)
        self._gaps[self.activity].append(self._marked - before)
        self.progress += 1

    def unusual_gap(self) -> float | None:
        """From how many seconds on it is unusual that the present activity makes no progress; None: not known."""
        gaps = list(self._gaps.get(self.activity, ()))
        if self.activity not in _STEADY or len(gaps) < _LEAST_GAPS:
            return None
        return max(_LEAST_SECONDS, _TIMES_MEDIAN * statistics.median(gaps), _TIMES_LONGEST * max(gaps))

    def forget_gaps(self) -> None:
        """What comes next may take as long as it will."""
        self._gaps = {}


class UpdateHistory:
    """The updates that this rank began: of which learner, from which line, and how many, step by step."""

    def __init__(self, step: int = 0) -> None:
        """`step`: the number of the first step."""
        self.total = 0
        self._step, self._updates = step, dict[tuple[str, StackFrame], int]()
        self._before = deque[tuple[int, dict[tuple[str, StackFrame], int]]](maxlen=_MOST_CHANGES)

    def began_update(self, learner: str, line: StackFrame) -> None:
        """One more, in the step under way."""
        self.total += 1
        self._updates[learner, line] = self._updates.get((learner, line), 0) + 1

    def stepped(self, step: int) -> None:
        """So many steps are done."""
        if not self._before or self._before[-1][1] != self._updates:
            self._before.append((self._step, self._updates))
        self._step, self._updates = step, {}

    def to_json(self) -> list[Json]:
        """From which step on steps made which updates (learner, line, count); the last entry is the step under way."""
        known = [*self._before, (self._step, dict(self._updates))]  # a copy: the training goes on meanwhile
        return [
            [first, [[learner, describe(line), count] for (learner, line), count in updates.items()]]
            for first, updates in known
        ]


class ActivityTracker:
    """What the threads of this rank do."""

    def __init__(self) -> None:
        self.stage, self.step = "", 0
        self.updates = UpdateHistory()
        self._callers: dict[tuple[tuple[CodeType, int], ...], StackFrame] = {}
        self._compile_steps_left = 0
        self.threads = [ThreadActivity("main", "start")]

    @contextmanager
    def doing(self, activity: str) -> Iterator[None]:
        """What the calling thread does meanwhile; entering and leaving count as progress."""
        thread = self._own()
        thread.made_progress()
        before, thread.activity = thread.activity, activity
        try:
            yield
        finally:
            thread.made_progress()
            thread.activity = before

    def made_progress(self) -> None:
        """The calling thread made progress."""
        self._own().made_progress()

    @contextmanager
    def stepping(self, stage: str, step: int, *, compiles: bool) -> Iterator[None]:
        """Through the steps of a stage; the first ones of a compiled model may take longer."""
        self.stage, self.step = stage, step
        self.updates = UpdateHistory(step)
        self._compile_steps_left = COMPILE_STEPS if compiles else 0
        self._own().forget_gaps()
        with self.doing("compile" if compiles else "step"):
            yield

    def stepped(self, step: int) -> None:
        """So many steps of the stage are done."""
        self.step = step
        self.updates.stepped(step)
        thread = self._own()
        thread.made_progress()
        if self._compile_steps_left:
            self._compile_steps_left -= 1
            thread.activity = "compile" if self._compile_steps_left else "step"

    def began_update(self, learner: str) -> None:
        """A learner begins an update; all ranks make the same ones."""
        top = sys._getframe(1)
        place = tuple((frame.f_code, frame.f_lineno) for frame in islice(frames_of(top), _PLACE))
        if place not in self._callers:  # the whole stack is walked once: that would take longer than all else here
            self._callers[place] = calling_frame(top)
        self.updates.began_update(learner, self._callers[place])

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
