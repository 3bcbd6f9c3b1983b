"""How long a rank waits for the others.

Ranks that reduce gradients together take equally long for a step, so the slow rank is the one that waits least. A rank
waits from its last gradient to the end of the backward pass: all that is left is the all-reduce.
"""

import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


class WaitTimer:
    """Adds up this rank's waits; on a GPU between two events in its stream, which are read once they have happened."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._seconds = 0.0
        self._started: Any = None
        self._unread: deque[tuple[Any, Any]] = deque()
        self._hooks: dict[Tensor, Any] = {}
        self._last: Tensor | None = None

    @property
    def seconds(self) -> float:
        """The total of all waits that have ended."""
        self._read()
        return self._seconds

    @contextmanager
    def measure(self) -> Iterator[None]:
        """Count the time of the block, in which this rank only communicates."""
        self._started = self._now()
        yield
        self.stop()

    def start_at_last_gradient(self, parameters: Iterable[Tensor]) -> None:
        """Start a wait at the last gradient of each backward pass; the first pass shows which one that is."""
        self._hooks = {p: p.register_post_accumulate_grad_hook(self._start) for p in parameters if p.requires_grad}

    def stop(self) -> None:
        """End the wait: all ranks have communicated."""
        if self._started is not None:
            self._unread.append((self._started, self._now()))
            self._started = None
        self._read()
        if len(self._hooks) > 1 and self._last is not None:  # the others were ready before it, and will be again
            for hook in [self._hooks.pop(p) for p in list(self._hooks) if p is not self._last]:
                hook.remove()

    def _start(self, parameter: Tensor) -> None:
        self._last, self._started = parameter, self._now()

    def _now(self) -> Any:
        if self._device.type == "cpu":
            return time.perf_counter()
        event = getattr(torch, self._device.type).Event(enable_timing=True)
        event.record()
        return event

    def _read(self) -> None:
        while self._unread:
            start, end = self._unread[0]
            if self._device.type == "cpu":
                self._seconds += end - start
            elif end.query():
                self._seconds += start.elapsed_time(end) / 1000
            else:
                return
            self._unread.popleft()
