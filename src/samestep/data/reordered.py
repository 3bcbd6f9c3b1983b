"""The same batches in another order, by which `samestep verify` measures what rounding alone does to a run."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from samestep.data.order import Order, Rearranged, micro_batches


@dataclass(frozen=True)
class Reordered(Rearranged):
    """Another order of the rows inside each step of `order`, while `active()` is true; the steps stay the same.

    Every micro-batch keeps its rows, so nothing changes but the order in which numbers are added up: its rows are
    reversed, and a rank's micro-batches of equal size change places.
    """

    order: Order
    ranks: int
    micro_rows: int
    active: Callable[[], bool]

    def ids(self, step: int) -> np.ndarray:
        """The (epoch, index) pairs of a step's global batch."""
        ids = self.order.ids(step)
        if not self.active():
            return ids
        shares = [_places(micro_batches(len(ids), rank, self.ranks, self.micro_rows)) for rank in range(self.ranks)]
        return ids[np.concatenate(shares)]


def _places(spans: list[tuple[int, int]]) -> np.ndarray:
    """Which row comes where: the last micro-batch of a size takes the place of the first one, and so on, reversed."""
    by_size = defaultdict(list)
    for start, stop in spans:
        by_size[stop - start].append(np.arange(stop - 1, start - 1, -1))
    return np.concatenate([by_size[stop - start].pop() for start, stop in spans])
