"""Several sources of data as one, drawn in fixed proportion."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from samestep.core.errors import UserError
from samestep.data.datasets import as_rows
from samestep.data.loading import Rows, gives_batches, read_samples
from samestep.data.order import MixedOrder, Order
from samestep.data.streams.stream import stream_of


class Mixed:
    """The rows of several sources, one source after the other; a feed draws them by `weights`.

    Each source runs through epochs of its own, each epoch in another order. Weights are proportions and are kept in
    every block of 1024 draws. An epoch of the run has as many draws as there are rows in all sources.
    """

    def __init__(self, sources: Sequence[Any], weights: Sequence[float]) -> None:
        if len(sources) != len(weights) or not sources:
            raise UserError(f"a mixture needs one weight per source, not {len(weights)} for {len(sources)}")
        self.sources: list[Rows] = [as_rows(source) for source in sources]
        if any(stream_of(source) for source in self.sources):
            raise UserError(
                "a mixture draws rows by index, and one of its sources can only be read in order; write it to .tar or "
                ".jsonl files, which samestep.stream finds rows in"
            )
        self.weights = tuple(weights)
        self._ends = np.cumsum([len(source) for source in self.sources])
        if all(gives_batches(source) for source in self.sources):
            self.rows = self._rows

    def own_order(self, batch: int, seed: int) -> Order:
        """The order that keeps the proportions."""
        return MixedOrder([len(source) for source in self.sources], self.weights, batch, seed)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        found: list[Any] = [None] * len(indices)
        for source, places, inside in self._by_source(np.asarray(indices)):
            for place, sample in zip(places, read_samples(source, inside)):
                found[place] = sample
        return found

    def origins(self) -> list[Any]:
        """The files of all sources, if all of them name theirs."""
        methods = [getattr(source, "origins", None) for source in self.sources]
        named = [list(method()) if callable(method) else [] for method in methods]
        return [origin for origins in named for origin in origins] if all(named) else []

    def columns_of_no_numbers(self) -> list[str]:
        """The columns of all sources that cannot become tensors, as far as they are known."""
        return [column for source in self.sources for column in getattr(source, "columns_of_no_numbers", list)()]

    def _rows(self, indices: np.ndarray) -> dict[str, Tensor]:
        parts, places = [], []
        for source, where, inside in self._by_source(indices):
            parts.append(source.rows(inside))  # type: ignore[attr-defined]
            places.append(where)
        if any(part.keys() != parts[0].keys() for part in parts):
            raise UserError(f"sources that are mixed must have the same names, not {', '.join(map(_names, parts))}")
        back = torch.as_tensor(np.argsort(np.concatenate(places)))
        return {name: torch.cat([part[name] for part in parts])[back] for name in parts[0]}

    def _by_source(self, indices: np.ndarray) -> list[tuple[Rows, np.ndarray, np.ndarray]]:
        """For each source that is drawn from: where its rows are among the indices, and their indices inside it."""
        which = np.searchsorted(self._ends, indices, side="right")
        starts = np.concatenate([[0], self._ends[:-1]])
        found = [(number, np.flatnonzero(which == number)) for number in np.unique(which).tolist()]
        return [(self.sources[number], places, indices[places] - starts[number]) for number, places in found]


def _names(batch: dict[str, Tensor]) -> str:
    return f"({', '.join(map(repr, batch))})"
