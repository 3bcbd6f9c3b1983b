"""Ranks decide together: every rank's wishes travel in one small CPU message, read a step later by all.

A message costs a fraction of a millisecond of every core that computes, so short steps share one: all ranks choose the
same number of steps to the next message, from how long the slowest of them took to come to this one.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from samestep.world.world import World

PATIENCE = 0.2
"""Seconds that a wish may wait to be sent, if steps are shorter than that."""
LONGEST = 16
"""Steps to the next message at most, for steps may become longer of a sudden."""


class Agreement:
    """A wish of any rank is granted on every rank, at the same step, without waiting for a device or a peer."""

    def __init__(self, world: World, wishes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._world, self._clock, self._wishes = world, clock, wishes
        self._message = torch.empty(0)
        self._pending: Any = None
        self._stride = self._left = 1  # steps from message to message, and to the next one
        self._sent_at = -float("inf")

    def exchange(self, wishes: Sequence[bool]) -> list[bool]:
        """This rank's wishes now, once a step; gets what all wished a step ago, if that was told (alone: now)."""
        if self._world.control is None:
            return list(wishes)
        granted = self.settle()
        self._left -= 1
        if self._left == 0:
            self._send(wishes)
        return granted

    def settle(self) -> list[bool]:
        """What all wished at the last message, if it was not read yet; waits for it if it is still under way."""
        if self._pending is None:
            return [False] * self._wishes
        self._pending.wait()
        self._pending = None
        *granted, slowest = self._message.tolist()
        self._stride = self._left = max(1, min(LONGEST, int(self._stride * PATIENCE / max(slowest, 1e-6))))
        return [wish > 0 for wish in granted]

    def _send(self, wishes: Sequence[bool]) -> None:
        now = self._clock()
        self._message = torch.tensor([*wishes, now - self._sent_at], dtype=torch.float64)
        self._sent_at = now
        self._pending = dist.all_reduce(self._message, dist.ReduceOp.MAX, group=self._world.control, async_op=True)
