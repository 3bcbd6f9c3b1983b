"""The generators that code draws from without being given one: Python's, numpy's and torch's own."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from samestep.data import noise

ROW = noise.purpose("data.row")
OWN = noise.purpose("data.row generator")
_MARK = 0x5DB3D743
_KNOWN = 256
"""How many numbers from the mark on are known."""


@contextmanager
def random_state_kept() -> Iterator[None]:
    """Restores the global generators of the CPU afterwards."""
    python, numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


def generator_of_row(seed: int, epoch: int, index: int) -> np.random.Generator:
    """A generator for one row."""
    return np.random.default_rng(list(noise.words(seed, OWN, epoch, index)))


class RowSeeding:
    """Seeds the global generators for each row, so that what is drawn while it is read is a function of the row.

    To seed Python's and numpy's takes as long as to read a small image. So each is seeded for every row only once some
    row has drawn from it. Until then it is at a mark, and its next number shows after each row whether it is still
    there: a row that was the first to draw is read again, seeded. Torch's takes little, and is always seeded.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._others = [_MarkedGenerator(random.seed, random.random), _MarkedGenerator(_seed_numpy, np.random.random)]

    def read(self, ids: np.ndarray, read: Callable[[int, int], Any]) -> list[Any]:
        """What `read` gives for each (epoch, index) pair; the generators are as before afterwards."""
        high, low = noise.words(self._seed, ROW, ids[:, 0], ids[:, 1])  # of all at once: one alone takes as long
        with random_state_kept():
            for each in self._others:
                each.to_mark()
            return [self._read(read, *row) for row in zip(high.tolist(), low.tolist(), *ids.T.tolist())]

    def _read(self, read: Callable[[int, int], Any], high: int, low: int, epoch: int, index: int) -> Any:
        torch.default_generator.manual_seed(high)  # and no device's: rows are read on the CPU
        for each in self._others:
            if each.is_drawn:
                each.seed((high << 32) | low)
        sample = read(epoch, index)
        drawn = [each.was_drawn() for each in self._others]
        return self._read(read, high, low, epoch, index) if any(drawn) else sample


class _MarkedGenerator:
    """A generator of which it is not known yet whether rows draw from it."""

    def __init__(self, seed: Callable[[int], object], draw: Callable[[], float]) -> None:
        self.seed, self._draw = seed, draw
        self.is_drawn = False
        self._expected: list[float] = []
        self._next = 0

    def to_mark(self) -> None:
        """Seed it so that the numbers to come are known."""
        if self.is_drawn:
            return
        self.seed(_MARK)
        if not self._expected:
            self._expected = [self._draw() for _ in range(_KNOWN)]
            self.seed(_MARK)
        self._next = 0

    def was_drawn(self) -> bool:
        """Whether a row has just drawn from it, for the first time."""
        if self.is_drawn:
            return False
        self.is_drawn = self._draw() != self._expected[self._next]
        self._next += 1
        if self._next == _KNOWN:
            self.to_mark()
        return self.is_drawn


def _seed_numpy(seed: int) -> None:
    np.random.seed(seed & noise.WORD)
