"""Signals set a flag; the ranks agree on it at a step boundary. Handlers never save and never communicate."""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from samestep.core.errors import EXIT_PREEMPTED
from samestep.core.stop_signals import heeded
from samestep.core.terminal_lines import hand_over
from samestep.world.agreement import Agreement
from samestep.world.world import World

SAME_PRESS_SECONDS = 1.0
"""Seconds within which signals count as one: a terminal and a launcher both pass on the same Ctrl-C."""
ASK_SECONDS = 0.5
"""How often the ranks ask each other inside a step, in seconds, if a step checks more often than that."""
MAX_CALLS = 16
"""Checks to the next time that they ask, at most, because checks may suddenly come less often."""


class LeftStep(BaseException):
    """All ranks have agreed to leave a step. No Exception, so that no handler of a recipe takes it for a failure."""


class StoppedEarly(BaseException):
    """A signal came before the first step: there is nothing to save, so the run ends where it is."""

    exit_code = EXIT_PREEMPTED

    def __init__(self, reason: str) -> None:
        super().__init__(f"stopped by {reason} before the first step, so nothing was trained in this launch")
        self.reason = reason


class Stop:
    """When to stop, and when a save is due by the clock: any rank may request it; all ranks agree at the same step."""

    def __init__(
        self,
        world: World,
        max_seconds: float | None = None,
        save_seconds: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.reason = ""
        self.save_due = False
        self._received, self._received_at = "", 0.0
        self._clock, self._max, self._save = clock, max_seconds, save_seconds
        self._started = self._saved = clock()
        self._agreement = Agreement(world, clock)
        self.is_checked_inside = False
        """Whether a step has checked for a stop inside it."""
        self.left_step = False
        """Whether the loop ended inside a step."""
        self._world, self._can_leave = world, False
        self._is_setting_up, self._process = False, os.getpid()
        self._calls, self._interval, self._asked = 0, 1, self._started

    def agreed(self) -> bool:
        """Whether all ranks stop here; also sets `save_due`. Called once a step by every rank."""
        now = self._clock()
        late = self._max is not None and now - self._started >= self._max
        due = self._save > 0 and now - self._saved >= self._save
        signalled, timed_out, self.save_due = self._agreement.exchange([bool(self._received), late, due])
        if self.save_due:
            self._saved = now
        self._calls, self._interval, self._asked = 0, 1, now
        return self._decide(signalled, timed_out)

    def check_inside(self) -> None:
        """Leave the step if any rank was asked to stop; outside of the loop nothing happens.

        Called by every rank alike, as often as it likes: the ranks ask each other about every half second, and wait for
        the answer.
        """
        if not self._can_leave:
            return
        self.is_checked_inside = True
        self._calls += 1
        if self._calls < self._interval:
            return
        now = self._clock()
        late = self._max is not None and now - self._started >= self._max
        mine = [float(bool(self._received)), float(late), now - self._asked]
        signalled, timed_out, seconds = self._world.async_gather.submit(mine).sums()
        a_call = seconds / self._world.size / self._calls
        self._calls, self._interval = 0, max(1, min(MAX_CALLS, int(ASK_SECONDS / max(a_call, 1e-6))))
        self._asked = now
        if self._decide(signalled > 0, timed_out > 0):
            raise LeftStep

    @contextmanager
    def setting_up(self) -> Iterator[None]:
        """Around what comes before the first step of a stage: a signal ends it at once, where it is."""
        self._is_setting_up = True
        try:
            if self._received:
                raise StoppedEarly(self._received)
            yield
        finally:
            self._is_setting_up = False

    @contextmanager
    def leaving_steps(self) -> Iterator[None]:
        """Around the loop: `check_inside` ends it, wherever it is."""
        self._can_leave = True
        try:
            yield
        except LeftStep:
            self.left_step = True
        finally:
            self._can_leave = False

    def _decide(self, signalled: bool, timed_out: bool) -> bool:
        if timed_out and not self._signal_came_first():
            self.reason = "max_time"
        elif signalled:
            self.reason = self._received or "a signal to another rank"
        return signalled or timed_out

    def _signal_came_first(self) -> bool:
        """Before the time was up: later, a scheduler sends one too, where a step or a save lasts until its limit."""
        return bool(self._received) and (self._max is None or self._received_at < self._started + self._max)

    @contextmanager
    def handling_signals(self) -> Iterator[None]:
        """Catch the signals that ask a run to stop; a second Ctrl-C ends it at once."""
        before: dict[int, Any] = {number: signal.signal(number, self._receive) for number in heeded()}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def agreeing(self) -> Iterator[None]:
        """Around everything that calls `agreed`: at the end, the answer that is still under way is waited for."""
        try:
            yield
        except BaseException:
            with suppress(Exception):  # what happened first is what counts
                self._agreement.wait()
            raise
        self._agreement.wait()

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:  # a data worker that was forked a moment ago: its rank handles signals
            return
        now = self._clock()
        if number == signal.SIGINT and self._received and now - self._received_at > SAME_PRESS_SECONDS:
            raise KeyboardInterrupt
        if not self._received:
            self._received, self._received_at = signal.Signals(number).name, now
            self._say_stopping()
            if self._is_setting_up:
                raise StoppedEarly(self._received)

    def _say_stopping(self) -> None:
        """Say at once what happens, unless it happens at once; past Python's buffers, which may be in use."""
        if not self._can_leave or not self._world.is_main:
            return
        line = f"samestep: {self._received}: stopping after this step, with a save"
        if not hand_over(line, os.environ):
            with suppress(OSError, ValueError, AttributeError):
                os.write(sys.stderr.fileno(), f"\n{line}; Ctrl-C again ends at once\n".encode())
