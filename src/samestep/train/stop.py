"""Signals set a flag; the ranks agree on it at a step boundary. Handlers never save and never communicate."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from samestep.world.agreement import Agreement
from samestep.world.world import World

SAME_PRESS_SECONDS = 1.0
"""Seconds within which signals count as one: a terminal and a launcher both pass on the same Ctrl-C."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


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

    def agreed(self) -> bool:
        """Whether all ranks stop here; also sets `save_due`. Called once a step by every rank."""
        now = self._clock()
        late = self._max is not None and now - self._started >= self._max
        due = self._save > 0 and now - self._saved >= self._save
        signalled, timed_out, self.save_due = self._agreement.exchange([bool(self._received), late, due])
        if self.save_due:
            self._saved = now
        if signalled:
            self.reason = self._received or "a signal to another rank"
        elif timed_out:
            self.reason = "max_time"
        return signalled or timed_out

    @contextmanager
    def handling_signals(self) -> Iterator[None]:
        """Catch the signals that ask a run to stop; a second Ctrl-C ends it at once."""
        before: dict[int, Any] = {number: signal.signal(number, self._receive) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            self._agreement.wait()

    def _receive(self, number: int, frame: FrameType | None) -> None:
        now = self._clock()
        if number == signal.SIGINT and self._received and now - self._received_at > SAME_PRESS_SECONDS:
            raise KeyboardInterrupt
        if not self._received:
            self._received, self._received_at = signal.Signals(number).name, now
