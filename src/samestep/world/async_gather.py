"""Small sums over all ranks that nobody waits for. On busy cores a message costs more than the Python around a step, so
several letters share one.

    letter = world.async_gather.put(numbers)     # goes with the next message, whoever sends it
    world.async_gather.send()                    # all that was put, as one message
    letter.read()                        # their sums over the ranks; waits, and sends first if nobody did

Every rank puts the same letters and sends at the same places, as with any collective; only the main thread does.
"""

import time
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist


class PendingResult:
    """Numbers of this rank on their way to their sums over all ranks."""

    def __init__(self, post: "AsyncGather", numbers: Sequence[float]) -> None:
        self._post, self._numbers = post, list(numbers)
        self._message: _Message | None = None
        self._start = 0

    @property
    def sent(self) -> bool:
        """Whether it has left, which it does on all ranks alike."""
        return self._message is not None

    def has_arrived(self, within: float) -> bool:
        """Whether it was sent and can be read without waiting any more, after at most `within` seconds."""
        return self._message is not None and self._message.has_arrived(within)

    def rewrite(self, numbers: Sequence[float]) -> None:
        """Other numbers, as many, as long as it has not left."""
        assert not self.sent
        assert len(numbers) == len(self._numbers)
        self._numbers = list(numbers)

    def read(self) -> list[float]:
        """The sums over all ranks, added up in the order of the ranks, so that they are equal everywhere."""
        return [sum(column) for column in zip(*self.by_rank())]

    def by_rank(self) -> list[list[float]]:
        """What every rank wrote."""
        if self._message is None:
            self._post.send()
        assert self._message is not None
        return [numbers[self._start : self._start + len(self._numbers)] for numbers in self._message.read()]


class AsyncGather:
    """What the ranks tell each other beside the gradients."""

    def __init__(self, group: Any = None) -> None:
        """`group` carries the messages; a lone process has none."""
        self._group = group
        self._waiting: list[PendingResult] = []

    def put(self, numbers: Sequence[float]) -> PendingResult:
        """A letter for the next message; a lone process has its sums at once."""
        letter = PendingResult(self, numbers)
        self._waiting.append(letter)
        if self._group is None:
            self.send()
        return letter

    def send(self) -> None:
        """All letters that wait, as one message."""
        letters, self._waiting = self._waiting, []
        numbers: list[float] = []
        for letter in letters:
            letter._start = len(numbers)
            numbers += letter._numbers
        message = _Message(numbers, self._group)
        for letter in letters:
            letter._message = message


class _Message:
    """Letters that travel together. Everybody's numbers go to everybody: gloo's sum takes three times as long."""

    def __init__(self, numbers: list[float], group: Any) -> None:
        self._arrived = [numbers]
        self._work: Any = None
        if group is not None and numbers:
            own = torch.tensor(numbers, dtype=torch.float64)
            self._parts = [torch.empty_like(own) for _ in range(group.size())]
            self._work = dist.all_gather(self._parts, own, group=group, async_op=True)

    def has_arrived(self, within: float) -> bool:
        """Whether the numbers of every rank are here, after at most `within` seconds."""
        end = time.monotonic() + within
        while self._work is not None and not self._work.is_completed():
            if time.monotonic() > end:
                return False
            time.sleep(0.002)
        return True

    def read(self) -> list[list[float]]:
        """The numbers of every rank; waits for them."""
        if self._work is not None:
            self._work.wait()
            self._work = None
            self._arrived = [part.tolist() for part in self._parts]
        return self._arrived
