"""The row of a feed that takes the most memory, as far as that is known, in place of every step of the feed."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from samestep.data.loading import Share, Steps, read_in_worker
from samestep.data.order import Rearranged
from samestep.world.world import World

LOOK_SECONDS = 2.0
"""How long rows are read to find a long one."""
_AT_ONCE = 64
"""Rows that a rank reads at once: a process is started for them where loader processes read."""


@dataclass(frozen=True)
class _Given:
    """An order whose every step has the same rows."""

    pairs: np.ndarray

    @property
    def size(self) -> int:
        return len(self.pairs)

    @property
    def batch(self) -> int:
        return len(self.pairs)

    @property
    def steps_per_epoch(self) -> int:
        return 1

    def ids(self, step: int) -> np.ndarray:
        return self.pairs


class LongestRow:
    """Finds the row when it is first asked for: where the order knows lengths, the longest of all; otherwise the one of
    the most bytes among those that can be read in some seconds, from the first step on (of a stream that is read in
    order, among its first few). Every rank calls it alike."""

    def __init__(self, steps: Steps, world: World, length: int, has_workers: bool) -> None:
        self._steps, self._world, self._length, self._has_workers = steps.of_first_rows(), world, length, has_workers
        self._order = self._steps.order
        self._row: tuple[int, int] | None = None

    def share(self, step: int) -> Share:
        """This rank's share of a step."""
        if self._row is None:
            self._row = self._find()
        together = self._steps.together
        self._steps.micro_rows = together
        return self._read(np.tile(np.array([self._row]), (self._steps.size * together, 1)), step)

    def _find(self) -> tuple[int, int]:
        if (lengths := _lengths(self._order)) is not None:
            return int(self._order.ids(0)[0, 0]), int(np.argmax(lengths))
        found: list[tuple[int, int, int]] = self._world.gather(max(self._sizes()))
        _, epoch, index = max(found)
        return epoch, index

    def _sizes(self) -> Iterator[tuple[int, int, int]]:
        """Bytes, epoch and index of rows: of the first ones of this rank at least."""
        steps, end = self._steps, time.monotonic() + LOOK_SECONDS
        together, steps.together, steps.micro_rows = steps.together, 1, 1
        try:
            for pairs in self._parts():
                self._world.activity.made_progress()
                for batch in self._read(pairs, 0).batches:
                    epoch, index = batch["ids"][0].tolist()
                    yield sum(value.nbytes for value in batch.values()), epoch, index
                if time.monotonic() > end:
                    return
        finally:
            steps.together = together

    def _parts(self) -> Iterator[np.ndarray]:
        """Rows to be read at once by all ranks, each its share."""
        at_once = _AT_ONCE * self._steps.size
        for step in range(self._length):
            ids = self._order.ids(step)
            yield from (ids[start : start + at_once] for start in range(0, len(ids), at_once))

    def _read(self, pairs: np.ndarray, step: int) -> Share:
        self._steps.order = _Given(pairs)
        return read_in_worker(self._steps, step) if self._has_workers else self._steps[step]


def _lengths(order: Any) -> np.ndarray | None:
    """The length of each row, if an order or one that it rearranges knows them."""
    if hasattr(order, "lengths"):
        return np.asarray(order.lengths)
    return _lengths(order.order) if isinstance(order, Rearranged) else None
