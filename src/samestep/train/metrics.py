"""Figures are global (sum, weight) pairs, kept on the device and read only when they are shown."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from samestep.core.records import Json
from samestep.world.world import World


@dataclass(frozen=True)
class Figure:
    """This rank's part of a sum, and the weight of the whole. A figure equal on all ranks is counted once."""

    sum: Tensor | float
    weight: Tensor | float = 1.0
    same: bool = False
    """Whether every rank holds the whole figure already (a learning rate, a gradient norm)."""


Metrics = Mapping[str, Figure]


class Book:
    """Adds figures up over steps, and reduces them over ranks when asked: one collective for all of them."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._sums: dict[str, Tensor | float] = {}
        self._weights: dict[str, Tensor | float] = {}

    def add(self, metrics: Metrics) -> None:
        """Count a step's figures in; nothing is read from the device."""
        for name, figure in metrics.items():
            counted = 0.0 if figure.same and not self._world.is_main else figure.sum
            self._sums[name] = self._sums.get(name, 0.0) + _exact(counted)
            self._weights[name] = self._weights.get(name, 0.0) + _exact(figure.weight)

    def names(self) -> list[str]:
        """What was added so far."""
        return list(self._sums)

    def read(self) -> dict[str, float]:
        """The mean of every figure over what was added, the same on all ranks; the book is empty afterwards."""
        names = sorted(self._sums)
        if not names:
            return {}
        sums = torch.stack([self._tensor(self._sums[name]) for name in names])
        weights = torch.stack([self._tensor(self._weights[name]) for name in names])
        if self._world.control is not None:
            dist.all_reduce(sums)
        values = torch.stack([sums, weights]).tolist()
        self._sums, self._weights = {}, {}
        return {name: total / weight for name, total, weight in zip(names, *values) if weight > 0}

    def state_dict(self) -> dict[str, Json]:
        """Nothing is shared."""
        return {}

    def load_state_dict(self, state: dict[str, Json]) -> None:
        """Nothing is shared."""

    def rank_state(self) -> Json:
        """The open window of this rank."""
        return {name: [float(self._sums[name]), float(self._weights[name])] for name in self._sums}

    def load_rank_state(self, states: list[Json]) -> None:
        """Go on with the window; at another world size rank 0 takes all that was summed so far."""
        self._sums, self._weights = {}, {}
        for name, (_, weight) in states[0].items():
            parts = [state[name][0] for state in states]
            if len(parts) == self._world.size:
                part = parts[self._world.rank]
            else:
                part = sum(parts) if self._world.is_main else 0.0
            self._sums[name], self._weights[name] = part, weight

    def _tensor(self, value: Tensor | float) -> Tensor:
        return torch.as_tensor(value, dtype=torch.float64, device=self._world.device)


def _exact(value: Tensor | float) -> Tensor | float:
    return value.detach().double() if isinstance(value, Tensor) else value
