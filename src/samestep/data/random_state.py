"""The generators that code draws from without being given one: Python's, numpy's and torch's own."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

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


def words_of_rows(seed: int, ids: np.ndarray) -> list[tuple[int, int]]:
    """Two words for each (epoch, index) pair, to seed the global generators with; together, since one takes as long."""
    high, low = noise.words(seed, ROW, ids[:, 0], ids[:, 1])
    return list(zip(high.tolist(), low.tolist()))


def seed_for_row(high: int, low: int) -> None:
    """Seed the global generators for one row, so that what is drawn while it is read is a function of the row."""
    random.seed((high << 32) | low)
    np.random.seed(low)
    torch.default_generator.manual_seed(high)  # and no device's: rows are read on the CPU
