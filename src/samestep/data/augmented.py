"""Rows that draw random numbers, by row: the same whoever reads them, at any number of ranks and of loader processes.

Rows whose `__getitem__(self, index, random)` takes a generator are given one that follows from the run's seed, the
epoch and the index. `augmented` makes such rows of others and of a function that draws as it likes.
"""

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from samestep.core.errors import UserError
from samestep.data.row_randomness import WatchedGenerator, own_generators

_OF_ROWS = ("origins", "own_order")
"""Methods of rows that hold for the augmented ones too."""


def takes_generator(rows: Any) -> bool:
    """Whether rows are read with a generator: `rows[index]` is then `type(rows).__getitem__(rows, index, random)`."""
    try:
        parameters = inspect.signature(type(rows).__getitem__).parameters.values()
    except (AttributeError, TypeError, ValueError):  # a stream has none, or it is written in C
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
        has_rows = hasattr(rows, "__len__") and hasattr(rows, "__getitem__")
        is_iterable = callable(rows) or (hasattr(rows, "__iter__") and not isinstance(rows, Iterator))
        if not has_rows and not is_iterable:
            raise UserError(
                f"samestep.augmented needs rows by index, and a {type(rows).__name__} has none; give it a list, a "
                "dataset with __len__ and __getitem__, or samestep.stream(...)"
            )
        if not callable(function):
            raise UserError(f"samestep.augmented needs a function of a row, not a {type(function).__name__}")
        self.rows, self.function = rows, function
        self._takes_generator = takes_generator(rows)
        self._generators: list[WatchedGenerator] | None = None
        for name in _OF_ROWS:
            method = getattr(rows, name, None)
            if callable(method):
                setattr(self, name, method)

    def over(self, rows: Any) -> "Augmented":
        """The same function over other rows."""
        self._find_generators()
        other = Augmented(rows, self.function)
        other._generators = self._generators
        return other

    def __len__(self) -> int:
        return len(self.rows)

    def without_generators(self) -> Callable[[int], Any] | None:
        """Reads a row by its index alone; None where something draws from a generator that it is given or holds."""
        if self._takes_generator or self._find_generators():
            return None
        return lambda index: self.function(self.rows[index])

    def __getitem__(self, index: int, random: np.random.Generator) -> Any:
        generators = self._find_generators()
        row = type(self.rows).__getitem__(self.rows, index, random) if self._takes_generator else self.rows[index]
        states = [each.state() for each in generators]
        for each in generators:
            each.seed(int(random.integers(1 << 32)))
        try:
            return self.function(row)
        finally:
            for each, state in zip(generators, states):
                each.restore(state)

    def _find_generators(self) -> list[WatchedGenerator]:
        """Those of the function, looked for once in each process."""
        if self._generators is None:
            self._generators = own_generators(self.function)
        return self._generators

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_generators": None}
