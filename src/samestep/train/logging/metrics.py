"""Figures are global (sum, weight) pairs, kept on the device and read only when they are shown."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from samestep.core.records import Json
from samestep.world.async_gather import PendingResult
from samestep.world.world import World

Number = Tensor | float
NOTES = 512
"""Figures noted at most before they are added up, which waits for the device: far rarer than rows of figures."""


class Metric(NamedTuple):
    """This rank's part of a sum, and the weight of the whole. A figure equal on all ranks is counted once; so is the
    part of a share of the data that several ranks take.

    A tensor in it must not be changed afterwards: it is read later.
    """

    sum: Number
    weight: Number = 1.0
    same: bool = False
    """Whether every rank holds the whole figure already (a learning rate, a gradient norm)."""
    skipped: Number = 0.0
    """1 for a step that was skipped: it counts for nothing, so its NaN reaches no mean."""


Metrics = Mapping[str, Metric]
_PART = "\x1f"  # the unit separator, which no name has


def part_of(name: str, term: str) -> str:
    """The name under which a term's part of the figure `name` is added up.

    A figure in parts is the sum of their means. So the logged loss is the sum of coefficient times logged term, though
    terms may weigh differently and each step has another weight.
    """
    return f"{name}{_PART}{term}"


def is_loss(name: str) -> bool:
    """Whether a figure is a learner's loss, or a part of one."""
    return name.partition(_PART)[0].rpartition("/")[2] == "loss"


class MetricAccumulator:
    """Adds figures up over steps, and reduces them over ranks when asked: one collective for all of them.

    Figures are only noted as they come. What is on the device is fetched in one go when the sums are needed, and then
    added in the order of the steps, so that it makes no difference to any bit when that is.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._totals: dict[str, tuple[float, float]] = {}
        self._noted: list[tuple[str, Number, Number, Number]] = []

    def add(self, metrics: Metrics) -> None:
        """Count a step's figures in; nothing is read from the device."""
        for name, figure in metrics.items():
            is_counted = self._world.is_main if figure.same else self._world.dp_counted
            counted = _apart(figure.sum) if is_counted else 0.0
            self._noted.append((name, counted, _apart(figure.weight), figure.skipped))
            self._totals.setdefault(name, (0.0, 0.0))
        if len(self._noted) >= NOTES:
            self._add_up()

    def names(self) -> list[str]:
        """What was added so far."""
        return list(self._totals)

    def read(self) -> dict[str, float]:
        """The mean of every figure over what was added, the same on all ranks; the book is empty afterwards."""
        return self.reading().finish()[0]

    def reading(self, own: Sequence[float] = ()) -> "PendingMetrics":
        """The same, under way: read later, it keeps nobody waiting. Numbers of each rank's own go along, come out by
        rank, and are no state."""
        totals, self._totals = self._add_up(), {}
        names = sorted(totals)
        sums = self._world.async_gather.submit([totals[name][0] for name in names])
        reading = PendingMetrics(names, [totals[name][1] for name in names], sums, self._world.async_gather.submit(own))
        self._world.async_gather.flush()  # at once, and not with the next message: a rank may fail before there is one
        return reading

    def state_dict(self) -> dict[str, Json]:
        """Nothing is shared."""
        return {}

    def load_state_dict(self, state: dict[str, Json]) -> None:
        """Nothing is shared."""

    def rank_state(self) -> Json:
        """The open window of this rank."""
        return {name: list(total) for name, total in self._add_up().items()}

    def load_rank_state(self, states: list[Json]) -> None:
        """Go on with the window; at another world size rank 0 takes all that was summed so far."""
        self._totals, self._noted = {}, []
        for name, (_, weight) in states[0].items():
            parts = [state[name][0] for state in states]
            if len(parts) == self._world.size:
                part = parts[self._world.rank]
            else:
                part = sum(parts) if self._world.is_main else 0.0
            self._totals[name] = part, weight

    def _add_up(self) -> dict[str, tuple[float, float]]:
        """All sums and weights so far, as plain numbers."""
        noted, self._noted = self._noted, []
        numbers = _fetched([number for _, *numbers in noted for number in numbers])
        for (name, *_), more, weight, skipped in zip(noted, numbers[::3], numbers[1::3], numbers[2::3]):
            if not skipped:
                total, total_weight = self._totals[name]
                self._totals[name] = total + more, total_weight + weight
        return self._totals


@dataclass(frozen=True)
class PendingMetrics:
    """Figures on their way between the ranks."""

    names: Sequence[str]
    weights: Sequence[float]
    sums: PendingResult
    own: PendingResult

    def has_arrived(self, within: float) -> bool:
        """Whether they can be read without waiting any more, after at most `within` seconds."""
        return self.own.is_ready(within)

    def finish(self) -> tuple[dict[str, float], list[list[float]]]:
        """Every figure's mean, and each rank's own numbers."""
        sums = zip(self.names, self.sums.sums(), self.weights)
        return _joined({name: total / weight for name, total, weight in sums if weight > 0}), self.own.by_rank()


def _joined(means: Mapping[str, float]) -> dict[str, float]:
    """Means by name, those of parts added up under the name that they are parts of."""
    parts: dict[str, float] = {}
    for name, mean in means.items():
        if _PART in name:
            whole = name.partition(_PART)[0]
            parts[whole] = parts.get(whole, 0.0) + mean
    return {name: mean for name, mean in means.items() if _PART not in name} | parts


def _apart(number: Number) -> Number:
    """A figure without the graph that it came from, which would be kept alive with it."""
    return number.detach() if isinstance(number, Tensor) and number.requires_grad else number


def _fetched(numbers: Sequence[Number]) -> list[float]:
    """Plain numbers, exact in float64, out of tensors of any type and device, by one transfer a type and device."""
    kinds: dict[tuple[torch.dtype, torch.device], dict[int, Tensor]] = {}
    plain: dict[int, float] = {}
    for place, number in enumerate(numbers):
        if isinstance(number, Tensor):
            kinds.setdefault((number.dtype, number.device), {})[place] = number
        else:
            plain[place] = number
    for tensors in kinds.values():
        plain |= zip(tensors, torch.stack(list(tensors.values())).tolist())
    return [plain[place] for place in range(len(numbers))]
