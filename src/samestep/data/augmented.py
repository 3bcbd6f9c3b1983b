"""Rows that draw random numbers, by row: the same whoever reads them, at any number of ranks and of loader processes.

Rows whose `__getitem__(self, index, random)` takes a generator are given one that follows from the run's seed, the
epoch and the index. `augmented` makes such rows of others and of a function that draws as it likes.
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from samestep.core.errors import UserError
from samestep.data.row_randomness import WatchedGenerator, own_generators


def takes_generator(rows: Any) -> bool:
    """Whether rows are read with a generator: `rows[index]` is then `type(rows).__getitem__(rows, index, random)`."""
    try:
        parameters = inspect.signature(type(rows).__getitem__).parameters.values()
    except (TypeError, ValueError):  # written in C
        return False
    needed = [each for each in parameters if each.default is each.empty and each.kind is each.POSITIONAL_OR_KEYWORD]
    return len(needed) == 3


def augmented(rows: Any, function: Callable[[Any], Any]) -> "Augmented":
    """Rows with a function applied to each when it is read, such as a transform of torchvision or albumentations.

    What the function draws from Python's, numpy's or torch's generator, or from one that it holds itself, follows from
    seed, epoch and index; these generators are put back after each call.
    """
    return Augmented(rows, function)


class Augmented:
    """What `augmented` makes."""

    def __init__(self, rows: Any, function: Callable[[Any], Any]) -> None:
        if not hasattr(rows, "__len__") or not hasattr(rows, "__getitem__"):
            raise UserError(
                f"samestep.augmented needs rows by index, and a {type(rows).__name__} has none; give it a list or a "
                "dataset with __len__ and __getitem__"
            )
        if not callable(function):
            raise UserError(f"samestep.augmented needs a function of a row, not a {type(function).__name__}")
        self.rows, self.function = rows, function
        self._takes_generator = takes_generator(rows)
        self._generators: list[WatchedGenerator] | None = None
        origins = getattr(rows, "origins", None)
        if callable(origins):
            self.origins = origins

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int, random: np.random.Generator) -> Any:
        row = type(self.rows).__getitem__(self.rows, index, random) if self._takes_generator else self.rows[index]
        with self._seeded(random):
            return self.function(row)

    @contextmanager
    def _seeded(self, random: np.random.Generator) -> Iterator[None]:
        """The function's own generators seeded for the row, and put back."""
        if self._generators is None:  # looked for once in each process
            self._generators = own_generators(self.function)
        states = [each.state() for each in self._generators]
        for each in self._generators:
            each.seed(int(random.integers(1 << 32)))
        try:
            yield
        finally:
            for each, state in zip(self._generators, states):
                each.restore(state)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_generators": None}
