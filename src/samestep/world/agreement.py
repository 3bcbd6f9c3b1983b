"""Ranks decide together: the requests of every rank travel in one small CPU message, which all read a step later.

A message costs a fraction of a millisecond of every core that computes. So requests go with whatever message is sent
next (see async_gather.py), and cause one of their own only when none was sent for a while. That is after the same
number of steps on all ranks, which follows from how long a step took them on average.
"""

import time
from collections.abc import Callable, Sequence

from samestep.world.async_gather import PendingResult
from samestep.world.world import World

MAX_DELAY = 0.2
"""Seconds that a request may wait to be sent, if steps are shorter than that."""
MAX_STEPS = 16
"""Steps to the next message at most, because steps may suddenly become longer."""


class Agreement:
    """A request of any rank is agreed on by all ranks, at the same step, without waiting for a device or a peer."""

    def __init__(self, world: World, clock: Callable[[], float] = time.monotonic) -> None:
        self._world, self._clock = world, clock
        self._pending: PendingResult | None = None
        self._steps, self._interval = 0, 1  # steps since the last message was read, and after how many one must be sent
        self._since = self._updated = -float("inf")

    def exchange(self, requests: Sequence[bool]) -> list[bool]:
        """Pass this rank's requests, once a step; returns what any rank requested a step ago (alone: now).

        All false where no message was sent since the last time.
        """
        if self._world.control is None:
            return list(requests)
        agreed = self._read() if self._pending and self._pending.is_sent else [False] * len(requests)
        self._steps += 1
        self._updated = self._clock()
        # What was just agreed on need not be requested any more.
        open_requests = [float(request and not done) for request, done in zip(requests, agreed)]
        self._submit([*open_requests, self._updated - self._since])
        if self._steps >= self._interval:
            self._world.async_gather.flush()
        return agreed

    def wait(self) -> None:
        """Wait for a message that was sent and not read yet."""
        if self._pending and self._pending.is_sent:
            self._pending.sums()

    def _submit(self, numbers: list[float]) -> None:
        if self._pending:
            self._pending.replace(numbers)
        else:
            self._pending = self._world.async_gather.submit(numbers)

    def _read(self) -> list[bool]:
        """What any rank requested when the message was sent."""
        assert self._pending is not None
        *requested, seconds = self._pending.sums()
        step_seconds = seconds / self._world.size / self._steps
        self._interval = max(1, min(MAX_STEPS, int(MAX_DELAY / max(step_seconds, 1e-6))))
        self._steps, self._since = 0, self._updated
        self._pending = None
        return [count > 0 for count in requested]
