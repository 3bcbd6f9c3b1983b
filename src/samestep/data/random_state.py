"""The generators that code draws from without being given one: Python's, numpy's and torch's own."""

import operator
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from samestep.data import noise

ROW = noise.purpose("data.row")
OWN = noise.purpose("data.row generator")


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
    row has drawn from it, which its state shows: rows of which one was the first to draw are read again, seeded.
    Torch's takes little, and is always seeded.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._others = [
            _Generator(random.seed, random.getstate, random.setstate, operator.eq),
            _Generator(_seed_numpy, _numpy_state, np.random.set_state, _is_same_numpy),
        ]

    def read(self, ids: np.ndarray, read: Callable[[int, int], Any]) -> list[Any]:
        """What `read` gives for each (epoch, index) pair; the generators are as before afterwards."""
        high, low = noise.words(self._seed, ROW, ids[:, 0], ids[:, 1])  # of all at once: one alone takes as long
        rows = list(zip(high.tolist(), low.tolist(), *ids.T.tolist()))
        before, torchs = [each.state() for each in self._others], torch.default_generator.get_state()
        is_read = False
        try:
            while True:
                seeds = [each.seed for each in self._others if each.is_drawn]
                samples = [_read_seeded(read, seeds, *row) for row in rows]
                drawn = [each for each, state in zip(self._others, before) if each.has_drawn_since(state)]
                if not drawn:
                    is_read = True
                    return samples
                for each in drawn:
                    each.is_drawn = True
        finally:
            torch.default_generator.set_state(torchs)
            for each, state in zip(self._others, before):
                if each.is_drawn or not is_read:  # else it is where it was; to put it back takes long
                    each.restore(state)


def _read_seeded(
    read: Callable[[int, int], Any], seeds: list[Callable[[int], object]], high: int, low: int, epoch: int, index: int
) -> Any:
    torch.default_generator.manual_seed(high)  # and no device's: rows are read on the CPU
    for seed in seeds:
        seed((high << 32) | low)
    return read(epoch, index)


@dataclass
class _Generator:
    """A global generator of which it is not known yet whether rows draw from it."""

    seed: Callable[[int], object]
    state: Callable[[], Any]
    restore: Callable[[Any], object]
    _is_same: Callable[[Any, Any], bool]
    is_drawn: bool = False

    def has_drawn_since(self, state: Any) -> bool:
        """Whether it was at another state, and rows were not known to draw from it."""
        return not self.is_drawn and not self._is_same(state, self.state())


def _numpy_state() -> dict[str, Any]:
    return np.random.get_state(legacy=False)


def _is_same_numpy(one: dict[str, Any], other: dict[str, Any]) -> bool:
    drawn, again = one["state"], other["state"]
    is_same = drawn["pos"] == again["pos"] and one["has_gauss"] == other["has_gauss"]
    return bool(is_same and (drawn["key"] == again["key"]).all())


def _seed_numpy(seed: int) -> None:
    np.random.seed(seed & noise.WORD)
