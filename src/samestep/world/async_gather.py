"""Small sums over all ranks by asynchronous all-gathers, which no rank waits for.

On busy cores a message costs more than the Python around a step, so several results share one message.

    result = world.async_gather.submit(numbers)  # goes with the next message that is sent
    world.async_gather.flush()                   # sends all that was submitted, as one message
    result.sums()                                # sums over the ranks; sends them first if needed, then waits

Every rank submits the same results and flushes at the same places, as with any collective. Only the main thread does.
"""

import time
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from samestep.world.activity import ActivityTracker
from samestep.world.frames import HEADER, check_number_frames, number_frame


class PendingResult:
    """Numbers of this rank, submitted to be gathered from all ranks."""

    def __init__(self, gather: "AsyncGather", numbers: Sequence[float]) -> None:
        self._gather, self._numbers = gather, list(numbers)
        self._message: _Message | None = None
        self._start = 0

    @property
    def is_sent(self) -> bool:
        """Whether it was sent; all ranks have the same answer."""
        return self._message is not None

    def is_ready(self, within: float) -> bool:
        """Whether it was sent and can be read without waiting, after at most `within` seconds."""
        return self._message is not None and self._message.is_ready(within)

    def replace(self, numbers: Sequence[float]) -> None:
        """Change the numbers, not how many there are; only before it is sent."""
        assert not self.is_sent
        assert len(numbers) == len(self._numbers)
        self._numbers = list(numbers)

    def sums(self) -> list[float]:
        """The sums over all ranks, added up in the order of the ranks, so that they are equal everywhere."""
        return [sum(column) for column in zip(*self.by_rank())]

    def by_rank(self) -> list[list[float]]:
        """The numbers of every rank; waits for them."""
        if self._message is None:
            self._gather.flush()
        assert self._message is not None
        return [numbers[self._start : self._start + len(self._numbers)] for numbers in self._message.wait()]


class AsyncGather:
    """Collects small results and gathers them from all ranks, several in one message."""

    def __init__(self, group: Any = None, activity: ActivityTracker | None = None) -> None:
        """`group` carries the messages; None in a lone process. `activity` says how far this rank is."""
        self._group, self._activity = group, activity or ActivityTracker()
        self._unsent: list[PendingResult] = []

    def submit(self, numbers: Sequence[float]) -> PendingResult:
        """Have these numbers go with the next message; a lone process has its sums at once."""
        result = PendingResult(self, numbers)
        self._unsent.append(result)
        if self._group is None:
            self.flush()
        return result

    def flush(self) -> None:
        """Send all that was submitted, as one message."""
        results, self._unsent = self._unsent, []
        numbers: list[float] = []
        for result in results:
            result._start = len(numbers)
            numbers += result._numbers
        message = _Message(numbers, self._group, self._activity)
        for result in results:
            result._message = message


class _Message:
    """One all-gather for several results. It is not an all-reduce, since gloo's takes three times as long."""

    def __init__(self, numbers: list[float], group: Any, activity: ActivityTracker) -> None:
        self._gathered, self._group, self._activity = [numbers], group, activity
        self._work: Any = None
        if group is not None and numbers:
            own = number_frame(numbers, activity)
            self._parts = [torch.empty_like(own) for _ in range(group.size())]
            self._work = dist.all_gather(self._parts, own, group=group, async_op=True)

    def is_ready(self, within: float) -> bool:
        """Whether the numbers of every rank have arrived, after at most `within` seconds."""
        end = time.monotonic() + within
        while self._work is not None and not self._work.is_completed():
            if time.monotonic() > end:
                return False
            time.sleep(0.002)
        return True

    def wait(self) -> list[list[float]]:
        """Wait for the numbers of every rank."""
        if self._work is not None:
            self._work.wait()
            self._work = None
            check_number_frames(self._parts, self._group.rank(), self._activity)
            self._gathered = [part[HEADER:].tolist() for part in self._parts]
        return self._gathered
