"""Ranks decide together: each step carries every rank's wishes in one small CPU message, read a step later by all."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from samestep.world.world import World


class Agreement:
    """A wish of any rank is granted on every rank, at the same step, without waiting for a device or a peer."""

    def __init__(self, world: World, wishes: int) -> None:
        self._world = world
        self._message = torch.zeros(wishes, dtype=torch.int32)
        self._pending: Any = None

    def exchange(self, wishes: Sequence[bool]) -> list[bool]:
        """Send this rank's wishes; get what all wished at the previous call (a lone process: now)."""
        if self._world.control is None:
            return list(wishes)
        granted = self.settle()
        self._message = torch.tensor(wishes, dtype=torch.int32)
        self._pending = dist.all_reduce(self._message, dist.ReduceOp.MAX, group=self._world.control, async_op=True)
        return granted

    def settle(self) -> list[bool]:
        """What all wished at the last exchange; waits for it if it is still under way."""
        if self._pending is not None:
            self._pending.wait()
            self._pending = None
        return [bool(wish) for wish in self._message.tolist()]
