"""Ranks decide together: every rank's wishes travel in one small CPU message, read a step later by all.

A message costs a fraction of a millisecond of every core that computes. So wishes go along with whatever message leaves
next (see post.py), and have one sent only when none left for a while: all ranks choose the same number of steps for it,
from how long a step took them on average.
"""

import time
from collections.abc import Callable, Sequence

from samestep.world.async_gather import PendingResult
from samestep.world.world import World

PATIENCE = 0.2
"""Seconds that a wish may wait to be sent, if steps are shorter than that."""
LONGEST = 16
"""Steps to the next message at most, for steps may become longer of a sudden."""


class Agreement:
    """A wish of any rank is granted on every rank, at the same step, without waiting for a device or a peer."""

    def __init__(self, world: World, clock: Callable[[], float] = time.monotonic) -> None:
        self._world, self._clock = world, clock
        self._letter: PendingResult | None = None
        self._steps, self._stride = 0, 1  # steps since the last letter, and at which number of them this one must go
        self._since = self._written = -float("inf")

    def exchange(self, wishes: Sequence[bool]) -> list[bool]:
        """This rank's wishes now, once a step; gets what all wished a step ago, if that was told (alone: now)."""
        if self._world.control is None:
            return list(wishes)
        granted = self._answer() if self._letter and self._letter.sent else [False] * len(wishes)
        self._steps += 1
        self._written = self._clock()
        # What was just granted is no longer wished for.
        asked = [float(wish and not done) for wish, done in zip(wishes, granted)]
        self._write([*asked, self._written - self._since])
        if self._steps >= self._stride:
            self._world.async_gather.send()
        return granted

    def wait(self) -> None:
        """Wait for what is still under way."""
        if self._letter and self._letter.sent:
            self._letter.read()

    def _write(self, numbers: list[float]) -> None:
        if self._letter:
            self._letter.rewrite(numbers)
        else:
            self._letter = self._world.async_gather.put(numbers)

    def _answer(self) -> list[bool]:
        """What all wished when the letter left."""
        assert self._letter is not None
        *wished, seconds = self._letter.read()
        a_step = seconds / self._world.size / self._steps
        self._stride = max(1, min(LONGEST, int(PATIENCE / max(a_step, 1e-6))))
        self._steps, self._since = 0, self._written
        self._letter = None
        return [wish > 0 for wish in wished]
