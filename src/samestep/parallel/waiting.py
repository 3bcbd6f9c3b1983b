"""How long a rank waits for the others.

Ranks that reduce gradients together take equally long for a step, so a slow rank is known by how little it waits: from
its last gradient to the end of the backward pass there is nothing left to do but to hear from the others.
"""

import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


class Waiting:
    """Adds up this rank's waits: on a GPU between two marks in its own stream, which are read once they are past."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._seconds = 0.0
        self._begun: Any = None
        self._unread: deque[tuple[Any, Any]] = deque()
        self._hooks: dict[Tensor, Any] = {}
        self._last: Tensor | None = None

    @property
    def seconds(self) -> float:
        """All waits that are over, together."""
        self._read()
        return self._seconds

    @contextmanager
    def during(self) -> Iterator[None]:
        """A message that this rank has nothing to do beside."""
        self._begun = self._mark()
        yield
        self.end()

    def for_gradients_of(self, parameters: Iterable[Tensor]) -> None:
        """Wait from the last gradient of a backward pass on; which one that is shows in the first pass."""
        self._hooks = {p: p.register_post_accumulate_grad_hook(self._ready) for p in parameters if p.requires_grad}

    def end(self) -> None:
        """The others were heard."""
        if self._begun is not None:
            self._unread.append((self._begun, self._mark()))
            self._begun = None
        self._read()
        if len(self._hooks) > 1 and self._last is not None:  # the others came before it and will do so again
            for hook in [self._hooks.pop(p) for p in list(self._hooks) if p is not self._last]:
                hook.remove()

    def _ready(self, parameter: Tensor) -> None:
        self._last, self._begun = parameter, self._mark()

    def _mark(self) -> Any:
        if self._device.type == "cpu":
            return time.perf_counter()
        event = getattr(torch, self._device.type).Event(enable_timing=True)
        event.record()
        return event

    def _read(self) -> None:
        while self._unread:
            begun, ended = self._unread[0]
            if self._device.type == "cpu":
                self._seconds += ended - begun
            elif ended.query():
                self._seconds += begun.elapsed_time(ended) / 1000
            else:
                return
            self._unread.popleft()
