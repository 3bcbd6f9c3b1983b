"""Metrics are global (sum, weight) pairs. They stay on the device and are read only when they are shown."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, NoReturn

import numpy as np
import torch
from torch import Tensor

from samestep.core.arguments import described
from samestep.core.errors import UserError
from samestep.core.json_files import Json
from samestep.world.async_gather import PendingResult
from samestep.world.world import World

Number = Tensor | float
MAX_PENDING = 512
"""How many numbers may be pending before they are added up, which waits for the device. Rows of metrics come far more
often than that."""


class Metric(NamedTuple):
    """This rank's part of a sum, and the weight of the global sum. A metric that is equal on all ranks is counted once;
    so is the part of a share of the data that several ranks take.

    A tensor in it must not be changed afterwards: it is read later.
    """

    sum: Number
    """This rank's sum, a number or a tensor with one element."""
    weight: Number = 1.0
    """What the sum over all ranks is divided by, equal on all of them; of several steps, sums and weights are added
    up."""
    same: bool = False
    """Whether every rank holds the global value already (a learning rate, a gradient norm)."""
    skipped: Number = 0.0
    """1 for a step that was skipped: it counts for nothing, so its NaN reaches no mean."""


Metrics = Mapping[str, Metric]
"""What a step returns, by name."""
MetricValues = Mapping[str, float]
"""Metrics as plain numbers, by name: equal on all ranks, ready to be written or shown."""
_PART = "\x1f"  # the unit separator, which no name has


def part_of(name: str, term: str) -> str:
    """The name under which a term's part of the metric `name` is added up.

    A metric in parts is the sum of their means. So the logged loss is the sum of coefficient times logged term, though
    terms may weigh differently and each step has another weight.
    """
    return f"{name}{_PART}{term}"


def is_loss(name: str) -> bool:
    """Whether a metric is a learner's loss, or a part of one."""
    return name.partition(_PART)[0].rpartition("/")[2] == "loss"


class MetricAccumulator:
    """Adds metrics up over steps, and reduces them over ranks when asked: one collective for all of them.

    Added metrics are only kept in a list. What is on the device is fetched in one go when the sums are needed, and then
    added in the order of the steps. So it makes no difference to any bit when that happens.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._totals: dict[str, tuple[float, float]] = {}
        self._pending: list[tuple[str, Number, Number, Number]] = []

    def add(self, metrics: Metrics) -> None:
        """Add a step's metrics; nothing is read from the device."""
        for name, metric in metrics.items():
            is_counted = self._world.is_main if metric.same else self._world.dp_counted
            counted = _detached(metric.sum) if is_counted else 0.0
            self._pending.append((name, counted, _detached(metric.weight), metric.skipped))
            self._totals.setdefault(name, (0.0, 0.0))
        if len(self._pending) >= MAX_PENDING:
            self._add_up()

    def names(self) -> list[str]:
        """The names of what was added so far."""
        return list(self._totals)

    def read(self) -> dict[str, float]:
        """The mean of every metric over what was added, the same on all ranks; the accumulator is empty afterwards."""
        return self.read_async().finish()[0]

    def read_async(self, per_rank: Sequence[float] = ()) -> "PendingMetrics":
        """Start the same without waiting for the other ranks. `per_rank` are numbers of this rank that are gathered
        along; they come out rank by rank, and are no state."""
        totals, self._totals = self._add_up(), {}
        names = sorted(totals)
        gather = self._world.async_gather
        sums = gather.submit([totals[name][0] for name in names])
        pending = PendingMetrics(names, [totals[name][1] for name in names], sums, gather.submit(per_rank))
        gather.flush()  # at once, and not with the next message: a rank may fail before there is one
        return pending

    def state_dict(self) -> dict[str, Json]:
        """Empty: all of it is the state of single ranks."""
        return {}

    def load_state_dict(self, state: dict[str, Json]) -> None:
        """Nothing to load, see `state_dict`."""

    def rank_state(self) -> Json:
        """The sums of this rank since the last read."""
        return {name: list(total) for name, total in self._add_up().items()}

    def load_rank_state(self, states: list[Json]) -> None:
        """Continue from saved sums; at another world size rank 0 takes all that was summed so far."""
        self._totals, self._pending = {}, []
        for name, (_, weight) in states[0].items():
            parts = [state[name][0] for state in states]
            if len(parts) == self._world.size:
                part = parts[self._world.rank]
            else:
                part = sum(parts) if self._world.is_main else 0.0
            self._totals[name] = part, weight

    def _add_up(self) -> dict[str, tuple[float, float]]:
        """All sums and weights so far, as plain numbers."""
        pending, self._pending = self._pending, []
        numbers = _to_floats([number for _, *numbers in pending for number in numbers])
        for (name, *_), more, weight, skipped in zip(pending, numbers[::3], numbers[1::3], numbers[2::3]):
            if not skipped:
                total, total_weight = self._totals[name]
                self._totals[name] = total + more, total_weight + weight
        return self._totals


@dataclass(frozen=True)
class PendingMetrics:
    """Metrics whose gathering over the ranks has begun."""

    names: Sequence[str]
    weights: Sequence[float]
    sums: PendingResult
    per_rank: PendingResult

    def is_ready(self, within: float) -> bool:
        """Whether `finish` would not wait any more, after waiting here for at most `within` seconds."""
        return self.per_rank.is_ready(within)

    def finish(self) -> tuple[dict[str, float], list[list[float]]]:
        """Every metric's mean, and the per-rank numbers of each rank; waits for them."""
        sums = zip(self.names, self.sums.sums(), self.weights)
        means = {name: total / weight for name, total, weight in sums if weight > 0}
        return _combine_parts(means), self.per_rank.by_rank()


def _combine_parts(means: Mapping[str, float]) -> dict[str, float]:
    """Means by name, those of parts added up under the name that they are parts of."""
    combined: dict[str, float] = {}
    for name, mean in means.items():
        if _PART in name:
            metric = name.partition(_PART)[0]
            combined[metric] = combined.get(metric, 0.0) + mean
    return {name: mean for name, mean in means.items() if _PART not in name} | combined


def checked_metrics(metrics: object) -> Metrics:
    """What a step returned, if these are metrics by name."""
    if not isinstance(metrics, Mapping):
        raise UserError(
            f"the step of the task returned {described(metrics)}; return what learner.update(...) returns, or metrics "
            "by name, {} if there are none"
        )
    for name, metric in metrics.items():
        if not isinstance(metric, Metric) or not _is_number(metric.sum) or not _is_number(metric.weight):
            _refuse_metric(name, metric)
    return metrics


def _is_number(value: object) -> bool:
    return not value.dim() if isinstance(value, Tensor) else isinstance(value, int | float | np.number)


def _refuse_metric(name: str, metric: object) -> NoReturn:
    """Say what is wrong with an entry of what a step returned."""
    if not isinstance(metric, Metric):
        raise UserError(
            f"the step of the task returned {described(metric)} for {name!r}; make it a Metric(sum, weight), this "
            "rank's sum and the weight of the global sum, or Metric(value, same=True) if all ranks have the value"
        )
    part = "weight" if _is_number(metric.sum) else "sum"
    wrong = getattr(metric, part)
    shape = f" of shape {tuple(wrong.shape)}" if isinstance(wrong, Tensor) else ""
    raise UserError(
        f"the step of the task returned {described(wrong)}{shape} as the {part} of {name!r}; give one number, such as "
        "values.sum()"
    )


def _detached(number: Number) -> Number:
    """A number without the graph that it came from, which would be kept alive with it."""
    return number.detach() if isinstance(number, Tensor) and number.requires_grad else number


def _to_floats(numbers: Sequence[Number]) -> list[float]:
    """Plain numbers, exact in float64, from tensors of any type and device, by one transfer per type and device."""
    kinds: dict[tuple[torch.dtype, torch.device], dict[int, Tensor]] = {}
    plain: dict[int, float] = {}
    for index, number in enumerate(numbers):
        if isinstance(number, Tensor):
            kinds.setdefault((number.dtype, number.device), {})[index] = number
        else:
            plain[index] = number
    for tensors in kinds.values():
        plain |= zip(tensors, torch.stack(list(tensors.values())).tolist())
    return [plain[index] for index in range(len(numbers))]
